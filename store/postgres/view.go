package postgres

import (
	"context"
	"fmt"
	"regexp"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/sessions"
	views "github.com/sluicebox/sluicebox/store/internal/view"
)

// snapshotForm matches the names that pg_export_snapshot and CREATE_REPLICATION_SLOT
// return. SET TRANSACTION SNAPSHOT takes no parameter, so the name is checked before it
// becomes part of the statement.
var snapshotForm = regexp.MustCompile(`^[0-9A-Fa-f]{1,16}(-[0-9A-Fa-f]{1,16})*$`)

// View implements store.Viewer. A view is a session of its own in a read-only
// transaction. A store may have several.
func (s *Store) View(ctx context.Context, snapshot string) (store.View, error) {
	if snapshot != "" && !snapshotForm.MatchString(snapshot) {
		return nil, fmt.Errorf("open view: invalid snapshot name %q", snapshot)
	}
	return views.Open(ctx, s.lifetime, s.outboxes, func(ctx context.Context) (views.Snapshot, error) {
		return s.dialView(ctx, snapshot)
	})
}

func (s *Store) dialView(ctx context.Context, snapshot string) (*view, error) {
	conn, err := connect(ctx, s.viewConfig)
	return &view{name: s.name, lifetime: s.lifetime, conn: conn, snapshot: snapshot}, Explain(err)
}

// view is a read-only transaction on one snapshot.
type view struct {
	name     string // the relay's
	lifetime *sessions.Lifetime
	conn     *pgx.Conn
	// snapshot is the name of the snapshot to import, "" for a new one.
	snapshot string
}

// Begin implements view.Snapshot.
func (v *view) Begin(ctx context.Context) error {
	stmt := "SELECT pg_catalog.pg_current_snapshot()" // the first query takes a snapshot
	if v.snapshot != "" {
		stmt = "SET TRANSACTION SNAPSHOT '" + v.snapshot + "'"
	}
	_, err := v.conn.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
	if err == nil {
		_, err = v.conn.Exec(ctx, stmt)
	}
	return Explain(err)
}

// Position implements view.Snapshot. The source knows the position of a slot's snapshot,
// and a new snapshot has no matching position.
func (v *view) Position() store.Position { return "" }

// Drop implements view.Snapshot.
func (v *view) Drop() { discard(v.lifetime, v.conn) }
