package mysql

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/sluicebox/sluicebox/store"
	views "github.com/sluicebox/sluicebox/store/internal/view"
)

const (
	// maxBoundValues is the most ids and lanes that one statement leaves out; the servers
	// take 65535 parameters. Where there are more the program leaves them out.
	maxBoundValues = 40_000
	// minWindow and maxWindow are how many rows are read at a time where the program
	// has to look at each.
	minWindow = 1000
	maxWindow = 100_000
)

// reading is what a call reads of an outbox.
type reading struct {
	table *table
	query store.UnsettledQuery
	relay string
	// hasSpilledTable: there is a table of parked rows.
	hasSpilledTable bool
	// excludeIDs and lanes are what the statement leaves out.
	excludeIDs   []string
	excludeLanes []store.LaneKey
	// excluded is what the program leaves out, nil if it has nothing to do.
	excluded func(*store.Item) bool
}

// Read implements view.Snapshot.
func (v *view) Read(ctx context.Context, o *store.Outbox, q store.UnsettledQuery, to *views.Pages) error {
	return Explain(v.read(ctx, o, q, to))
}

func (v *view) read(ctx context.Context, o *store.Outbox, q store.UnsettledQuery, to *views.Pages) error {
	t, err := v.conn.table(ctx, o)
	if err != nil {
		return err
	}
	parks, err := hasTable(ctx, v.conn, ownPrefix+"parked") // a view needs no own tables
	if err != nil {
		return err
	}
	r := &reading{table: t, query: q, relay: v.name, hasSpilledTable: parks, excludeIDs: q.ExcludeIDs, excludeLanes: q.ExcludedLanes(o)}
	r.splitExclusions()
	// Who knows all that is left out reads as many rows as are wanted, and no more.
	from, window := 0, q.Limit
	if r.excluded != nil {
		window = minWindow
	}
	for {
		n, err := r.window(ctx, v.conn, from, window, to)
		if errors.Is(err, errStopIteration) {
			return nil
		}
		if err != nil || n < window || r.excluded == nil {
			return err
		}
		from, window = from+window, min(2*window, maxWindow)
	}
}

// splitExclusions decides what the program leaves out: groups that stand in JSON, which it
// alone knows, and what is too much for a statement.
func (r *reading) splitExclusions() {
	held, lanes := map[string]struct{}{}, map[store.LaneKey]struct{}{}
	if len(r.excludeLanes) > 0 && (len(r.table.Layout.GroupPath) > 0 || len(r.excludeLanes) > maxBoundValues/2) {
		lanes, r.excludeLanes = store.LaneSet(r.excludeLanes), nil
	}
	if len(r.excludeIDs) > maxBoundValues/2 {
		for _, id := range r.excludeIDs {
			held[id] = struct{}{}
		}
		r.excludeIDs = nil
	}
	if len(held)+len(lanes) == 0 {
		return
	}
	r.excluded = func(it *store.Item) bool {
		_, isHeld := held[it.ID]
		_, isLeft := lanes[it.Lane()]
		return isHeld || isLeft
	}
}

// window reads some rows behind others, and counts what it read.
func (r *reading) window(ctx context.Context, c *conn, from, n int, to *views.Pages) (read int, err error) {
	s := &statement{}
	text := r.text(s) + "\nLIMIT " + s.arg(n) + " OFFSET " + s.arg(from)
	err = c.query(ctx, text, s.args, func(rows *sql.Rows) error {
		read++
		it, err := r.table.scanItem(rows)
		if err != nil || r.excluded != nil && r.excluded(&it) {
			return err
		}
		if !to.Add(it) {
			return errStopIteration
		}
		return nil
	})
	return read, err
}

func (t *table) scanItem(rows *sql.Rows) (store.Item, error) {
	it := store.Item{Ref: store.Ref{Outbox: t.Name}, Kind: t.Kind}
	var kind sql.NullString
	var group []byte
	if err := rows.Scan(&it.ID, &kind, &group, &it.Payload, &it.PayloadSize, &it.RetryCount); err != nil {
		return it, err
	}
	t.setLane(&it, kind, group)
	return it, nil
}

// setLane gives an item the kind and the group that its row has.
func (t *table) setLane(it *store.Item, kind sql.NullString, group []byte) {
	if t.Layout.Columns.Kind != "" {
		it.Kind = kind.String
	}
	it.Group = t.Layout.Group(group)
}

