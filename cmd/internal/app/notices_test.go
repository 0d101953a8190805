package app

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/cmd/internal/notices"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// The observer of a relay feeds both the notices and the metrics.
func TestNoticesOfARelay(t *testing.T) {
	bodies := make(chan string, 10)
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		bodies <- string(body)
	}))
	t.Cleanup(srv.Close)
	reg := prometheus.NewRegistry()
	p := &program{log: slog.New(slog.DiscardHandler), metrics: NewMetrics(reg, Build{})}
	p.notifier = p.newNotifier(reg, "shop", "me")
	cfg := notices.DefaultConfig()
	cfg.RaiseAfter, cfg.LeaderChanges, cfg.MaxAge = 0, 2, 0
	cfg.Webhook = &notices.Webhook{URL: sink.Secret(srv.URL)}
	if err := p.notifier.Configure(&cfg); err != nil {
		t.Fatal(err)
	}
	stop := inBackground(context.WithoutCancel(t.Context()), p.notifier.Run)
	defer stop()
	expect := func(texts ...string) {
		t.Helper()
		select {
		case body := <-bodies:
			for _, text := range texts {
				if !strings.Contains(body, text) {
					t.Errorf("%s lacks %s", body, text)
				}
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("no notice with %q", texts)
		}
	}

	var o sluicebox.Observer = &observer{Metrics: p.metrics, notices: p.notifier}
	o.SetLeader(1)
	o.Sink("hooks").BreakersChanged([]dispatch.OpenBreaker{{Endpoint: "/x", LastFailure: sink.Outcome{Class: sink.Refused}}})
	expect(`"event":"breaker-open","state":"raised"`, `"relay":"shop","holder":"me"`, `"sink":"hooks"`)
	o.Retained(99, 100)
	expect(`"log-near-limit","state":"raised"`)
	o.Sink("hooks").Settled(&store.Item{Ref: store.Ref{Outbox: "orders", ID: "7"}}, &store.Outcome{Status: store.Failed})
	expect(`"rows-failed","state":"raised"`, `"rows":1,"ids":["orders/7"]`)
	o.SetStandby()
	for range 3 {
		expect(`"state":"cleared"`)
	}
	expect(`"leader-changes","state":"raised"`)
	stop()
	found := metricValues(t, reg, "sluicebox_notices_total")
	if found[`outcome="sent",target="webhook"`] < 7 {
		t.Errorf("metrics %v", found)
	}
}

// metricValues returns the values of a counter by its labels.
func metricValues(t *testing.T, reg *prometheus.Registry, name string) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+`="`+l.GetValue()+`"`)
			}
			values[strings.Join(labels, ",")] = m.GetCounter().GetValue()
		}
	}
	return values
}
