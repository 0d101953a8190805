package dispatch

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// BenchmarkCore takes 1000 rows of n lanes through the state machine: appended, claimed,
// sent, delivered, written.
func BenchmarkCore(b *testing.B) {
	const rows = 1000
	limits := func(string) sink.Limits { return sink.Limits{Mode: sink.Atomic, MaxItems: 100, MaxBytes: 1 << 20} }
	for _, lanes := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("%d lanes", lanes), func(b *testing.B) {
			items := make([]store.Item, rows)
			for i := range items {
				items[i] = store.Item{Ref: store.Ref{Outbox: "box", ID: fmt.Sprintf("%013d", i)}, Kind: "EVENT",
					Group: store.GroupOf(fmt.Sprint("group-", i%lanes)), Payload: make([]byte, 200), PayloadSize: 200}
			}
			c, now := newTestCore(DefaultConfig(), limits, func() float64 { return 0 }), time.Unix(1e9, 0)
			answers := make([]store.ClaimAnswer, rows)
			for i := range answers {
				answers[i].Result = store.Claimed
			}
			results := make([]store.SettleResult, rows)
			for i := range results {
				results[i] = store.Written
			}
			b.ReportAllocs()
			for b.Loop() {
				c.append(items, nil)
				for len(c.live()) > 0 || c.unwrittenCount() > 0 {
					runReady(c, answers, results, now)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(rows*b.N), "ns/row")
		})
	}
}

// runReady claims, sends and writes everything that is ready.
func runReady(c *core, answers []store.ClaimAnswer, results []store.SettleResult, now time.Time) {
	for _, req := range c.nextClaims(maxStatementRows, now) {
		c.claimed(req, answers[:req.Size()], now, now)
	}
	for req := c.nextRequest(now); req != nil; req = c.nextRequest(now) {
		c.answered(req, &sink.Result{Outcome: sink.Outcome{Class: sink.Delivered}}, now)
	}
	if batch := c.nextOutcomes(maxStatementRows); len(batch) > 0 {
		c.written(results[:len(batch)], now)
	}
}
