package sqlite

import (
	"context"
	"database/sql/driver"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
)

// affinity is the type that a column converts values to, see
// https://www.sqlite.org/datatype3.html, section 3.1.
type affinity uint8

const (
	affinityBlob affinity = iota // no conversion
	affinityText
	affinityInteger
	affinityReal
	affinityNumeric
)

func columnAffinity(declared string) affinity {
	declared = strings.ToUpper(declared)
	has := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(declared, p) })
	}
	switch {
	case has("INT"):
		return affinityInteger
	case has("CHAR", "CLOB", "TEXT"):
		return affinityText
	case declared == "" || has("BLOB") || declared == "ANY":
		return affinityBlob
	case has("REAL", "FLOA", "DOUB"): //nolint:misspell // it is SQLite's rule
		return affinityReal
	}
	return affinityNumeric
}

// column is a column of a table.
type column struct {
	name     string
	declared string
	affinity affinity
	notNull  bool
}

// table is an outbox's table as the database describes it, with the statements built for it.
type table struct {
	columns.Described[column]
	kind string // table, view, virtual or shadow

	claim, readRow, readPayload, isFailed, prune *query
	write                                        [store.Failed + 1]*query // by the status to write
}

// describe reads the columns of an outbox's table and checks that none is missing.
func describe(ctx context.Context, conn *Conn, o *store.Outbox) (*table, error) {
	t, err := readTable(ctx, conn, o)
	if err == nil {
		err = t.CheckComplete()
	}
	return t, err
}

