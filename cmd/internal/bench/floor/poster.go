package floor

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/sluicebox/sluicebox/cmd/internal/demobroker"
)

const (
	// writeBuffer holds a usual batch, so that a request is one write.
	writeBuffer = 64 << 10
	// maxErrorText is the number of bytes of an error response that are shown.
	maxErrorText = 200
)

// sender sends rows to the receiver. Its methods are safe for concurrent use.
type sender interface {
	send(ctx context.Context, rows []row) error
	close()
}

func newSender(cfg *Config) (sender, error) {
	if cfg.Topic == "" {
		return newPoster(cfg.Endpoint, max(1, cfg.Senders)), nil
	}
	p, err := demobroker.Produce(cfg.Endpoint, cfg.Topic)
	if err != nil {
		return nil, err
	}
	return &producer{p}, nil
}

// producer sends rows to a topic of a broker.
type producer struct{ demobroker.Producer }

func (p *producer) close() { p.Close() }

func (p *producer) send(ctx context.Context, rows []row) error {
	records := make([]demobroker.Row, len(rows))
	for i, r := range rows {
		records[i] = demobroker.Row{Key: r.id, Payload: r.payload}
	}
	if err := p.Send(ctx, records); err != nil {
		return fmt.Errorf("send row %s and %d others: %w", rows[0].id, len(rows)-1, err)
	}
	return nil
}

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
