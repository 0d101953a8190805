package quickstart

import (
	"bytes"
	"sync"
)

// tailSize is the number of bytes of the relay's log that are kept.
const tailSize = 16 << 10

// tail is a writer that keeps the last tailSize bytes.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

// Write implements io.Writer. It drops old text up to the beginning of a line.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - tailSize; over > 0 {
		if end := bytes.IndexByte(t.buf[over:], '\n'); end >= 0 {
			over += end + 1
		}
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

// String returns the kept text.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}
