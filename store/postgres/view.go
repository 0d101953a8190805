package postgres

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/lifetime"
)

// snapshotForm is what pg_export_snapshot and CREATE_REPLICATION_SLOT return.
// SET TRANSACTION SNAPSHOT takes no parameter.
var snapshotForm = regexp.MustCompile(`^[0-9A-Fa-f]{1,16}(-[0-9A-Fa-f]{1,16})*$`)

// View implements store.Viewer. A view is a session of its own in a read-only
// transaction; a store may have several.
func (s *Store) View(ctx context.Context, snapshot string) (store.View, error) {
	if snapshot != "" && !snapshotForm.MatchString(snapshot) {
		return nil, fmt.Errorf("open a view: %q is no name of a snapshot", snapshot)
	}
	if !s.life.Begin() {
		return nil, lifetime.ErrClosed
	}
	ctx, cancel := s.life.Bind(ctx)
	defer cancel()
	v := &view{store: s}
	if err := v.open(ctx, snapshot); err != nil {
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
	store *Store

	mu   sync.Mutex
	conn *pgx.Conn
	done bool
}

func (v *view) open(ctx context.Context, snapshot string) (err error) {
	if v.conn, err = connect(ctx, v.store.views); err != nil {
		return err
	}
	if _, err = v.conn.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"); err != nil {
		return err
	}
	if snapshot != "" {
		_, err = v.conn.Exec(ctx, "SET TRANSACTION SNAPSHOT '"+snapshot+"'")
		return err
	}
	// The first query takes the snapshot; the view is of now.
	_, err = v.conn.Exec(ctx, "SELECT pg_catalog.pg_current_snapshot()")
	return err
}

// Position implements store.View: a slot's snapshot has its position from the
// source, and a fresh one has none that matches.
func (v *view) Position() store.Position { return "" }

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

// Pages implements store.View. The view is in use until it returns: take must
// neither read from it nor close it.
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
	enough, err := v.pages(ctx, o, q, page, take)
	if err != nil {
		v.drop() // the transaction is over, and so is its snapshot
		err = fmt.Errorf("read unsettled rows of outbox %s: %w", q.Outbox, explainOwn(err))
	}
	if enough != nil {
		return enough
	}
	return err
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
		discard(v.store.life, v.conn)
		v.conn = nil
	}
}
