// Package view implements store.View for every database: it manages the snapshot behind a
// view and passes its rows on in pages. Each database implements Snapshot with its own
// statements.
package view

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/outboxes"
	"github.com/sluicebox/sluicebox/store/internal/sessions"
)

// unsettledPage is the page size of Unsettled.
const unsettledPage = 1000

// Snapshot is a read-only transaction in its own session. It serves one call at a time.
type Snapshot interface {
	// Begin takes the snapshot. Its error names the remedy, because the view returns it as
	// is.
	Begin(ctx context.Context) error
	// Position returns the log position that matches the snapshot after Begin; "" if the
	// database does not provide it.
	Position() store.Position
	// Read passes the rows that q selects to to, in order. Its error names the remedy.
	// After an error the view drops the snapshot.
	Read(ctx context.Context, o *store.Outbox, q store.UnsettledQuery, to *Pages) error
	// ReadDelivered is Read for COMPLETED rows; see DeliveredRows.
	ReadDelivered(ctx context.Context, o *store.Outbox, to *DeliveredRows) error
	// Drop closes the session.
	Drop()
}

// Dialer opens the session of a snapshot without beginning it. Its error names the remedy;
// after an error the session is closed.
type Dialer func(ctx context.Context) (Snapshot, error)

// Open opens a view. The end of the lifetime closes it if the caller has not.
func Open(ctx context.Context, life *sessions.Lifetime, boxes *outboxes.Set, dial Dialer) (store.View, error) {
	if !life.Begin() {
		return nil, sessions.ErrClosed
	}

	ctx, cancel := life.Bind(ctx)
	defer cancel()
	snapshot, err := begin(ctx, dial)
	if err != nil {
		life.Done()
		return nil, fmt.Errorf("open view: %w", err)
	}

	v := &view{lifetime: life, outboxes: boxes, snapshot: snapshot, position: snapshot.Position()}
	if !life.Add(v) {
		v.Close()
		return nil, sessions.ErrClosed
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
	lifetime *sessions.Lifetime
	outboxes *outboxes.Set
	position store.Position

	mu       sync.Mutex // held by the call that uses snapshot
	snapshot Snapshot   // nil after drop
	closed   bool
}

// Position implements store.View.
func (v *view) Position() store.Position { return v.position }

// Unsettled implements store.View.
func (v *view) Unsettled(ctx context.Context, q store.UnsettledQuery) ([]store.Item, error) {
	var items []store.Item
	size := unsettledPage
	if q.MaxBytes > 0 {
		size = max(q.Limit, 1) // MaxBytes ends a page, so read a single page
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

// errStopIteration stops a read that has enough rows.
var errStopIteration = errors.New("enough rows were read")

// Pages implements store.View. It holds the view until it returns: take may call the store,
// but it must neither read from the view nor close it. Each page is a new slice.
func (v *view) Pages(ctx context.Context, q store.UnsettledQuery, page int, take func([]store.Item) error) error {
	o, err := v.outboxes.Find(q.Outbox)
	if err != nil {
		return fmt.Errorf("read unsettled rows: %w", err)
	}
	if q.Limit <= 0 || page <= 0 {
		return fmt.Errorf("read unsettled rows of outbox %s: limit %d and page size %d must be positive", q.Outbox, q.Limit, page)
	}
	if o.Layout.LogOnly() && (q.After == nil || !o.Layout.ReadsByPosition()) {
		return nil // settled rows cannot be recognized
	}

	pages := &Pages{Size: page, maxBytes: q.MaxBytes, remaining: q.Limit, consume: v.whileOpen(take)}
	err = v.read(ctx, pages, func(ctx context.Context) error { return v.snapshot.Read(ctx, o, q, pages) })
	if err != nil && pages.consumeErr == nil {
		return fmt.Errorf("read unsettled rows of outbox %s: %w", q.Outbox, err)
	}

	return err
}

// Delivered implements store.View. It holds the view as Pages does.
func (v *view) Delivered(ctx context.Context, q store.DeliveredQuery, page int, take func([]store.Item) error) (undated int, err error) {
	o, err := v.outboxes.Find(q.Outbox)
	if err == nil {
		err = q.Validate(o)
	}
	if err != nil {
		return 0, fmt.Errorf("read delivered rows: %w", err)
	}
	if page <= 0 {
		return 0, fmt.Errorf("read delivered rows of outbox %s: page size %d must be positive", q.Outbox, page)
	}

	to := newDeliveredRows(q, &Pages{Size: page, remaining: math.MaxInt, consume: v.whileOpen(take)})
	err = v.read(ctx, to.pages, func(ctx context.Context) error { return v.snapshot.ReadDelivered(ctx, o, to) })
	if err != nil && to.pages.consumeErr == nil {
		err = fmt.Errorf("read delivered rows of outbox %s: %w", q.Outbox, err)
	}

	return to.undated, err
}

// whileOpen rejects pages once the store is closed, because the read itself is interrupted
// slightly later.
func (v *view) whileOpen(take func([]store.Item) error) func([]store.Item) error {
	return func(items []store.Item) error {
		if v.lifetime.Ended() {
			return sessions.ErrClosed
		}
		return take(items)
	}
}

// read uses the snapshot and flushes the last page. An error of the consumer takes
// precedence.
func (v *view) read(ctx context.Context, pages *Pages, do func(context.Context) error) error {
	ctx, cancel := v.lifetime.Bind(ctx)
	defer cancel()
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.snapshot == nil {
		return errors.New("view closed")
	}

	if err := do(ctx); err != nil {
		v.drop() // the transaction and its snapshot may have ended
		if pages.consumeErr == nil {
			return err
		}
	}

	pages.flush()
	return pages.consumeErr
}

// Close implements store.View. It waits for a running read.
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

// Pages passes the rows that a snapshot reads to a consumer, in pages.
type Pages struct {
	// Size is the maximum number of rows in a page.
	Size int

	maxBytes   int64 // page size in bytes, 0 for no limit
	bytes      int64 // size of the current page
	remaining  int   // rows still wanted
	consume    func([]store.Item) error
	items      []store.Item // current page
	consumeErr error        // returned by consume; not an error of the snapshot
}

// Add adds a row and reports whether more rows are wanted.
func (p *Pages) Add(it store.Item) bool {
	p.items = append(p.items, it)
	p.bytes += int64(it.Bytes())
	p.remaining--
	if len(p.items) == p.Size || p.maxBytes > 0 && p.bytes >= p.maxBytes {
		p.flush()
	}
	return p.wantsMore()
}

func (p *Pages) wantsMore() bool { return p.remaining > 0 && p.consumeErr == nil }

// flush passes the current page to the consumer.
func (p *Pages) flush() {
	if full := p.items; len(full) > 0 && p.consumeErr == nil {
		p.items, p.bytes = nil, 0
		p.consumeErr = p.consume(full)
	}
}
