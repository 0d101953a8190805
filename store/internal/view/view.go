// Package view reads unsettled and delivered rows as they are at one moment, whatever the
// database: it looks after the snapshot behind a view and hands pages over. Each
// database has its own statements for it.
package view

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/lifetime"
	"github.com/sluicebox/sluicebox/store/internal/outboxes"
)

// unsettledPage is how many rows Unsettled reads at a time.
const unsettledPage = 1000

// Snapshot is a read-only transaction in a session of its own. It serves one call at
// a time.
type Snapshot interface {
	// Begin takes the snapshot. The error says what to do.
	Begin(ctx context.Context) error
	// Position is the place in the log that matches it, once it has begun; "" where
	// nobody tells.
	Position() store.Position
	// Read hands over the rows that q asks for, in order. After an error, which says
	// what to do, the snapshot is taken for lost.
	Read(ctx context.Context, o *store.Outbox, q store.UnsettledQuery, to *Pages) error
	// ReadDelivered is Read for COMPLETED rows; see Delivered.
	ReadDelivered(ctx context.Context, o *store.Outbox, to *DeliveredRows) error
	// Drop gives the session up.
	Drop()
}

// Dialer opens the session of a snapshot, and begins nothing. The error says what to
// do; after one, nothing is left of the session.
type Dialer func(ctx context.Context) (Snapshot, error)

// Open opens a view, which ends with the lifetime if nobody closes it before.
func Open(ctx context.Context, life *lifetime.Lifetime, boxes *outboxes.Set, dial Dialer) (store.View, error) {
	if !life.Begin() {
		return nil, lifetime.ErrClosed
	}
	ctx, cancel := life.Bind(ctx)
	defer cancel()
	snapshot, err := begin(ctx, dial)
	if err != nil {
		life.Done()
		return nil, fmt.Errorf("open a view: %w", err)
	}
	v := &view{lifetime: life, outboxes: boxes, snapshot: snapshot, position: snapshot.Position()}
	if !life.Add(v) {
		v.Close()
		return nil, lifetime.ErrClosed
	}
	return v, nil
}

func begin(ctx context.Context, dial Dialer) (Snapshot, error) {
	snapshot, err := dial(ctx)
	if err != nil {
		return nil, err
	}
	if err := snapshot.Begin(ctx); err != nil {
		snapshot.Drop()
		return nil, err
	}
	return snapshot, nil
}

// view implements store.View.
type view struct {
	lifetime *lifetime.Lifetime
	outboxes *outboxes.Set
	position store.Position

	mu       sync.Mutex // held by the call that uses snapshot
	snapshot Snapshot   // nil once it is given up
	closed   bool
}

// Position implements store.View.
func (v *view) Position() store.Position { return v.position }

// Unsettled implements store.View.
func (v *view) Unsettled(ctx context.Context, q store.UnsettledQuery) ([]store.Item, error) {
	var items []store.Item
	size := unsettledPage
	if q.MaxBytes > 0 {
		size = max(q.Limit, 1) // the bound ends a page: there is but one
	}
	err := v.Pages(ctx, q, size, func(page []store.Item) error {
		if items = append(items, page...); q.MayHaveMore(items) {
			return errStopIteration
		}
		return nil
	})
	if err != nil && !errors.Is(err, errStopIteration) {
		return nil, err
	}
	return items, nil
}

// errStopIteration ends a reading that has what was asked for.
var errStopIteration = errors.New("enough rows were read")

// Pages implements store.View. The view is in use until it returns: take may call
// the store, but it must neither read from the view nor close it. Each page is a
// slice of its own.
func (v *view) Pages(ctx context.Context, q store.UnsettledQuery, page int, take func([]store.Item) error) error {
	o, err := v.outboxes.Find(q.Outbox)
	if err != nil {
		return fmt.Errorf("read unsettled rows: %w", err)
	}
	if q.Limit <= 0 || page <= 0 {
		return fmt.Errorf("read unsettled rows of outbox %s: the limit is %d and the page %d, both must be positive", q.Outbox, q.Limit, page)
	}
	if o.Layout.State == store.StateNone {
		return nil // nothing tells a settled row from another
	}
	pages := &Pages{Size: page, maxBytes: q.MaxBytes, remaining: q.Limit, consume: v.whileOpen(take)}
	err = v.read(ctx, pages, func(ctx context.Context) error { return v.snapshot.Read(ctx, o, q, pages) })
	if err != nil && pages.consumeErr == nil {
		return fmt.Errorf("read unsettled rows of outbox %s: %w", q.Outbox, err)
	}
	return err
}

// Delivered implements store.View. What is said of Pages goes for it too.
func (v *view) Delivered(ctx context.Context, q store.DeliveredQuery, page int, take func([]store.Item) error) (undated int, err error) {
	o, err := v.outboxes.Find(q.Outbox)
	if err == nil {
		err = q.Validate(o)
	}
	if err != nil {
		return 0, fmt.Errorf("read delivered rows: %w", err)
	}
	if page <= 0 {
		return 0, fmt.Errorf("read delivered rows of outbox %s: the page is %d, must be positive", q.Outbox, page)
	}
	to := newDeliveredRows(q, &Pages{Size: page, remaining: math.MaxInt, consume: v.whileOpen(take)})
	err = v.read(ctx, to.pages, func(ctx context.Context) error { return v.snapshot.ReadDelivered(ctx, o, to) })
	if err != nil && to.pages.consumeErr == nil {
		err = fmt.Errorf("read delivered rows of outbox %s: %w", q.Outbox, err)
	}
	return to.undated, err
}

// whileOpen refuses pages once the store is closed: what its end interrupts is
// interrupted a moment later.
func (v *view) whileOpen(take func([]store.Item) error) func([]store.Item) error {
	return func(items []store.Item) error {
		if v.lifetime.Ended() {
			return lifetime.ErrClosed
		}
		return take(items)
	}
}

// read uses the snapshot, and hands the last page over. The error is that of the
// reader, if there is one.
func (v *view) read(ctx context.Context, pages *Pages, do func(context.Context) error) error {
	ctx, cancel := v.lifetime.Bind(ctx)
	defer cancel()
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.snapshot == nil {
		return errors.New("the view is closed")
	}
	if err := do(ctx); err != nil {
		v.drop() // the transaction may be over, and with it its snapshot
		if pages.consumeErr == nil {
			return err
		}
	}
	pages.flush()
	return pages.consumeErr
}

// Close implements store.View. It waits for a read that is under way.
func (v *view) Close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return
	}
	v.closed = true
	v.drop()
	v.lifetime.Remove(v)
	v.lifetime.Done()
}

func (v *view) drop() {
	if v.snapshot != nil {
		v.snapshot.Drop()
		v.snapshot = nil
	}
}
