package ledger_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
	"github.com/sluicebox/sluicebox/store/ledger/memory"
)

type lateTables struct {
	*fakeTables
	late bool
	then func()
}

func (f *lateTables) Requeue(ctx context.Context, epoch store.Epoch, filter store.DeadLetterFilter, n int) ([]store.Item, error) {
	if !f.late {
		return f.fakeTables.Requeue(ctx, epoch, filter, n)
	}
	f.late = false
	f.then = func() { _, _ = f.fakeTables.Requeue(ctx, epoch, filter, n) } // the server is still committing
	return nil, errors.New("connection lost during COMMIT")
}

// A requeue commits after its error, and after a claim has read the records again.
func TestRequeueCommitsAfterItsError(t *testing.T) {
	ctx := t.Context()
	db := memory.New()
	f := &lateTables{fakeTables: &fakeTables{state: map[store.Ref]store.Status{}}}
	f.backend = db.Backend("model")
	boxes := []store.Outbox{{Name: "kept", Table: "kept", Layout: store.Layout{Name: "kept", State: store.StateBoolean, Columns: store.Columns{Status: "sent"}}}}
	f.ledger = ledger.New(ledger.Config{Outboxes: boxes, Records: f.backend, Spill: f.backend, Replay: f.backend, BatchRows: 3})
	s := ledger.Store{Tables: f, Ledger: f.ledger}
	epoch, err := s.AcquireLeadership(ctx)
	if err != nil {
		t.Fatal(err)
	}
	ref := store.Ref{Outbox: "kept", ID: "1"}
	f.state[ref] = store.Pending
	if _, err := s.Settle(ctx, epoch, []store.Outcome{{Ref: ref, Status: store.Failed, At: time.Now(), Row: &store.Item{Ref: ref}}}); err != nil {
		t.Fatal(err)
	}
	f.late = true
	_, err = s.Requeue(ctx, epoch, store.DeadLetterFilter{Outbox: "kept"}, 10)
	t.Log("requeue:", err)
	_, _ = s.Claim(ctx, epoch, time.Now(), []store.ClaimRow{{Ref: store.Ref{Outbox: "kept", ID: "other"}}}) // any claim reads the records again
	f.then()                                                                                                // now the COMMIT is through
	n, _ := s.CountFailed(ctx, store.DeadLetterFilter{Outbox: "kept"})
	got, _ := s.Claim(ctx, epoch, time.Now(), []store.ClaimRow{{Ref: ref}})
	v, _ := s.View(ctx, "")
	rows, _ := v.Unsettled(ctx, store.UnsettledQuery{Outbox: "kept", Limit: 10})
	if got[0].Result != store.Claimed || len(rows) != 1 {
		t.Errorf("row is PENDING in its table and in no record (%d dead letters), but a claim answers %s and a sweep finds %d rows", n, got[0].Result, len(rows))
	}
}
