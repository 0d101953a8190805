package webhook_test

import (
	"net/http"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/dispatch/sink/webhook"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	// canary is a token that must appear only in the request's header.
	canary = "canary-7f3d2a91c4"

	// secretA is the secret of the published test vector, secretB is another one.
	secretA = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	secretB = "whsec_c2x1aWNlYm94LXNlY29uZC1zZWNyZXQtb2YtMzItYnk="
)

func newSink(tb testing.TB, cfg webhook.Config) *webhook.Sink {
	tb.Helper()
	s, err := webhook.New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Close)
	return s
}

func TestSuite(t *testing.T) {
	for name, c := range map[string]struct {
		change    func(*webhook.Config)
		success   sinktest.Reply
		otherwise map[int]sink.Class
	}{
		"raw": {
			func(c *webhook.Config) {
				c.Secrets = []sink.Secret{secretA, secretB}
				c.Treat409AsDelivered = true
			},
			sinktest.Reply{Status: http.StatusOK, ContentType: "text/plain", Body: []byte("ok")},
			map[int]sink.Class{409: sink.Delivered, 410: sink.Misconfigured},
		},
		"cloudevents": {
			func(c *webhook.Config) {
				c.Method, c.Format, c.CloudEventsSource = http.MethodPut, webhook.FormatCloudEvents, "/shop/orders"
				c.MetadataHeaders = []string{webhook.MetadataKind, webhook.MetadataGroup, webhook.MetadataAttempt}
			},
			sinktest.Reply{Status: http.StatusAccepted, ContentType: "text/html", Body: []byte("<p>thank you")},
			map[int]sink.Class{410: sink.Misconfigured},
		},
		"batch": {
			func(c *webhook.Config) { c.Format, c.CloudEventsSource = webhook.FormatBatch, "/shop/orders" },
			sinktest.Reply{Status: http.StatusNoContent},
			map[int]sink.Class{410: sink.Misconfigured},
		},
	} {
		t.Run(name, func(t *testing.T) {
			success := c.success
			sinktest.Run(t, sinktest.Harness{
				Kind: "order.created", StatusOnly: true, StatusOverrides: c.otherwise, Secret: canary, Variant: name != "raw",
				Success: func(int) sinktest.Reply { return success },
				New: func(tb testing.TB, baseURL string, timeout time.Duration) sink.Sink {
					cfg := webhook.DefaultConfig()
					cfg.URL, cfg.Token = sink.Secret(baseURL+"/hook"), canary
					cfg.RequestTimeout, cfg.MaxConnections = timeout, 16
					c.change(&cfg)
					return newSink(tb, cfg)
				},
			})
		})
	}
}
