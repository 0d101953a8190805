package app

import (
	"context"
	"slices"

	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

// OpenDeadLetters returns the FAILED rows of the configured outboxes for use without a
// running relay. It connects on first use. Call closed when done.
func OpenDeadLetters(cfg *config.Config) (letters store.DeadLetters, closed func(), err error) {
	db, err := openDatabase(cfg)
	if err != nil {
		return nil, nil, err
	}
	return db.store, db.store.Close, nil
}

// deadLetterController lists FAILED rows and acts on them through the dispatchers,
// because these know which lanes the rows block.
type deadLetterController struct{ *relay }

// Count implements admin.DeadLetters.
func (d deadLetterController) Count(ctx context.Context, f store.DeadLetterFilter) (int, error) {
	if _, err := d.dispatcherForFilter(&f); err != nil {
		return 0, err
	}
	return d.db.store.CountFailed(ctx, f)
}

// List implements admin.DeadLetters.
func (d deadLetterController) List(ctx context.Context, f store.DeadLetterFilter, limit int, payload bool) ([]store.DeadLetter, error) {
	if _, err := d.dispatcherForFilter(&f); err != nil {
		return nil, err
	}
	return d.db.store.Failed(ctx, f, limit, payload)
}

// dispatcherForFilter returns the dispatcher for the rows of a filter, or an error if the
// filter is not valid for its outbox. If a dispatcher exists, the database is open.
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

// Requeue implements admin.DeadLetters. A polling source finds the rows in the table by
// itself.
func (d deadLetterController) Requeue(ctx context.Context, f store.DeadLetterFilter, limit int) (int, error) {
	return d.act("dead letters requeued by operator", f, func(to *dispatch.Dispatcher) (int, error) {
		return to.Requeue(ctx, f, limit, !d.isPolling.Load())
	})
}

// Discard implements admin.DeadLetters.
func (d deadLetterController) Discard(ctx context.Context, f store.DeadLetterFilter, limit int) (int, error) {
	return d.act("dead letters discarded by operator", f, func(to *dispatch.Dispatcher) (int, error) { return to.Discard(ctx, f, limit) })
}

// act runs an action on rows of an outbox and logs the number of rows it changed, also
// after a partial failure.
func (d deadLetterController) act(message string, f store.DeadLetterFilter, do func(*dispatch.Dispatcher) (int, error)) (int, error) {
	to, err := d.dispatcherForFilter(&f)
	if err != nil {
		return 0, err
	}
	n, err := do(to)
	if n > 0 {
		d.log.Info(message, "outbox", f.Outbox, "rows", n)
	}
	return n, err
}