func readTable(ctx context.Context, conn *Conn, o *store.Outbox) (*table, error) {
	t := &table{Described: columns.Described[column]{Outbox: o, Quoted: TableName(o), Same: strings.EqualFold}}
	bare := false // WITHOUT ROWID
	read := func(row []driver.Value) error { t.kind, _ = textOf(row[0]); bare = row[1] != int64(0); return nil }
	err := conn.Query(ctx, "SELECT type, wr FROM pragma_table_list WHERE schema = 'main' AND name = ? COLLATE NOCASE", []any{o.Table}, read)
	if err != nil {
		return nil, fmt.Errorf("look up table %s: %w", TableName(o), err)
	}

	switch t.kind {
	case "table":
	case "":
		return nil, &store.SetupError{
			Problem: fmt.Sprintf("outbox %s: no table %s in %s", o.Name, TableName(o), conn.Path()),
			Remedy:  "create it, or check its name and the path in the configuration",
		}
	default:
		return nil, &store.SetupError{
			Problem: fmt.Sprintf("outbox %s: %s is a %s, not an ordinary table", o.Name, TableName(o), t.kind),
			Remedy:  "use the table that the services insert into",
		}
	}

	err = conn.Query(ctx, "SELECT name, type, \"notnull\" FROM pragma_table_xinfo(?)", []any{o.Table}, func(row []driver.Value) error {
		name, _ := textOf(row[0])
		declared, _ := textOf(row[1])
		t.Columns = append(t.Columns, column{name: name, declared: declared, affinity: columnAffinity(declared), notNull: row[2] != int64(0)})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look up columns of %s: %w", TableName(o), err)
	}
	if !bare {
		t.Inserted = t.nameOfRowid()
	}
	return t, nil
}

// nameOfRowid returns a name of the rowid that no column has.
func (t *table) nameOfRowid() string {
	for _, name := range []string{"rowid", "_rowid_", "oid"} {
		if !t.Has(name) {
			return name
		}
	}
	return ""
}

// Name implements columns.Column.
func (c column) Name() string { return c.name }

// NotNull implements columns.Column.
func (c column) NotNull() bool { return c.notNull }

// keys returns the values that an id may stand for, in the order of lookup. For example, the
// id 7 in a column without affinity is the text '7' or the integer 7.
func (t *table) keys(id string) []any {
	if body, ok := strings.CutPrefix(id, "x'"); ok {
		if body, ok := strings.CutSuffix(body, "'"); ok {
			if raw, err := hex.DecodeString(body); err == nil {
				return []any{raw, id}
			}
		}
	}
	n, err := strconv.ParseInt(id, 10, 64)
	if err != nil || strconv.FormatInt(n, 10) != id {
		return []any{id}
	}
	switch t.MustColumn(t.Layout.Columns.ID).affinity {
	case affinityText:
		return []any{id}
	case affinityBlob:
		return []any{id, n}
	}
	return []any{n}
}

// IDText returns an expression for the canonical text of an id. It is NULL for an invalid
// id: NULL, or a REAL number, whose text is not exact.
func IDText(expression string) string {
	return "CASE typeof(" + expression + ") WHEN 'blob' THEN 'x''' || lower(hex(" + expression + ")) || '''' " +
		"WHEN 'real' THEN NULL ELSE CAST(" + expression + " AS TEXT) END"
}

// PayloadOf returns an expression for a payload: a BLOB unchanged, any other value as text.
// It also prevents the driver from parsing a time in a column that is declared as one.
func PayloadOf(expression string) string {
	return "CASE typeof(" + expression + ") WHEN 'blob' THEN " + expression + " ELSE CAST(" + expression + " AS TEXT) END"
}

// payloadSize is an expression for the size of a payload that is not read, in bytes of the
// file. A text in a UTF-16 file has up to twice as many as the relay reads.
func (t *table) payloadSize() string { return PayloadSizeOf(Ident(t.Layout.Columns.Payload)) }

// PayloadSizeOf returns an expression for the size of a payload in bytes of the file. SQLite
// computes it without reading the payload of a column.
func PayloadSizeOf(expression string) string { return "coalesce(octet_length(" + expression + "), 0)" }

// TextOf returns an expression for a value as text.
func TextOf(expression string) string { return "CAST(" + expression + " AS TEXT)" }

// GroupOf returns an expression for the text from which store.Layout.Group reads the group of a
// row. The texts of several columns are joined as store.Layout.GroupOfColumns joins them. ref
// returns a reference to a column.
func GroupOf(l *store.Layout, ref func(column string) string) string {
	switch {
	case l.Columns.Group == "":
		return "NULL"
	case len(l.GroupRest) == 0:
		return TextOf(ref(l.Columns.Group))
	}
	var parts, nulls []string
	for _, name := range append([]string{l.Columns.Group}, l.GroupRest...) {
		parts = append(parts, `coalesce(replace(replace(`+TextOf(ref(name))+`, '\', '\\'), '/', '\/'), '\N')`)
		nulls = append(nulls, ref(name)+" IS NULL")
	}
	return "CASE WHEN NOT (" + strings.Join(nulls, " AND ") + ") THEN " + strings.Join(parts, " || '/' || ") + " END"
}

// AttributesOf returns an expression for the attribute columns of a row, as ReadAttributes reads
// it.
func AttributesOf(l *store.Layout, ref func(column string) string) string {
	if len(l.Attributes) == 0 {
		return "NULL"
	}
	texts := make([]string, len(l.Attributes))
	for i := range l.Attributes {
		texts[i] = TextOf(ref(l.Attributes[i].Column))
	}
	return "json_array(" + strings.Join(texts, ", ") + ")"
}

// ReadAttributes returns the attributes of a row for the value of that expression. NULL stands
// for a row whose content was not read.
func ReadAttributes(l *store.Layout, value driver.Value) (store.Attributes, error) {
	list := BytesOf(value)
	if list == nil {
		return nil, nil
	}
	var texts []*string
	if err := json.Unmarshal(list, &texts); err != nil || len(texts) != len(l.Attributes) {
		return nil, fmt.Errorf("attributes of layout %s are %.100q: %w", l.Name, list, err)
	}
	return l.ReadAttributes(func(i int) []byte {
		if texts[i] == nil {
			return nil
		}
		return []byte(*texts[i])
	}), nil
}

func (t *table) group() string      { return GroupOf(&t.Layout, Ident) }
func (t *table) attributes() string { return AttributesOf(&t.Layout, Ident) }

// ownKind is an expression for the kind of a row itself.
func (t *table) ownKind() string { return optional(t.Layout.KindColumn()) }

// payload is an expression for the payload. NULL is empty, because nil stands for a payload that
// was not read.
func (t *table) payload() string {
	return "coalesce(" + PayloadOf(Ident(t.Layout.Columns.Payload)) + ", '')"
}

// retryCount is an expression for the retry count.
func (t *table) retryCount() string {
	if t.Layout.Columns.RetryCount == "" || t.Layout.State == store.StateNone {
		return "0"
	}
	return "CAST(coalesce(" + Ident(t.Layout.Columns.RetryCount) + ", 0) AS INTEGER)"
}

// values are the values of a statement's parameters.
type values struct {
	key     any
	wants   bool
	at      time.Time
	outcome *store.Outcome
	settled any
}

// query is a statement with the functions that return its parameters, in order.
type query struct {
	sql    string
	params []func(*values) any
}

func (q *query) args(v *values) []any {
	list := make([]any, len(q.params))
	for i, param := range q.params {
		list[i] = param(v)
	}
	return list
}

// builder collects the parameters of a statement. Call its methods in the order in which the
// parameters stand in the text.
type builder struct{ params []func(*values) any }

func (b *builder) arg(param func(*values) any) string {
	b.params = append(b.params, param)
	return "?"
}

func (b *builder) key() string { return b.arg(func(v *values) any { return v.key }) }

// bind is arg for a parameter with the same value in each call.
func (b *builder) bind(value any) string { return b.arg(func(*values) any { return value }) }

// state prints conditions on the state of a row.
func (t *table) state(b *builder) columns.State {
	return columns.State{Layout: &t.Layout, Column: Ident, Bind: b.bind}
}

// order is the layout's order-by, then the order of insertion, then the id.
func (t *table) order() string { return t.OrderBy(Ident) }

// CheckTable returns a *store.SetupError if an outbox's table or a column of its layout does
// not exist.
func CheckTable(ctx context.Context, conn *Conn, o *store.Outbox) error {
	_, err := describe(ctx, conn, o)
	return err
}
