package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sluicebox/sluicebox/store"
	views "github.com/sluicebox/sluicebox/store/internal/view"
)

const (
	// maxBoundValues is the maximum number of ids and lanes that one statement excludes,
	// because the servers accept at most 65535 parameters. The program excludes larger
	// numbers itself.
	maxBoundValues = 40_000
	// minWindow and maxWindow are how many rows are read at a time when the program has
	// to check each row.
	minWindow = 1000
	maxWindow = 100_000
)

// reading is one read of an outbox's unsettled rows.
type reading struct {
	table *table
	query store.UnsettledQuery
	relay string
	// hasSpilledTable means that the table of spilled rows exists.
	hasSpilledTable bool
	// excludeIDs and excludeLanes are excluded by the statement.
	excludeIDs   []string
	excludeLanes []store.LaneKey
	// excluded reports whether the program excludes a row; nil if the statement excludes
	// everything.
	excluded func(*store.Item) bool
	// included are the ids of rows to read although they are spilled, if the program decides it: the
	// statement tells then which rows are spilled. nil: the statement decides it.
	included map[string]struct{}
	spilled  bool // the current row
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

	hasSpilled, err := hasTable(ctx, v.conn, string(spilledRows)) // a view works without the relay's tables
	if err != nil {
		return err
	}

	r := &reading{table: t, query: q, relay: v.name, hasSpilledTable: hasSpilled, excludeIDs: q.ExcludeIDs, excludeLanes: q.ExcludedLanes(o)}
	r.splitExclusions()
	r.splitIncluded(v.conn.maxScriptBytes())

	// If the statement excludes everything, one read of Limit rows is enough.
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

// splitExclusions moves exclusions from the statement to the program: groups inside JSON,
// which only the program can extract, and lists that are too long for a statement.
func (r *reading) splitExclusions() {
	var held map[string]struct{}
	var lanes map[store.LaneKey]struct{}
	if len(r.excludeLanes) > 0 && (len(r.table.Layout.GroupPath) > 0 || len(r.excludeLanes) > maxBoundValues/2) {
		lanes, r.excludeLanes = store.LaneSet(r.excludeLanes), nil
	}

	if len(r.excludeIDs) > maxBoundValues/2 {
		held, r.excludeIDs = setOf(r.excludeIDs), nil
	}

	if len(held)+len(lanes) == 0 {
		return
	}
	r.excluded = func(it *store.Item) bool {
		_, isHeld := held[it.ID]
		_, inLane := lanes[it.Lane()]
		return isHeld || inLane
	}
}

// splitIncluded moves the ids to include from the statement to the program, if they are too long for the
// server. The program reads all spilled rows then, so a shorter list stays in the statement.
func (r *reading) splitIncluded(maxBytes int) {
	ids := r.query.IncludeSpilled
	size := 0
	for _, id := range ids {
		size += len(includedID(id)) + len(", ")
	}
	if size <= maxBytes || !r.hasSpilledTable {
		return
	}
	r.query.IncludeSpilled, r.included = nil, setOf(ids)
	before := r.excluded
	r.excluded = func(it *store.Item) bool {
		_, shown := r.included[it.ID]
		return r.spilled && !shown || before != nil && before(it)
	}
}

func setOf(ids []string) map[string]struct{} {
	set := make(map[string]struct{}, len(ids))
	for _, id := range ids {
		set[id] = struct{}{}
	}
	return set
}

// window reads n rows at an offset, and returns how many it read.
func (r *reading) window(ctx context.Context, c *conn, from, n int, to *views.Pages) (read int, err error) {
	s, row := &statement{}, r.table.newRowReader()
	text := r.text(s, row) + "\nLIMIT " + s.arg(n) + " OFFSET " + s.arg(from)
	most := r.query.MaxInlinePayload()
	err = c.query(ctx, text, s.args, func(rows *sql.Rows) error {
		read++
		if err := row.scan(rows); err != nil {
			return err
		}
		it := row.item()
		switch {
		case it.PayloadSize <= most:
			it.Payload, it.Attributes = row.content()
		case r.table.KeepsAttributes():
			_, it.Attributes = row.content()
		}
		if r.excluded != nil && r.excluded(&it) {
			return nil
		}
		if !to.Add(it) {
			return errStopIteration
		}
		return nil
	})

	return read, err
}

// text returns the statement that reads unsettled rows in order.
func (r *reading) text(s *statement, row *rowReader) string {
	t := r.table
	row.addLane()
	row.addContent(func(content string) string {
		return "CASE WHEN " + t.payloadSize() + " <= " + s.arg(r.query.MaxInlinePayload()) + " THEN " + content + " END"
	})
	row.add(t.payloadSize(), &row.size)
	row.add(t.retryCount(), &row.retries)
	if r.included != nil {
		row.add("EXISTS ("+strings.Join(r.spilledAs(s), ") OR EXISTS (")+")", &r.spilled)
	}
	text := "SELECT " + row.list() + "\nFROM " + TableName(t.Outbox) + " AS o\nWHERE o." + Ident(t.Layout.Columns.ID) + " IS NOT NULL AND " + t.open(s)

	for held := range slices.Chunk(t.heldKeys(r.excludeIDs), maxKeys) {
		text += "\n  AND " + t.idBytes() + " NOT IN " + s.list(t.heldPlace(), held)
	}

	for lanes := range slices.Chunk(laneKeys(r.excludeLanes), maxKeys) {
		text += "\n  AND " + t.laneBytes(s) + " NOT IN " + s.list("?", lanes)
	}

	if r.hasSpilledTable && r.included == nil {
		text += "\n  AND (" + r.includedIDs() + "TRUE"
		for _, copies := range r.spilledAs(s) {
			text += "\n  AND NOT EXISTS (" + copies + ")"
		}
		text += ")"
	}
	return text + "\nORDER BY " + t.order()
}

// spilledAs returns the statements that select the copies of a row o, one for each name of its outbox.
func (r *reading) spilledAs(s *statement) (selects []string) {
	for _, name := range r.table.SpilledAs() {
		selects = append(selects, "SELECT 1 FROM "+string(spilledRows)+" AS p FORCE INDEX ("+string(spilledRows)+"_id) WHERE p.name = "+s.arg(r.relay)+
			" AND p.outbox = "+s.arg(name)+" AND p.id = "+r.table.id().bytesOf())
	}
	return selects
}

// includedIDs returns the alternative that a row o is to be read although it is spilled. The ids are
// literals, because they may be more than the parameters of a statement.
func (r *reading) includedIDs() string {
	if len(r.query.IncludeSpilled) == 0 {
		return ""
	}
	ids := make([]string, len(r.query.IncludeSpilled))
	for i, id := range r.query.IncludeSpilled {
		ids[i] = includedID(id)
	}
	return r.table.id().bytesOf() + " IN (" + strings.Join(ids, ", ") + ") OR "
}

func includedID(id string) string { return fmt.Sprintf("x'%x'", id) }

// payloadSize returns an expression for the length of a payload in bytes.
func (t *table) payloadSize() string {
	payload := t.MustColumn(t.Layout.Columns.Payload)
	if payload.family == familyBytes || payload.charset == "utf8mb4" {
		return "COALESCE(OCTET_LENGTH(" + payload.content() + "), 0)"
	}
	return "COALESCE(OCTET_LENGTH(CONVERT(" + payload.content() + " USING utf8mb4)), 0)"
}

// idBytes returns the expression by which ids are excluded: the column itself if it
// compares exactly, otherwise the bytes of its text.
func (t *table) idBytes() string {
	if id := t.id(); id.comparesExactly() && id.family != familyText {
		return "o." + Ident(id.name)
	}
	return t.id().bytesOf()
}

// heldPlace returns the placeholder for a value of idBytes.
func (t *table) heldPlace() string {
	if id := t.id(); id.family == familyDecimal {
		return id.placeholder()
	}
	return "?"
}

// heldKeys returns the values of idBytes for the ids. It skips an id that no row can
// have.
func (t *table) heldKeys(ids []string) []any {
	var keys []any
	id := t.id()
	for _, text := range ids {
		key, valid := id.key(text)
		switch {
		case !valid:
		case id.family == familyText:
			keys = append(keys, []byte(text))
		default:
			keys = append(keys, key)
		}
	}

	return keys
}

// laneBytes returns an expression for the lane of a row o, in the format of laneKeys.
func (t *table) laneBytes(s *statement) string {
	c := &t.Layout.Columns
	group := "'-'"
	switch {
	case len(t.Layout.GroupRest) > 0:
		group = "COALESCE(CONCAT('+', " + t.joinedGroup() + "), '-')"
	case c.Group != "":
		group = "IF(o." + Ident(c.Group) + " IS NULL, '-', CONCAT('+', " + t.groupBytes() + "))"
	}
	if c.Kind == "" {
		return "CAST(CONCAT(" + s.arg(kindPart(t.Kind)) + ", " + group + ") AS BINARY)"
	}
	kind := "COALESCE(" + t.MustColumn(c.Kind).bytesOf() + ", '')"
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

// hasTable reports whether one of the relay's tables exists, as far as the account can
// see.
func hasTable(ctx context.Context, c *conn, name string) (exists bool, err error) {
	err = c.row(ctx, "SELECT COUNT(*) > 0 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = ?", []any{name}, &exists)
	return exists, err
}
