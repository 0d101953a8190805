package sluicebox

import (
	"context"
	"slices"

	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

// DeadLetters lists the FAILED rows of a relay and acts on them through the dispatchers,
// because these know which lanes the rows block. It logs every action. Errors wrap
// ErrNotLeading, store.ErrNotLeader or a *RequestError.
type DeadLetters struct{ relay *Relay }

// DeadLetters returns the FAILED rows of the relay.
func (r *Relay) DeadLetters() DeadLetters { return DeadLetters{r} }

// Count returns the number of FAILED rows that match a filter.
func (d DeadLetters) Count(ctx context.Context, f store.DeadLetterFilter) (int, error) {
	if _, err := d.dispatcherForFilter(&f); err != nil {
		return 0, err
	}
	return d.relay.db.store.CountFailed(ctx, f)
}

// List returns up to limit FAILED rows that match a filter, with their payloads if asked for.
func (d DeadLetters) List(ctx context.Context, f store.DeadLetterFilter, limit int, payload bool) ([]store.DeadLetter, error) {
	if _, err := d.dispatcherForFilter(&f); err != nil {
		return nil, err
	}
	return d.relay.db.store.Failed(ctx, f, limit, payload)
}

// dispatcherForFilter returns the dispatcher for the rows of a filter, or an error if the
// filter is not valid for its outbox. If a dispatcher exists, the database is open.
func (d DeadLetters) dispatcherForFilter(f *store.DeadLetterFilter) (*dispatch.Dispatcher, error) {
	to, err := d.relay.dispatcherForOutbox(f.Outbox)
	if err != nil {
		return nil, err
	}
	outboxes := d.relay.opt.tables()
	at := slices.IndexFunc(outboxes, func(o store.Outbox) bool { return o.Name == f.Outbox })
	if err := f.Validate(&outboxes[at]); err != nil {
		return nil, &RequestError{Problem: err.Error()}
	}
	return to, nil
}

// Requeue resets up to limit FAILED rows to PENDING and sends them again. It returns their
// number, also with an error. A polling source finds the rows in the table by
// itself.
func (d DeadLetters) Requeue(ctx context.Context, f store.DeadLetterFilter, limit int) (int, error) {
	return d.act("dead letters requeued by operator", f, func(to *dispatch.Dispatcher) (int, error) {
		return to.Requeue(ctx, f, limit, !d.relay.isPolling.Load())
	})
}

// Discard marks up to limit FAILED rows as delivered without sending them. It returns their
// number, also with an error.
func (d DeadLetters) Discard(ctx context.Context, f store.DeadLetterFilter, limit int) (int, error) {
	return d.act("dead letters discarded by operator", f, func(to *dispatch.Dispatcher) (int, error) { return to.Discard(ctx, f, limit) })
}

// act runs an action on rows of an outbox and logs the number of rows it changed, also
// after a partial failure.
func (d DeadLetters) act(message string, f store.DeadLetterFilter, do func(*dispatch.Dispatcher) (int, error)) (int, error) {
	to, err := d.dispatcherForFilter(&f)
	if err != nil {
		return 0, err
	}
	n, err := do(to)
	if n > 0 {
		d.relay.log.Info(message, "outbox", f.Outbox, "rows", n)
	}
	return n, err
}
