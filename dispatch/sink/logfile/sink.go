package logfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/event"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/redact"
	"github.com/sluicebox/sluicebox/store"
)

// Sink writes to one output. It runs one goroutine for each write.
type Sink struct {
	cfg     Config // without the headers
	encoder *event.Encoder

	// writing has a token while nothing writes. Its holder uses the fields below.
	writing chan struct{}
	file    *os.File // nil until it is opened
	unsure  bool     // the folder may not have the file on disk
	torn    bool     // the last line has no line break
	closed  bool
	sync    func(*os.File) error // waits until the disk has a file or a folder
}

var (
	_ sink.Sink   = (*Sink)(nil)
	_ sink.Prober = (*Sink)(nil)
)

// New returns a Sink. It opens no file. It fails if the configuration is invalid.
func New(cfg Config) (*Sink, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	s := &Sink{encoder: event.NewEncoder(cfg.settings(), event.Binding{Prefix: "ce_"}), writing: make(chan struct{}, 1), sync: (*os.File).Sync}
	cfg.Headers = nil
	s.cfg = cfg
	s.writing <- struct{}{}
	return s, nil
}

// Close closes the file. A write that has not ended closes it at its end. Call it only when no
// Deliver is running.
func (s *Sink) Close() {
	select {
	case <-s.writing:
		s.closed = true
		s.closeFile()
	default: // a write outlived its request, for example to a pipe that nobody reads
		go func() {
			<-s.writing
			s.closed = true
			s.closeFile()
		}()
	}
}

// closeFile closes the file, unless it is one of the process.
func (s *Sink) closeFile() {
	if s.file != nil && s.cfg.isFile() {
		_ = s.file.Close() // what must be on disk is
	}
	s.file = nil
}

// Limits implements sink.Sink.
func (s *Sink) Limits(kind string) sink.Limits { return s.cfg.Limits(kind) }

// Deliver writes the messages up to the first that cannot be a line.
func (s *Sink) Deliver(ctx context.Context, msgs []sink.Message) sink.Result {
	if len(msgs) == 0 {
		return sink.Result{Outcome: sink.Outcome{Class: sink.Delivered}}
	}
	var text bytes.Buffer
	var ends []int // of the lines
	reason := ""
	for i := range msgs {
		if reason = s.appendLine(&text, &msgs[i]); reason != "" {
			break
		}
		ends = append(ends, text.Len())
	}
	bad := sink.Outcome{Class: sink.Rejected, Reason: store.ReasonBadRequest, Detail: redact.OneLine("not written: " + reason)}
	if len(ends) == 0 {
		return sink.RejectFirst(len(msgs), bad.Detail)
	}

	written, err := s.write(ctx, text.Bytes())
	n, failed := len(ends), bad
	if err != nil {
		n, _ = slices.BinarySearch(ends, written+1) // the number of whole lines
		failed = s.failure(err)
	}
	if n == len(msgs) {
		return sink.Result{Outcome: sink.Outcome{Class: sink.Delivered}}
	}
	if n == 0 {
		return sink.Result{Outcome: failed}
	}
	items := make([]sink.Outcome, len(msgs))
	for i := range items {
		switch {
		case i < n:
			items[i] = sink.Outcome{Class: sink.Delivered}
		case i == n:
			items[i] = failed
		default:
			items[i] = sink.Outcome{Class: sink.NotSent}
		}
	}
	return sink.Result{Items: items}
}

// timeoutError is a write that takes longer than request-timeout.
type timeoutError struct{ error }

