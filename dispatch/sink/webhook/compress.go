package webhook

import (
	"bytes"
	"compress/gzip"
	"net/http"
	"sync"
)

// minCompressed is the minimum length in bytes of a body that is compressed. A shorter one fits
// into a packet anyway.
const minCompressed = 1 << 10

// compressor compresses bodies. A writer of package gzip takes close to a megabyte, so they are
// kept. It is safe for concurrent use.
type compressor struct{ writers sync.Pool }

func newCompressor() *compressor {
	return &compressor{sync.Pool{New: func() any { return gzip.NewWriter(nil) }}}
}

// compress returns the compressed body and sets its header, or returns the body as it is if it
// is short or does not become shorter. A nil compressor never compresses.
func (c *compressor) compress(h http.Header, body []byte) []byte {
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
