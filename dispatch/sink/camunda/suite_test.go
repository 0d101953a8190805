package camunda_test

import (
	"net/http"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/camunda"
	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store"
)

// canary is a credential that must appear only in the request's header.
const canary = "canary-7f3d2a91c4"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newSink(tb testing.TB, cfg camunda.Config) *camunda.Sink {
	tb.Helper()
	s, err := camunda.New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Close)
	return s
}

// config returns the configuration of a gateway at an address.
func config(url string) camunda.Config {
	cfg := camunda.DefaultConfig()
	cfg.URL, cfg.TimeToLive = sink.Secret(url), time.Hour
	cfg.RequestTimeout, cfg.Senders, cfg.Client = 20*time.Second, 16, "sluicebox/test"
	return cfg
}

func attributes(pairs ...string) (list store.Attributes) {
	for i := 0; i < len(pairs); i += 2 {
		list = append(list, store.Attribute{Name: pairs[i], Value: pairs[i+1]})
	}
	return list
}

// TestSuite: the REST API as a sink over HTTP.
func TestSuite(t *testing.T) {
	sinktest.Run(t, sinktest.Harness{
		Kind: "order.created", Secret: canary, ProbeMethod: http.MethodGet, ReplayInBody: true,
		StatusOverrides: map[int]sink.Class{http.StatusConflict: sink.Delivered},
		Success: func(n int) sinktest.Reply {
			body := healthy // to a probe
			if n > 0 {
				body = `{"messageKey":"2251799813685249","tenantId":"<default>"}`
			}
			return sinktest.Reply{Status: http.StatusOK, ContentType: "application/json", Body: []byte(body)}
		},
		New: func(tb testing.TB, baseURL string, timeout time.Duration) sink.Sink {
			cfg := config(baseURL)
			cfg.Name, cfg.Token, cfg.RequestTimeout = "{kind}", canary, timeout
			return newSink(tb, cfg)
		},
	})
}
