package legs

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
	"github.com/sluicebox/sluicebox/store/ledger/memory"
)

// fakeTables is the table of one outbox. Its state outlives every relay, as a database does.
type fakeTables struct {
	store.Tables
	box     store.Outbox
	backend *memory.Backend // of the current relay

	mu     sync.Mutex
	ledger *ledger.Ledger
	rows   map[string]store.Status

	// fault is what happens to the write after the next later ones; see failing.
	fault      fault
	later      int
	statements int // claims and outcomes
	refuses    int // writes that the database refuses
}

type fault uint8

const (
	noFault   fault = iota
	unwritten       // it fails before the commit
	unread          // its answer is lost behind the commit
)

var errFault = errors.New("no answer")

// failing is a ledger.Backend with faults.
type failing struct {
	*memory.Backend
	f *fakeTables
}

// Update implements ledger.Backend.
func (b failing) Update(ctx context.Context, epoch store.Epoch, d ledger.Durability, do func(context.Context, ledger.Tx) error) error {
	b.f.mu.Lock()
	if b.f.refuses > 0 {
		b.f.refuses--
		b.f.mu.Unlock()
		return &store.RefusedError{Err: errors.New("too large")}
	}
	fault := b.f.fault
	if b.f.later > 0 {
		b.f.later--
		fault = noFault
	} else {
		b.f.fault = noFault
	}
	b.f.mu.Unlock()
	if fault == unwritten {
		return errFault
	}
	err := b.Backend.Update(ctx, epoch, d, do)
	if fault == unread && err == nil {
		return errFault
	}
	return err
}

// newTables returns the tables of an outbox, and open, which opens the database anew.
func newTables(box store.Outbox) (f *fakeTables, open func(o Options) *Store) {
	db := memory.New()
	f = &fakeTables{box: box, rows: map[string]store.Status{}}
	return f, func(o Options) *Store {
		f.backend = db.Backend("relay")
		backend := failing{f.backend, f}
		f.ledger = ledger.New(ledger.Config{
			Outboxes: []store.Outbox{box}, Records: backend, Spill: backend, Replay: backend, AreFailed: f.areFailed, BatchRows: 3, BatchBytes: 1000,
		})
		return New(ledger.Store{Tables: f, Ledger: f.ledger}, []store.Outbox{box}, o)
	}
}

func (f *fakeTables) areFailed(_ context.Context, rows []store.Ref) ([]bool, error) {
	failed := make([]bool, len(rows))
	for i, row := range rows {
		failed[i] = f.rows[row.ID] == store.Failed
	}
	return failed, nil
}

func (f *fakeTables) status(id string) store.Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rows[id]
}

func (f *fakeTables) set(id string, s store.Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rows[id] = s
}

// AcquireLeadership implements store.Leadership.
func (f *fakeTables) AcquireLeadership(ctx context.Context) (store.Epoch, error) {
	return f.backend.AcquireLeadership(ctx)
}

// Claim implements store.Claimer.
func (f *fakeTables) Claim(_ context.Context, _ store.Epoch, _ time.Time, rows []store.ClaimRow) ([]store.ClaimAnswer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.statements++
	answers := make([]store.ClaimAnswer, len(rows))
	for i, row := range rows {
		if row.Outbox != f.box.Name {
			return nil, errors.New("claim of a leg in a table: " + row.Outbox)
		}
		switch status, exists := f.rows[row.ID]; {
		case !exists:
			answers[i].Result = store.Gone
		case status.Settled():
			answers[i].Result = store.AlreadySettled
		default:
			answers[i] = store.ClaimAnswer{Result: store.Claimed, RetryCount: 77} // of no leg
			f.rows[row.ID] = store.Processing
		}
	}
	return answers, nil
}

// ReadSettled implements store.StatusReader.
func (f *fakeTables) ReadSettled(_ context.Context, rows []store.ClaimRow) ([]bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	settled := make([]bool, len(rows))
	for i, row := range rows {
		status, exists := f.rows[row.ID]
		settled[i] = !exists || status.Settled()
	}
	return settled, nil
}

// Settle implements store.Settler.
func (f *fakeTables) Settle(ctx context.Context, epoch store.Epoch, outcomes []store.Outcome) ([]store.SettleResult, error) {
	results := make([]store.SettleResult, len(outcomes))
	return results, failing{f.backend, f}.Update(ctx, epoch, ledger.Full, func(ctx context.Context, tx ledger.Tx) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.statements++
		for i, o := range outcomes {
			status, exists := f.rows[o.ID]
			switch results[i] = store.Written; {
			case o.Outbox != f.box.Name:
				return errors.New("outcome of a leg in a table: " + o.Outbox)
			case !exists:
				results[i] = store.WasGone
			case status.Settled():
				results[i] = store.WasSettled
			default:
				f.rows[o.ID] = o.Status
			}
		}
		return f.ledger.AfterSettle(ctx, tx, outcomes, results, f.areFailed)
	})
}

// resolve changes the FAILED rows that a filter names.
func (f *fakeTables) resolve(ctx context.Context, epoch store.Epoch, filter store.DeadLetterFilter, do func(id string)) (refs []store.Ref, err error) {
	err = failing{f.backend, f}.Update(ctx, epoch, ledger.Full, func(ctx context.Context, tx ledger.Tx) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, id := range filter.IDs {
			if f.rows[id] == store.Failed {
				do(id)
				refs = append(refs, store.Ref{Outbox: filter.Outbox, ID: id})
			}
		}
		return f.ledger.AfterResolve(ctx, tx, refs...)
	})
	return refs, err
}

// Requeue implements store.DeadLetters.
func (f *fakeTables) Requeue(ctx context.Context, epoch store.Epoch, filter store.DeadLetterFilter, _ int) (items []store.Item, err error) {
	refs, err := f.resolve(ctx, epoch, filter, func(id string) { f.rows[id] = store.Pending })
	for _, ref := range refs {
		items = append(items, store.Item{Ref: ref})
	}
	return items, err
}

// Discard implements store.DeadLetters.
func (f *fakeTables) Discard(ctx context.Context, epoch store.Epoch, filter store.DeadLetterFilter, _ int) ([]store.Ref, error) {
	return f.resolve(ctx, epoch, filter, func(id string) { delete(f.rows, id) })
}

// unsettled returns the ids of the rows that a view of the tables shows, in order: those that are
// unsettled and that no leg has spilled, or that are to be included.
func (f *fakeTables) unsettled(ctx context.Context, include ...string) (ids []string) {
	spilled := map[string]bool{}
	_ = f.backend.View(ctx, func(ctx context.Context, r ledger.Reader) error {
		rows, err := r.Scan(ctx, ledger.Scan{Queue: ledger.SpilledQueue, Outboxes: f.box.SpilledAs(), Limit: 1 << 20})
		for i := range rows {
			spilled[rows[i].ID] = true
		}
		return err
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, status := range f.rows {
		if !status.Settled() && (!spilled[id] || slices.Contains(include, id)) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}
