package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/lifetime"
)

// View implements store.Viewer. A view is a connection of its own in a read
// transaction; a store may have several. While one is open the WAL cannot be
// begun anew and grows. There are no named snapshots.
func (s *Store) View(ctx context.Context, snapshot string) (store.View, error) {
	if snapshot != "" {
		return nil, fmt.Errorf("open a view: SQLite has no named snapshots, so none is named %q", snapshot)
	}
	if !s.life.Begin() {
		return nil, lifetime.ErrClosed
	}
	defer s.life.Done()
	ctx, cancel := s.life.Bind(ctx)
	defer cancel()
	v := &view{store: s}
	if err := v.open(ctx); err != nil {
		v.drop()
		return nil, fmt.Errorf("open a view: %w", Explain(err))
	}
	if !s.life.Add(v) {
		v.drop()
		return nil, lifetime.ErrClosed
	}
	return v, nil
}

// view is a read transaction that sees one snapshot.
type view struct {
	store    *Store
	position store.Position

	mu   sync.Mutex
	conn *Conn
}

func (v *view) open(ctx context.Context) (err error) {
	if v.conn, err = Dial(ctx, v.store.path); err != nil {
		return err
	}
	if err = v.conn.pragma(ctx, "query_only=1"); err != nil {
		return err
	}
	return retry(ctx, patience, func() error {
		if _, err := v.conn.Exec(ctx, "BEGIN"); err != nil {
			return err
		}
		// The first read takes the snapshot; the view is of now.
		n, there, err := LogCounter(ctx, v.conn, v.store.name)
		if err != nil {
			_, _ = v.conn.Exec(context.WithoutCancel(ctx), "ROLLBACK") // BEGIN again
			return err
		}
		if there {
			v.position = store.Position(strconv.FormatInt(n, 10))
		}
		return nil
	})
}

// LogCounter returns the highest number that a row of a relay's log ever had, and
// whether the log is there.
func LogCounter(ctx context.Context, conn *Conn, relay string) (n int64, there bool, err error) {
	table := LogTable(relay)
	if there, err = hasTable(ctx, conn, table); err != nil || !there {
		return 0, false, err
	}
	err = conn.Query(ctx, "SELECT seq FROM sqlite_sequence WHERE name = ?", []any{table},
		func(row []driver.Value) error { n, _ = row[0].(int64); return nil })
	return n, true, err
}

// Position implements store.View: the place in the relay's log that matches the
// snapshot, read in it; "" if there is no log.
func (v *view) Position() store.Position { return v.position }

// Unsettled implements store.View.
func (v *view) Unsettled(ctx context.Context, q store.Unsettled) (items []store.Item, err error) {
	err = v.read(ctx, q, func(it store.Item) error {
		items = append(items, it)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return items, nil
}

// Pages implements store.View. The rows come out of one statement, which is read
// on while take has returned: take may call the store, also to write, as readers
// and writers do not wait for each other. It must not use the view. Each page is
// a slice of its own.
func (v *view) Pages(ctx context.Context, q store.Unsettled, page int, take func([]store.Item) error) error {
	if page <= 0 {
		return fmt.Errorf("read unsettled rows of outbox %s: the page is %d, must be positive", q.Outbox, page)
	}
	var (
		items   []store.Item
		refused error // by take: it is no fault of the view
	)
	err := v.read(ctx, q, func(it store.Item) error {
		if items = append(items, it); len(items) < page {
			return nil
		}
		full := items
		items = nil
		if refused = take(full); refused != nil {
			return Enough()
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case refused != nil || len(items) == 0:
		return refused
	}
	return take(items)
}

// read gives each the rows that q asks for, in order.
func (v *view) read(ctx context.Context, q store.Unsettled, each func(store.Item) error) error {
	o, err := v.store.outbox(q.Outbox)
	if err != nil {
		return fmt.Errorf("read unsettled rows: %w", err)
	}
	if q.Limit <= 0 {
		return fmt.Errorf("read unsettled rows of outbox %s: the limit is %d, must be positive", q.Outbox, q.Limit)
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
	if err := v.eachUnsettled(ctx, o, q, each); err != nil {
		v.drop() // an interrupted statement may have ended the transaction
		return fmt.Errorf("read unsettled rows of outbox %s: %w", q.Outbox, Explain(err))
	}
	return nil
}

// Close implements store.View. It waits for a read that is under way.
func (v *view) Close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.drop()
	v.store.life.Remove(v)
}

func (v *view) drop() {
	if v.conn != nil {
		v.conn.Close()
		v.conn = nil
	}
}
