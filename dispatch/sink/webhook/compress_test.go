package webhook_test

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/dispatch/sink/webhook"
)

// A body above 1 KiB is compressed if that shortens it. The receiver reads the payload, with the
// signature of the payload.
func TestCompression(t *testing.T) {
	random := make([]byte, 4<<10)
	_, _ = rand.Read(random)
	to := sinktest.NewReceiver(t)
	var mu sync.Mutex
	got := map[string]*sinktest.Request{}
	to.Script(func(r *sinktest.Request) sinktest.Answer {
		mu.Lock()
		defer mu.Unlock()
		got[r.Header.Get("Webhook-Id")] = r
		return sinktest.Answer{Status: http.StatusNoContent}
	})
	s := newSink(t, webhook.Config{URL: sink.Secret(to.URL()), Compression: "gzip", Secrets: []sink.Secret{secretA}})
	plain := newSink(t, webhook.Config{URL: sink.Secret(to.URL()), Secrets: []sink.Secret{secretA}})
	for id, c := range map[string]struct {
		payload    string
		compressed bool
	}{
		"empty": {"", false}, "short": {strings.Repeat("x", 1<<10-1), false}, "long": {strings.Repeat("x", 1<<10), true},
		"large": {strings.Repeat(`{"a": 1.0}`, 1<<17), true}, "random": {string(random), false},
	} {
		var requests sync.WaitGroup
		for range 8 { // the writers are shared
			requests.Go(func() {
				if res := s.Deliver(t.Context(), []sink.Message{row(id, c.payload)}); res.Class != sink.Delivered {
					t.Errorf("%s: %s, %s", id, res.Class, res.Detail)
				}
			})
		}
		requests.Wait()
		mu.Lock()
		r := got[id]
		mu.Unlock()
		body := r.Body
		if c.compressed {
			z, err := gzip.NewReader(bytes.NewReader(body))
			if err != nil {
				t.Fatalf("%s: %v", id, err)
			}
			if body, err = io.ReadAll(z); err != nil || len(r.Body) >= len(body) {
				t.Errorf("%s: %d bytes for %d: %v", id, len(r.Body), len(body), err)
			}
		}
		want := ""
		if c.compressed {
			want = "gzip"
		}
		if r.Header.Get("Content-Encoding") != want || string(body) != c.payload || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %d bytes with %v, want %d", id, len(body), r.Header, len(c.payload))
		}
		if signature := webhook.Sign(plain, r.Header.Get("Webhook-Id"), r.Header.Get("Webhook-Timestamp"), []byte(c.payload)); r.Header.Get("Webhook-Signature") != signature {
			t.Errorf("%s: the signature is not that of the payload", id)
		}
	}

	for name, c := range map[string]struct {
		cfg  webhook.Config
		want string
	}{
		"unknown": {webhook.Config{Compression: "br"}, `compression is "br", must be gzip`},
		"twice":   {webhook.Config{Compression: "gzip", Headers: map[string]sink.Secret{"content-encoding": "br"}}, "headers.content-encoding conflicts with compression"},
	} {
		c.cfg.URL = "https://hooks.example"
		if err := c.cfg.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", name, err, c.want)
		}
	}
}