// write writes text behind the writes before it, at most until the context ends. It returns how
// many bytes are known to be written. A write that outlives the context goes on, and later ones
// wait for it.
func (s *Sink) write(ctx context.Context, text []byte) (n int, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.RequestTimeout, timeoutError{fmt.Errorf("no end within request-timeout (%s)", s.cfg.RequestTimeout)})
	defer cancel()
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	select {
	case <-s.writing:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	type result struct {
		n   int
		err error
	}
	done := make(chan result, 1)
	go func() {
		n, err := s.writeNow(text)
		s.writing <- struct{}{}
		done <- result{n, err}
	}()
	select {
	case r := <-done:
		return r.n, r.err
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// writeNow writes text. The caller holds the token.
func (s *Sink) writeNow(text []byte) (n int, err error) {
	if err := s.open(); err != nil {
		return 0, err
	}
	if s.torn {
		if _, err := s.file.Write([]byte("\n")); err != nil {
			return 0, err
		}
		s.torn = false
	}
	n, err = s.file.Write(text)
	s.torn = n > 0 && text[n-1] != '\n'
	if n > 0 && s.cfg.Fsync {
		if syncErr := s.syncAll(); syncErr != nil {
			s.closeFile() // later calls may succeed although the pages are lost
			return 0, syncErr
		}
	}
	return n, err
}

// syncAll waits until the disk has the file, and its name. Without the name a crash loses a new
// file, whatever is in it.
func (s *Sink) syncAll() error {
	if err := s.sync(s.file); err != nil || !s.unsure {
		return err
	}
	path, err := filepath.EvalSymlinks(s.cfg.Output)
	if err != nil {
		return err // it was removed meanwhile
	}
	folder, err := os.Open(filepath.Dir(path))
	if failed := (*fs.PathError)(nil); errors.As(err, &failed) {
		failed.Op = "open its folder"
		return failed
	}
	defer func() { _ = folder.Close() }()                                     // read-only
	if err := s.sync(folder); err != nil && !errors.Is(err, syscall.EINVAL) { // a file system without it
		return err
	}
	s.unsure = false
	return nil
}

// open opens the output unless it is open. A file that is no longer at its path is opened again.
func (s *Sink) open() error {
	switch {
	case s.closed:
		return errors.New("sink is closed")
	case s.cfg.Output == OutputStdout:
		s.file = os.Stdout
		return nil
	case s.cfg.Output == OutputStderr:
		s.file = os.Stderr
		return nil
	}
	if s.file != nil {
		at, err := os.Stat(s.cfg.Output)
		mine, mineErr := s.file.Stat()
		if err == nil && mineErr == nil && os.SameFile(at, mine) {
			return nil
		}
		s.closeFile()
	}
	// Without O_NONBLOCK the opening of a named pipe waits for a reader.
	file, err := os.OpenFile(s.cfg.Output, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NONBLOCK, 0o640)
	if err != nil {
		return err
	}
	s.file, s.torn, s.unsure = file, endsTorn(s.cfg.Output), true // a probe may have created it
	return nil
}

// endsTorn reports whether the last line of a file has no line break, because a process ended
// while it wrote.
func endsTorn(path string) bool {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return false
	}
	f, err := os.Open(path)
	if err != nil {
		return false // it may be only writable
	}
	defer func() { _ = f.Close() }() // read-only
	last := make([]byte, 1)
	_, err = f.ReadAt(last, info.Size()-1)
	return err == nil && last[0] != '\n'
}

// failure classifies an error of a write.
func (s *Sink) failure(err error) sink.Outcome {
	class, reason := sink.Unavailable, store.ReasonGateway
	for _, wrong := range []error{
		fs.ErrPermission, fs.ErrNotExist, syscall.EISDIR, syscall.ENOTDIR, syscall.EROFS, syscall.ELOOP, syscall.ENAMETOOLONG, syscall.EINVAL,
	} {
		if errors.Is(err, wrong) {
			class, reason = sink.Misconfigured, store.ReasonForbidden
		}
	}
	var timeout timeoutError
	text := err.Error()
	if path := (*fs.PathError)(nil); errors.As(err, &path) {
		text = path.Op + ": " + path.Err.Error()
	} else if !errors.As(err, &timeout) && !errors.Is(err, fs.ErrClosed) {
		text = "write canceled: " + text
	}
	if errors.Is(err, syscall.ENXIO) {
		text = "open: no process reads the pipe"
	}
	return sink.Outcome{Class: class, Reason: reason, Detail: redact.OneLine(s.cfg.name() + ": " + text)}
}

// Probe implements sink.Prober. It opens the output, and creates a file, but writes nothing.
func (s *Sink) Probe(ctx context.Context, _ string) sink.Outcome {
	if _, err := s.write(ctx, nil); err != nil {
		return s.failure(err)
	}
	return sink.Outcome{Class: sink.Delivered, Detail: redact.OneLine(s.cfg.name() + ": open for writing; only a delivery proves that there is room")}
}
