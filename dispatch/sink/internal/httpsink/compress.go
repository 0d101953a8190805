package httpsink

import (
	"bytes"
	"compress/gzip"
	"net/http"
	"sync"
)

// minCompressed is the minimum length in bytes of a body that is compressed. A shorter one fits
// into a packet anyway.
const minCompressed = 1 << 10

// CompressionGzip is a value of the key compression.
const CompressionGzip = "gzip"

// Compressor compresses bodies. A writer of package gzip takes close to a megabyte, so they are
// kept. It is safe for concurrent use.
type Compressor struct{ writers sync.Pool }

// NewCompressor returns a Compressor for CompressionGzip, nil for any other value.
func NewCompressor(compression string) *Compressor {
	if compression != CompressionGzip {
		return nil
	}
	return &Compressor{sync.Pool{New: func() any { return gzip.NewWriter(nil) }}}
}

// Compress returns the compressed body and sets its header, or returns the body as it is if it
// is short or does not become shorter. A nil Compressor never compresses.
func (c *Compressor) Compress(h http.Header, body []byte) []byte {
	if c == nil || len(body) < minCompressed {
		return body
	}
	var short bytes.Buffer
	w := c.writers.Get().(*gzip.Writer)
	defer c.writers.Put(w)
	w.Reset(&short)
	_, _ = w.Write(body) // a buffer accepts everything
	_ = w.Close()
	if short.Len() >= len(body) {
		return body
	}
	h.Set("Content-Encoding", CompressionGzip)
	return short.Bytes()
}
