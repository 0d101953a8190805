package ingest

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
	"time"
)

// Limits of compressed bodies. A body below ratioFloor may have any ratio. Deflate reaches 1032
// to 1, and rows of JSON about 20 to 1.
const (
	maxRatio   = 200
	ratioFloor = 64 << 10
)

// firstRead is the size of the first buffer of a body, in which most bodies fit.
const firstRead = 4 << 10

// readBody reads the body of a request, decompressed. A shutdown ends it.
func (s *Server) readBody(r *request) ([]byte, error) {
	if err := checkContentType(r.Header.Get("Content-Type")); err != nil {
		return nil, err
	}
	if r.ContentLength > s.cfg.maxBody() {
		return nil, s.tooLarge()
	}
	end := context.AfterFunc(s.closing, func() { _ = r.control.SetReadDeadline(time.Now()) })
	defer end()
	body, err := s.decompress(r)
	if err != nil && s.closing.Err() != nil {
		err = s.open()
	}
	return body, err
}

// decompress reads the body of a request in the encoding that its header names.
func (s *Server) decompress(r *request) ([]byte, error) {
	wire := &countingReader{from: r.Body}
	switch coding := r.Header.Get("Content-Encoding"); strings.ToLower(coding) {
	case "", "identity":
		return s.readAll(wire, wire, false, &r.held)
	case "gzip":
		plain, err := gzip.NewReader(wire)
		if err != nil {
			return nil, readFault(err)
		}
		return s.readAll(plain, wire, true, &r.held)
	default:
		return nil, &fault{status: http.StatusUnsupportedMediaType, accept: "gzip", text: fmt.Sprintf("Content-Encoding %q: unknown; send gzip, or no encoding", coding)}
	}
}

// checkContentType accepts JSON, which is UTF-8.
func checkContentType(header string) error {
	kind, parameters, err := mime.ParseMediaType(header)
	charset, given := parameters["charset"]
	if err != nil || kind != "application/json" || given && !strings.EqualFold(charset, "utf-8") {
		return &fault{status: http.StatusUnsupportedMediaType, text: fmt.Sprintf("Content-Type %q: not JSON; send application/json", header)}
	}
	return nil
}

// countingReader counts the bytes read.
type countingReader struct {
	from io.Reader
	n    int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	c.n += int64(n)
	return n, err
}

// readAll reads to the end, in a buffer that doubles. wire counts what arrives of it.
func (s *Server) readAll(from io.Reader, wire *countingReader, compressed bool, held *reservation) ([]byte, error) {
	var body []byte
	most := s.cfg.maxBody()
	for {
		if len(body) == cap(body) {
			size := min(max(firstRead, 2*int64(cap(body))), most+1)
			if !held.grow(memoryFactor * size) {
				held.release()
				return nil, s.discard(from, wire, compressed, int64(len(body)))
			}
			body = append(make([]byte, 0, size), body...)
		}
		n, err := from.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		if err := s.checkSize(int64(len(body)), wire, compressed); err != nil {
			return nil, err
		}
		switch {
		case err == io.EOF:
			return body, nil
		case err != nil:
			return nil, readFault(err)
		}
	}
}

// discard reads the rest of a body that has no room in memory, n bytes of which were read. It tells
// a client that a body is too large, because repeating such a request does not help.
func (s *Server) discard(from io.Reader, wire *countingReader, compressed bool, n int64) error {
	buf := make([]byte, firstRead)
	for {
		read, err := from.Read(buf)
		n += int64(read)
		if err := s.checkSize(n, wire, compressed); err != nil {
			return err
		}
		switch {
		case err == io.EOF:
			return errNoMemory()
		case err != nil:
			return readFault(err)
		}
	}
}

// checkSize checks the size of a body, n bytes of which were read. wire counts what arrived of it.
func (s *Server) checkSize(n int64, wire *countingReader, compressed bool) error {
	switch {
	case n > s.cfg.maxBody():
		return s.tooLarge()
	case compressed && n > ratioFloor && n > maxRatio*wire.n:
		return &fault{status: http.StatusRequestEntityTooLarge, text: fmt.Sprintf("body: compressed more than %d to 1; send it uncompressed", maxRatio)}
	}
	return nil
}

func (s *Server) tooLarge() error {
	return &fault{status: http.StatusRequestEntityTooLarge, text: fmt.Sprintf("body: larger than %d bytes; send fewer rows, or smaller payloads", s.cfg.maxBody())}
}

func errNoMemory() error {
	return &fault{status: http.StatusServiceUnavailable, retryAfter: retryUnavailable, text: "memory: requests in flight fill ingest.max-memory; repeat the request"}
}

// readFault returns the fault for a body that cannot be read to its end.
func readFault(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return &fault{status: http.StatusRequestTimeout, text: "body: not complete within ingest.read-timeout; send it faster, or in parts"}
	}
	return &fault{status: http.StatusBadRequest, text: "body: " + err.Error()}
}
