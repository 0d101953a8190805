package app

import (
	"context"
	"slices"

	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

// OpenDeadLetters returns the FAILED rows of the configured outboxes, to be read
// without a running relay. It connects to nothing before it is asked. Call
// closed when done.
func OpenDeadLetters(cfg *config.Config) (letters store.DeadLetters, closed func(), err error) {
	db, err := openDatabase(cfg)
	if err != nil {
		return nil, nil, err
	}
	return db.store, db.store.Close, nil
}

// deadLetterController shows FAILED rows and acts on them through the dispatchers,
// which know the lanes that the rows block.
type deadLetterController struct{ *relay }

// Count implements admin.OpenDeadLetters.
func (d deadLetterController) Count(ctx context.Context, f store.DeadLetterFilter) (int, error) {
	if _, err := d.dispatcherForFilter(&f); err != nil {
		return 0, err
	}
	return d.db.store.CountFailed(ctx, f)
}

// List implements admin.OpenDeadLetters.
func (d deadLetterController) List(ctx context.Context, f store.DeadLetterFilter, limit int, payload bool) ([]store.DeadLetter, error) {
	if _, err := d.dispatcherForFilter(&f); err != nil {
		return nil, err
	}
	return d.db.store.Failed(ctx, f, limit, payload)
}

// dispatcherForFilter returns the dispatcher of the rows that a filter chooses, if the
// outbox can be asked for them. The database is open where there is one.
func (d deadLetterController) dispatcherForFilter(f *store.DeadLetterFilter) (*dispatch.Dispatcher, error) {
	to, err := d.dispatcherForOutbox(f.Outbox)
	if err != nil {
		return nil, err
	}
	outboxes := d.cfg.Outboxes()
	at := slices.IndexFunc(outboxes, func(o store.Outbox) bool { return o.Name == f.Outbox })
	if err := f.Validate(&outboxes[at]); err != nil {
		return nil, &admin.RequestError{Problem: err.Error()}
	}
	return to, nil
}

// Requeue implements admin.OpenDeadLetters. A source that polls finds the rows in the
// table by itself.
func (d deadLetterController) Requeue(ctx context.Context, f store.DeadLetterFilter, limit int) (int, error) {
	return d.act("dead letters requeued by operator", f, func(to *dispatch.Dispatcher) (int, error) {
		return to.Requeue(ctx, f, limit, !d.isPolling.Load())
	})
}

// Discard implements admin.OpenDeadLetters.
func (d deadLetterController) Discard(ctx context.Context, f store.DeadLetterFilter, limit int) (int, error) {
	return d.act("dead letters discarded by operator", f, func(to *dispatch.Dispatcher) (int, error) { return to.Discard(ctx, f, limit) })
}

// act does something to rows of an outbox and logs how many it took, also when
// it failed on its way.
func (d deadLetterController) act(what string, f store.DeadLetterFilter, do func(*dispatch.Dispatcher) (int, error)) (int, error) {
	to, err := d.dispatcherForFilter(&f)
	if err != nil {
		return 0, err
	}
	n, err := do(to)
	if n > 0 {
		d.log.Info(what, "outbox", f.Outbox, "rows", n)
	}
	return n, err
}
