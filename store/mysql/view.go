package mysql

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/lifetime"
)

// unsettledPage is how many rows Unsettled reads at a time.
const unsettledPage = 1000

// View implements store.Viewer. A view is a session of its own in a read-only
// transaction; a store may have several. There are no named snapshots. While one is
// open, the tables that were read in it cannot be altered.
func (s *Store) View(ctx context.Context, snapshot string) (store.View, error) {
	if snapshot != "" {
		return nil, fmt.Errorf("open a view: MySQL and MariaDB have no named snapshots, so none is named %q", snapshot)
	}
	if !s.life.Begin() {
		return nil, lifetime.ErrClosed
	}
	ctx, cancel := s.life.Bind(ctx)
	defer cancel()
	v := &view{store: s}
	if err := v.open(ctx); err != nil {
		v.drop()
		s.life.Done()
		return nil, fmt.Errorf("open a view: %w", Explain(err))
	}
	if !s.life.Add(v) {
		v.Close()
		return nil, lifetime.ErrClosed
	}
	return v, nil
}

// view is a read-only transaction that sees one snapshot.
type view struct {
	store    *Store
	position store.Position

	mu   sync.Mutex
	conn *conn
	done bool
}

func (v *view) open(ctx context.Context) (err error) {
	if v.conn, err = dial(ctx, v.store.views, "REPEATABLE READ", readSettings()); err != nil {
		return err
	}
	if _, err = v.conn.on.ExecContext(ctx, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"); err != nil {
		return err
	}
	v.position, err = v.conn.server.snapshotPosition(ctx, v.conn)
	return err
}

// Position implements store.View: the place in the binlog that matches the snapshot,
// as a GTID set. MySQL does not tell it: there the source reads its own before.
func (v *view) Position() store.Position { return v.position }

// Unsettled implements store.View.
func (v *view) Unsettled(ctx context.Context, q store.Unsettled) ([]store.Item, error) {
	var items []store.Item
	err := v.Pages(ctx, q, unsettledPage, func(page []store.Item) error {
		items = append(items, page...)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return items, nil
}

// Pages implements store.View. The rows come out of one statement, which is read on
// while take has returned: take may call the store, but it must neither read from the
// view nor close it. Each page is a slice of its own.
func (v *view) Pages(ctx context.Context, q store.Unsettled, page int, take func([]store.Item) error) error {
	o, err := v.store.outbox(q.Outbox)
	if err != nil {
		return fmt.Errorf("read unsettled rows: %w", err)
	}
	if q.Limit <= 0 || page <= 0 {
		return fmt.Errorf("read unsettled rows of outbox %s: the limit is %d and the page %d, both must be positive", q.Outbox, q.Limit, page)
	}
	if o.Layout.State == store.StateNone {
		return nil // nothing tells a settled row from another
	}
	ctx, cancel := v.store.life.Bind(ctx)
	defer cancel()
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.conn == nil {
		return errors.New("read unsettled rows: the view is closed")
	}
	pages := &pages{page: page, left: q.Limit, take: take}
	if err := v.read(ctx, o, q, pages); err != nil {
		v.drop() // the transaction may be over, and with it its snapshot
		return fmt.Errorf("read unsettled rows of outbox %s: %w", q.Outbox, Explain(err))
	}
	return pages.refused
}

// pages hands rows over.
type pages struct {
	page, left int
	take       func([]store.Item) error
	items      []store.Item
	refused    error // by take: it is no fault of the view
}

// errEnough ends the reading of rows.
var errEnough = errors.New("that is enough")

// add hands a page over when it is full, and returns errEnough when no more are wanted.
func (p *pages) add(it store.Item) error {
	p.items = append(p.items, it)
	p.left--
	if len(p.items) == p.page {
		p.flush()
	}
	if p.left == 0 || p.refused != nil {
		return errEnough
	}
	return nil
}

// flush hands over what is left.
func (p *pages) flush() {
	if full := p.items; len(full) > 0 && p.refused == nil {
		p.items = nil
		p.refused = p.take(full)
	}
}

// Close implements store.View. It waits for a read that is under way.
func (v *view) Close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.done {
		return
	}
	v.done = true
	v.drop()
	v.store.life.Remove(v)
	v.store.life.Done()
}

func (v *view) drop() {
	if v.conn != nil {
		v.conn.close()
		v.conn = nil
	}
}
