package flowcatalyst_test

import (
	"net/http"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/flowcatalyst"
	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// canary is a token that must appear only in the request's header.
const canary = "canary-7f3d2a91c4"

func newSink(tb testing.TB, cfg flowcatalyst.Config) *flowcatalyst.Sink {
	tb.Helper()
	s, err := flowcatalyst.New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Close)
	return s
}

func TestSuite(t *testing.T) {
	for _, c := range []struct {
		name    string
		wire    flowcatalyst.Wire
		kind    string
		success func(n int) sinktest.Reply
		variant bool
	}{
		{"array/created without a body", flowcatalyst.WireArray, flowcatalyst.KindEvent, func(int) sinktest.Reply {
			return sinktest.Reply{Status: http.StatusCreated}
		}, false},
		{"array/object", flowcatalyst.WireArray, flowcatalyst.KindDispatchJob, func(int) sinktest.Reply {
			return sinktest.Reply{Status: http.StatusOK, ContentType: "application/json", Body: []byte(`{"accepted":true}`)}
		}, true},
		{"items/events", flowcatalyst.WireItems, flowcatalyst.KindEvent, results(http.StatusCreated), false},
		{"items/audit logs", flowcatalyst.WireItems, flowcatalyst.KindAuditLog, results(http.StatusOK), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			sinktest.Run(t, sinktest.Harness{
				Kind: c.kind, Success: c.success, Variant: c.variant, Secret: canary,
				New: func(tb testing.TB, baseURL string, timeout time.Duration) sink.Sink {
					return newSink(tb, flowcatalyst.Config{
						Wire: c.wire, BaseURL: baseURL, HTTP: flowcatalyst.HTTP{Token: canary, RequestTimeout: timeout, MaxConnections: 16},
					})
				},
			})
		})
	}
}

func results(status int) func(int) sinktest.Reply {
	return func(n int) sinktest.Reply {
		return sinktest.Reply{Status: status, ContentType: "application/json", Body: sinktest.Results(n)}
	}
}
