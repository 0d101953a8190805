package floor

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
)

const (
	// writeBuffer holds a usual batch, so that a request is one write.
	writeBuffer = 64 << 10
	// maxErrorText is the number of bytes of an error response that are shown.
	maxErrorText = 200
)

// poster posts rows as JSON arrays.
type poster struct {
	endpoint  string
	transport *http.Transport
}

func newPoster(endpoint string, senders int) *poster {
	return &poster{endpoint: endpoint, transport: &http.Transport{
		MaxIdleConnsPerHost: senders, DisableCompression: true, WriteBufferSize: writeBuffer,
	}}
}

func (p *poster) close() { p.transport.CloseIdleConnections() }

func (p *poster) send(ctx context.Context, rows []row) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.endpoint, bytes.NewReader(array(rows)))
	if err != nil {
		return err
	}
	req.Header["Content-Type"] = []string{"application/json"}
	resp, err := p.transport.RoundTrip(req) // no redirects, no cookies
	if err != nil {
		return fmt.Errorf("POST %s: %w", p.endpoint, err)
	}
	defer func() { _ = resp.Body.Close() }() // the body was read
	if resp.StatusCode/100 != 2 {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorText))
		return fmt.Errorf("POST %s: row %s and %d others: got %s: %s", p.endpoint, rows[0].id, len(rows)-1, resp.Status, text)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil { // otherwise the connection is not reused
		return fmt.Errorf("POST %s: read response: %w", p.endpoint, err)
	}
	return nil
}

// array returns the payloads as a JSON array.
func array(rows []row) []byte {
	size := 1 + len(rows)
	for i := range rows {
		size += len(rows[i].payload)
	}
	body := make([]byte, 0, size)
	sep := byte('[')
	for i := range rows {
		body = append(body, sep)
		body = append(body, rows[i].payload...)
		sep = ','
	}
	return append(body, ']')
}
