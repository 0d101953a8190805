package audit

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/verify"
)

// Receipts reads the receipts of a receiver.
type Receipts interface {
	// Read passes on the receipts that were added since the last call, up to the present end.
	Read(ctx context.Context, take func(verify.Arrival)) error
	Close()
}

// Receipt is a line of a receipts file.
type Receipt struct {
	ID    string    `json:"id"`
	Group string    `json:"group,omitempty"` // for people only
	At    time.Time `json:"at,omitzero"`
	Sum   string    `json:"sum,omitempty"` // SHA-256 of the body, in hex
	Chain string    `json:"chain,omitempty"`
}

// maxLine is the longest line of a receipts file, because a line has no body.
const maxLine = 1 << 20

// lines takes the lines of a receipts file, also in parts. After an error the next read goes on behind
// the line.
type lines struct {
	name   string
	source int
	number int           // of the last line
	in     *bufio.Reader // nil at the start of a file
	rest   []byte        // of a line without an end
}

// read takes everything up to the end of r. It keeps the start of a line that has no end yet.
func (l *lines) read(r io.Reader, take func(verify.Arrival)) error {
	if l.in == nil {
		l.in = bufio.NewReaderSize(r, 1<<16)
	}
	for {
		part, err := l.in.ReadSlice('\n')
		l.rest = append(l.rest, part...)
		switch {
		case len(l.rest) > maxLine:
			l.rest = nil
			return fmt.Errorf("read receipts %s: line %d: longer than %d bytes; a receipt has no body", l.name, l.number+1, maxLine)
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read receipts %s: line %d: %w", l.name, l.number+1, err)
		}
		line := l.rest
		l.rest = l.rest[:0]
		if err := l.line(line, take); err != nil {
			return err
		}
	}
}

func (l *lines) line(line []byte, take func(verify.Arrival)) error {
	l.number++
	if line = bytes.TrimSpace(line); len(line) == 0 {
		return nil
	}
	var r Receipt
	if err := json.Unmarshal(line, &r); err != nil {
		return fmt.Errorf(`read receipts %s: line %d: %w; each line is JSON such as {"id":"17","at":"2026-01-31T15:04:05Z"}`, l.name, l.number, err)
	}
	if r.ID == "" {
		return fmt.Errorf("read receipts %s: line %d: id is missing; remove the line if its request was no message, for example a health check", l.name, l.number)
	}
	take(verify.Arrival{ID: r.ID, At: r.At, Sum: r.Sum, Source: l.source, Chain: r.Chain})
	return nil
}

// end takes a last line without an end of line.
func (l *lines) end(take func(verify.Arrival)) error {
	line := l.rest
	l.rest = nil
	return l.line(line, take)
}

// Stream returns the receipts of a stream, which ends with its first read.
func Stream(name string, r io.Reader, source int) Receipts {
	return &stream{lines{name: name, source: source}, r}
}

type stream struct {
	lines
	r io.Reader
}

func (s *stream) Read(_ context.Context, take func(verify.Arrival)) error {
	if err := s.read(s.r, take); err != nil {
		return err
	}
	return s.end(take)
}

func (*stream) Close() {}

// File returns the receipts of a file. It follows the file: also if it is renamed and created again,
// or truncated. A missing file is an error.
func File(path string, source int) Receipts { return &file{lines: lines{name: path, source: source}} }

type file struct {
	lines
	open *os.File
}

func (f *file) Read(_ context.Context, take func(verify.Arrival)) error {
	for {
		if f.open == nil {
			var err error
			if f.open, err = os.Open(f.name); err != nil {
				return fmt.Errorf("read receipts: %w", err)
			}
			f.number, f.in, f.rest = 0, nil, nil
		}
		if err := f.read(f.open, take); err != nil {
			return err
		}
		if ended, err := f.replaced(); !ended || err != nil {
			return err
		}
		if err := f.end(take); err != nil {
			return err
		}
		f.Close()
	}
}

// replaced reports whether the name leads to another file now, or the file is shorter than what was
// read.
func (f *file) replaced() (bool, error) {
	own, err := f.open.Stat()
	if err != nil {
		return false, err
	}
	now, err := os.Stat(f.name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // between a rename and the next receipt
	}
	if err != nil {
		return false, err
	}
	at, err := f.open.Seek(0, io.SeekCurrent)
	return !os.SameFile(own, now) || own.Size() < at, err
}

func (f *file) Close() {
	if f.open != nil {
		_ = f.open.Close()
		f.open = nil
	}
}
