package mysql

import (
	"context"
	"fmt"

	"github.com/sluicebox/sluicebox/store"
	views "github.com/sluicebox/sluicebox/store/internal/view"
)

// View implements store.Viewer. A view is a session of its own with a read-only
// transaction; a store may have several. MySQL and MariaDB have no named snapshots.
// Tables that an open view has read cannot be altered.
func (s *Store) View(ctx context.Context, snapshot string) (store.View, error) {
	if snapshot != "" {
		return nil, fmt.Errorf("open view: MySQL and MariaDB have no named snapshots, got %q", snapshot)
	}
	return views.Open(ctx, s.lifetime, s.outboxes, func(ctx context.Context) (views.Snapshot, error) {
		c, err := dial(ctx, s.viewConfig, "REPEATABLE READ", readSettings())
		return &view{name: s.name, conn: c}, Explain(err)
	})
}

// view is a read-only transaction on one snapshot. Its rows come from a single statement
// that stays open while a page is processed.
type view struct {
	name     string // the relay's name
	conn     *conn
	position store.Position
}

// Begin implements view.Snapshot.
func (v *view) Begin(ctx context.Context) error {
	_, err := v.conn.sqlConn.ExecContext(ctx, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
	if err == nil {
		v.position, err = v.conn.server.snapshotPosition(ctx, v.conn)
	}
	return Explain(err)
}

// Position returns the binlog position of the snapshot as a GTID set. MySQL does not
// report it; there the source reads its position before it opens the view.
func (v *view) Position() store.Position { return v.position }

// Drop implements view.Snapshot.
func (v *view) Drop() { v.conn.close() }
