package postgres

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

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
	position store.Position
}

// Begin implements view.Snapshot.
func (v *view) Begin(ctx context.Context) error {
	_, err := v.conn.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
	switch {
	case err != nil:
	case v.snapshot != "":
		_, err = v.conn.Exec(ctx, "SET TRANSACTION SNAPSHOT '"+v.snapshot+"'")
	default: // the first query takes a snapshot
		err = v.conn.QueryRow(ctx, "SELECT pg_catalog.pg_current_snapshot()::text").Scan(&v.position)
	}
	return Explain(err)
}

// Position implements view.Snapshot. The source knows the position of a slot's snapshot.
// A new snapshot orders transactions, which a source by position needs.
func (v *view) Position() store.Position { return v.position }

// Drop implements view.Snapshot.
func (v *view) Drop() { discard(v.lifetime, v.conn) }

// ReadDelivered implements view.Snapshot, by a cursor. A timestamp without time zone is
// read in the session's zone, as everywhere. An infinite timestamp counts as none.
func (v *view) ReadDelivered(ctx context.Context, o *store.Outbox, to *views.DeliveredRows) error {
	return explainOwn(v.readDelivered(ctx, o, to))
}

func (v *view) readDelivered(ctx context.Context, o *store.Outbox, to *views.DeliveredRows) error {
	t, err := describe(ctx, v.conn, o)
	if err != nil {
		return err
	}

	at := t.MustColumn(o.Layout.OrderBy[0])
	switch at.base {
	case pgtype.TimestamptzOID, pgtype.TimestampOID, pgtype.DateOID:
	default:
		return store.OrderTimeError(o, TableName(o), at.full)
	}

	timed, err := v.addDelivered(ctx, t, to, true)
	if err != nil || !timed || at.notNull {
		return err
	}

	_, err = v.addDelivered(ctx, t, to, false)
	return err
}

// addDelivered adds rows with a time in bounds, or rows without a time. It reports
// whether more are wanted.
func (v *view) addDelivered(ctx context.Context, t *table, to *views.DeliveredRows, timed bool) (more bool, err error) {
	more = true
	read := deliveredQuery(t, to, timed)
	err = v.fetch(ctx, "delivered "+t.Name, read, t.scanDelivered, func(it store.Item) bool {
		more = to.Add(it)
		return more
	})
	return more, err
}

// scanDelivered reads a row of deliveredQuery.
func (t *table) scanDelivered(row pgx.CollectableRow) (store.Item, error) {
	it := store.Item{Ref: store.Ref{Outbox: t.Name}, Kind: t.Kind}
	var kind *string
	var group []byte
	var at pgtype.Timestamptz
	if err := row.Scan(&it.ID, &kind, &group, &it.PayloadSize, &at); err != nil {
		return it, err
	}
	t.setLane(&it, kind, group)
	if kind != nil {
		it.Attributes = t.Layout.ReadKind([]byte(*kind)) // Add selects by it
	}
	if at.Valid && at.InfinityModifier == pgtype.Finite {
		it.Committed = at.Time.UTC()
	}
	return it, nil
}

// deliveredQuery returns the statement that reads delivered rows in order. Kinds and groups are compared as texts, because the columns' types and
// collations may treat two of them as equal.
func deliveredQuery(t *table, q *views.DeliveredRows, timed bool) *query {
	b := &builder{}
	c := &t.Layout.Columns
	at := "o." + Ident(t.Layout.OrderBy[0])
	keys, keyed := t.idKeys(q.IDs)

	where := []string{"o." + Ident(c.ID) + " IS NOT NULL", t.state(b).Delivered()}
	if keyed { // IS TRUE for the reason given at open
		where = []string{"o." + Ident(c.ID) + " = ANY (" + b.bind("ids", t.MustColumn(c.ID).typ+"[]", arrayLiteral(keys)) + ")", t.state(b).Delivered() + " IS TRUE"}
	}
	if !timed {
		where = append(where, at+" IS NULL")
	} else {
		where = append(where, at+" IS NOT NULL")
		if !q.Since.IsZero() {
			where = append(where, at+" >= "+b.bind("since", "timestamptz", q.Since))
		}
		if !q.Until.IsZero() {
			where = append(where, at+" < "+b.bind("until", "timestamptz", q.Until))
		}
	}

	if len(q.Kinds) > 0 && c.Kind != "" {
		where = append(where, "coalesce("+t.kind()+`, '') COLLATE "C" = ANY (`+b.bind("kinds", "text[]", arrayLiteral(q.Kinds))+")")
	}
	if len(q.Groups) > 0 && c.Group != "" && len(t.Layout.GroupPath) == 0 {
		names, none := groupNames(q.Groups)
		where = append(where, "(("+t.group()+`) COLLATE "C" = ANY (`+b.bind("groups", "text[]", arrayLiteral(names))+
			") OR "+b.bind("none", "boolean", none)+" AND o."+Ident(c.Group)+" IS NULL)")
	}
	return b.query(
		"SELECT "+t.text(c.ID)+", "+t.ownKind()+", "+t.group()+", "+t.payloadSize()+", "+at+"::timestamptz",
		"FROM "+TableName(t.Outbox)+" AS o",
		"WHERE "+strings.Join(where, "\n  AND "),
		"ORDER BY "+t.order(),
	)
}

// groupNames returns the names of groups, and whether they include rows without a group.
func groupNames(groups []store.Group) (names []string, none bool) {
	for _, g := range groups {
		if g.Valid {
			names = append(names, g.Name)
		} else {
			none = true
		}
	}
	return names, none
}

// uuidForm and numericForm match the forms in which the server writes these types. A numeric of at
// most numericLength characters is within its limits: 131072 digits before the point, 16383 behind it.
var (
	uuidForm    = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	numericForm = regexp.MustCompile(`^-?[0-9]+(\.[0-9]+)?$`)
)

const numericLength = 16 << 10

// idKeys returns the ids that are valid values of the id column's type, because an
// invalid one would fail the statement. can is false if there are no ids to filter by, or
// if validity cannot be decided for the type.
func (t *table) idKeys(ids []string) (keys []string, can bool) {
	bits := 0
	var takes func(id string) bool
	switch t.MustColumn(t.Layout.Columns.ID).base {
	case pgtype.TextOID, pgtype.VarcharOID, pgtype.BPCharOID:
		takes = func(id string) bool { return utf8.ValidString(id) && !strings.Contains(id, "\x00") }
	case pgtype.UUIDOID:
		takes = uuidForm.MatchString
	case pgtype.NumericOID:
		takes = func(id string) bool { return len(id) <= numericLength && numericForm.MatchString(id) }
	case pgtype.Int2OID:
		bits = 16
	case pgtype.Int4OID:
		bits = 32
	case pgtype.Int8OID:
		bits = 64
	}

	if bits > 0 {
		takes = func(id string) bool {
			n, err := strconv.ParseInt(id, 10, bits)
			return err == nil && strconv.FormatInt(n, 10) == id
		}
	}
	if len(ids) == 0 || takes == nil || t.ascii {
		return nil, false
	}

	for _, id := range ids {
		if takes(id) {
			keys = append(keys, id)
		}
	}

	return keys, true
}
