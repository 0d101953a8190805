package legs

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
	"github.com/sluicebox/sluicebox/store/ledger/memory"
)

// nothing are tables that claim and settle every row at once.
type nothing struct{ store.Tables }

func (nothing) Claim(_ context.Context, _ store.Epoch, _ time.Time, rows []store.ClaimRow) ([]store.ClaimAnswer, error) {
	answers := make([]store.ClaimAnswer, len(rows))
	for i := range answers {
		answers[i].Result = store.Claimed
	}
	return answers, nil
}

func (nothing) Settle(_ context.Context, _ store.Epoch, rows []store.Outcome) ([]store.SettleResult, error) {
	results := make([]store.SettleResult, len(rows))
	for i := range results {
		results[i] = store.Written
	}
	return results, nil
}

// The cost of a row with one leg, beside that of its statements.
func BenchmarkOneLeg(b *testing.B) {
	const batch, batches = 500, 20
	boxes := []store.Outbox{{Name: "orders", Routes: []store.Route{{Name: "bus"}, {Name: "unmatched"}}}}
	records := memory.New().Backend("relay")
	s := New(ledger.Store{Tables: nothing{}, Ledger: ledger.New(ledger.Config{Outboxes: boxes, Records: records, Spill: records, Replay: records})}, boxes, Options{})
	ctx, now := b.Context(), time.Now()
	b.ReportAllocs()
	for from := 0; b.Loop(); from += batch * batches {
		rows := make([]Row, batch*batches)
		for i := range rows {
			rows[i] = Row{Ref: store.Ref{Outbox: "orders", ID: fmt.Sprintf("%013d", from+i)}, Matched: store.LegSet(0).With(0)}
		}
		if _, err := s.Begin(ctx, 1, rows); err != nil {
			b.Fatal(err)
		}
		for k := range batches {
			claims, ends := make([]store.ClaimRow, batch), make([]store.Outcome, batch)
			for i := range claims {
				ref := store.Ref{Outbox: "orders/bus", ID: rows[k*batch+i].ID}
				claims[i], ends[i] = store.ClaimRow{Ref: ref}, store.Outcome{Ref: ref, Status: store.Completed, At: now}
			}
			if _, err := s.Claim(ctx, 1, now, claims); err != nil {
				b.Fatal(err)
			}
			if _, err := s.Settle(ctx, 1, ends); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch*batches), "ns/row")
}