// text is the statement that reads unsettled rows in order.
func (r *reading) text(s *statement) string {
	t := r.table
	c := &t.Layout.Columns
	size := t.payloadSize()
	payload := "CASE WHEN " + size + " <= " + s.arg(r.query.MaxInlinePayload()) + " THEN " + t.payload() + " END"
	text := "SELECT " + strings.Join([]string{
		t.id().textOf(), t.optional(c.Kind), t.group(), payload, size, t.retryCount(),
	}, ", ") + "\nFROM " + TableName(t.Outbox) + " AS o\nWHERE o." + Ident(c.ID) + " IS NOT NULL AND " + t.open(s)
	for held := range slices.Chunk(t.heldKeys(r.excludeIDs), maxKeys) {
		text += "\n  AND " + t.idBytes() + " NOT IN " + s.list(t.heldPlace(), held)
	}
	for lanes := range slices.Chunk(laneKeys(r.excludeLanes), maxKeys) {
		text += "\n  AND " + t.laneBytes(s) + " NOT IN " + s.list("?", lanes)
	}
	if r.hasSpilledTable {
		text += "\n  AND NOT EXISTS (SELECT 1 FROM " + ownPrefix + "parked AS p FORCE INDEX (" + ownPrefix + "parked_id) WHERE p.name = " + s.arg(r.relay) +
			" AND p.outbox = " + s.arg(t.Name) + " AND p.id = " + t.id().bytesOf() + ")"
	}
	return text + "\nORDER BY " + t.order()
}

// payloadSize is an expression for the length of a payload in bytes.
func (t *table) payloadSize() string {
	payload := t.mustColumn(t.Layout.Columns.Payload)
	if payload.family == familyBytes || payload.charset == "utf8mb4" {
		return "COALESCE(OCTET_LENGTH(" + payload.content() + "), 0)"
	}
	return "COALESCE(OCTET_LENGTH(CONVERT(" + payload.content() + " USING utf8mb4)), 0)"
}

// idBytes is an expression for the id by which rows are left out: its value where the
// column's own comparison is exact, else the bytes of its text.
func (t *table) idBytes() string {
	if id := t.id(); id.comparesExactly() && id.family != familyText {
		return "o." + Ident(id.name)
	}
	return t.id().bytesOf()
}

// heldPlace is what stands for a value of idBytes.
func (t *table) heldPlace() string {
	if id := t.id(); id.family == familyDecimal {
		return id.placeholder()
	}
	return "?"
}

// heldKeys are the values of idBytes for some ids. One that no row can have is left
// out.
func (t *table) heldKeys(ids []string) []any {
	var keys []any
	id := t.id()
	for _, text := range ids {
		key, can := id.key(text)
		switch {
		case !can:
		case id.family == familyText:
			keys = append(keys, []byte(text))
		default:
			keys = append(keys, key)
		}
	}
	return keys
}

// laneBytes is an expression for the lane of a row o, as laneKey has it.
func (t *table) laneBytes(s *statement) string {
	c := &t.Layout.Columns
	group := "'-'"
	if c.Group != "" {
		bytes := t.mustColumn(c.Group).bytesOf()
		group = "IF(o." + Ident(c.Group) + " IS NULL, '-', CONCAT('+', " + bytes + "))"
	}
	if c.Kind == "" {
		return "CAST(CONCAT(" + s.arg(kindPart(t.Kind)) + ", " + group + ") AS BINARY)"
	}
	kind := "COALESCE(" + t.mustColumn(c.Kind).bytesOf() + ", '')"
	return "CAST(CONCAT(OCTET_LENGTH(" + kind + "), ' ', " + kind + ", " + group + ") AS BINARY)"
}

func kindPart(kind string) []byte { return []byte(strconv.Itoa(len(kind)) + " " + kind) }

func laneKeys(lanes []store.LaneKey) []any {
	keys := make([]any, len(lanes))
	for i, k := range lanes {
		key := kindPart(k.Kind)
		if k.Group.Valid {
			key = append(append(key, '+'), k.Group.Name...)
		} else {
			key = append(key, '-')
		}
		keys[i] = key
	}
	return keys
}

// hasTable reports whether one of the own tables is there, as far as the account can
// see.
func hasTable(ctx context.Context, c *conn, name string) (there bool, err error) {
	err = c.row(ctx, "SELECT COUNT(*) > 0 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = ?", []any{name}, &there)
	return there, err
}
