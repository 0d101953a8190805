package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
)

// table is an outbox's table as the database has it, with the statements for it.
type table struct {
	columns.Described[column]
	oid    uint32
	ascii  bool // the database's encoding is not UTF-8
	unique bool // ids are unique

	partitioned bool

	claim [2]*query // the second skips locked rows
	// claimOne, claimMany and completeMany are the hot path.
	claimOne, claimMany, completeMany, untried *query

	rowStates *query
	// write is indexed by the status written; the second of each skips locked rows.
	write    [store.Failed + 1][2]*query
	isFailed *query
	states   *query
}

// column is a column of a table.
type column struct {
	name string
	num  int16
	// typ is the type without its modifier, in which values are bound. With the modifier,
	// an id too long for varchar(13) would be cut to an id that exists.
	typ string
	// full is the type with its modifier. A time is rounded to it as the column stores
	// it.
	full string
	// base is the OID of the type; for a domain, of its base type.
	base uint32
	// limit is the maximum number of characters that the column holds, 0 if unlimited.
	limit int
	// labels are the values of an enumeration.
	labels []string
	// category is the type's pg_type.typcategory; for a domain, its base type's.
	category string
	notNull  bool
	// collation is the column's collation, quoted, if it is deterministic; "" if it
	// treats different texts as equal, or if the column has none.
	collation string
}

// findTable looks up a table or partitioned table. Other kinds are rejected: a view
// cannot be in a publication, and a foreign table has no xid.
const findTable = `
SELECT c.oid, current_setting('server_encoding') <> 'UTF8', c.relkind::text,
  NOT (c.relkind = 'r' AND c.relhassubclass) AND EXISTS (SELECT FROM pg_catalog.pg_index i JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
    WHERE i.indrelid = c.oid AND a.attname = $3 AND i.indisunique AND i.indimmediate AND i.indisvalid
      AND i.indnkeyatts = 1 AND i.indpred IS NULL),
  coalesce((SELECT a.attname::text FROM pg_catalog.pg_attribute a LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND pg_catalog.has_column_privilege(c.oid, a.attnum, 'SELECT')
      AND (a.attidentity <> '' OR pg_catalog.pg_get_expr(d.adbin, d.adrelid) LIKE 'nextval(%') ORDER BY a.attnum LIMIT 1), '')
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relname = $1 AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
  AND CASE WHEN $2 = '' THEN pg_catalog.pg_table_is_visible(c.oid) ELSE n.nspname = $2 END`

const findColumns = `
SELECT a.attname::text, a.attnum,
  pg_catalog.format_type(a.atttypid, -1),
  pg_catalog.format_type(a.atttypid, a.atttypmod),
  CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END,
  CASE t.typtype WHEN 'd' THEN t.typtypmod ELSE a.atttypmod END,
  ARRAY(SELECT e.enumlabel::text FROM pg_catalog.pg_enum e WHERE e.enumtypid = t.oid ORDER BY e.enumsortorder),
  t.typcategory::text, a.attnotnull,
  coalesce((SELECT pg_catalog.format('%I.%I', n.nspname, l.collname)
    FROM pg_catalog.pg_collation l JOIN pg_catalog.pg_namespace n ON n.oid = l.collnamespace
    WHERE l.oid = a.attcollation AND l.collisdeterministic), '')
FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum`

// sameName is a columns.SameName.
func sameName(a, b string) bool { return a == b }

// describe reads an outbox's table from the catalog.
func describe(ctx context.Context, conn *pgx.Conn, o *store.Outbox) (*table, error) {
	t, err := readTable(ctx, conn, o)
	if err == nil {
		err = t.CheckComplete()
	}
	return t, err
}

func readTable(ctx context.Context, conn *pgx.Conn, o *store.Outbox) (*table, error) {
	if o.MessagePrefix != "" {
		return messageTable(o), nil
	}
	t := &table{Described: columns.Described[column]{Outbox: o, Quoted: TableName(o), Same: sameName}}
	var kind string
	err := conn.QueryRow(ctx, findTable, o.Table, o.Schema, o.Layout.Columns.ID).Scan(&t.oid, &t.ascii, &kind, &t.unique, &t.Inserted)
	if err == pgx.ErrNoRows {
		return nil, &store.SetupError{
			Problem: fmt.Sprintf("outbox %s: table %s does not exist, or the role cannot see it", o.Name, TableName(o)),
			Remedy:  "create it, or check the table's name and schema in the configuration",
		}
	}
	if err != nil {
		return nil, fmt.Errorf("look up table %s: %w", TableName(o), Explain(err))
	}
	if kind != "r" && kind != "p" {
		return nil, &store.SetupError{
			Problem: fmt.Sprintf("outbox %s: %s is not a table", o.Name, TableName(o)),
			Remedy:  "name the table that the services insert into",
		}
	}

	t.partitioned = kind == "p"
	rows, err := conn.Query(ctx, findColumns, t.oid)
	if err != nil {
		return nil, fmt.Errorf("look up columns of %s: %w", TableName(o), Explain(err))
	}

	t.Columns, err = pgx.CollectRows(rows, scanColumn)
	if err != nil {
		return nil, fmt.Errorf("look up columns of %s: %w", TableName(o), Explain(err))
	}
	return t, nil
}

func scanColumn(row pgx.CollectableRow) (column, error) {
	var c column
	var typmod int32
	if err := row.Scan(&c.name, &c.num, &c.typ, &c.full, &c.base, &typmod, &c.labels, &c.category, &c.notNull, &c.collation); err != nil {
		return c, err
	}
	// The modifier of a character type is its length plus 4.
	if (c.base == pgtype.VarcharOID || c.base == pgtype.BPCharOID) && typmod > 4 {
		c.limit = int(typmod) - 4
	}
	return c, nil
}

// Name implements columns.Column.
func (c column) Name() string { return c.name }

// NotNull implements columns.Column.
func (c column) NotNull() bool { return c.notNull }

// text returns an expression for a column's value in the type's own text form, which is
// also the log's. A cast does not work, because it strips the blanks of a char(n). IS NULL does
// not either, because it is true of a composite value whose fields are all NULL.
func (t *table) text(name string) string {
	ref := "o." + Ident(name)
	switch t.MustColumn(name).base {
	case pgtype.TextOID, pgtype.VarcharOID, pgtype.JSONOID, pgtype.JSONBOID, pgtype.UUIDOID:
		return ref + "::text"
	}
	return "CASE WHEN " + ref + " IS DISTINCT FROM NULL THEN pg_catalog.format('%s', " + ref + ") END"
}

// payload returns an expression for the payload.
func (t *table) payload() string { return t.content(t.Layout.Columns.Payload) }

// group returns an expression for the value that Layout.Group reads.
func (t *table) group() string {
	name := t.Layout.Columns.Group
	switch {
	case name == "":
		return "NULL::text"
	case len(t.Layout.GroupRest) > 0:
		return t.joinedGroup()
	case len(t.Layout.GroupPath) > 0:
		return t.content(name)
	}
	return t.text(name)
}

// joinedGroup returns an expression for a group over several columns, as
// store.Layout.GroupOfColumns joins them.
func (t *table) joinedGroup() string {
	var parts, nulls []string
	for _, name := range t.Layout.GroupColumns() {
		parts = append(parts, `coalesce(replace(replace(`+t.text(name)+`, E'\\', E'\\\\'), '/', E'\\/'), E'\\N')`)
		nulls = append(nulls, "o."+Ident(name)+" IS NOT DISTINCT FROM NULL")
	}
	return "CASE WHEN NOT (" + strings.Join(nulls, " AND ") + ") THEN " + strings.Join(parts, " || '/' || ") + " END"
}

// attributes returns an expression for the texts of the attribute columns, in the order of the
// layout. It is "" if the layout has none, so that other statements stay as they are.
func (t *table) attributes() string {
	if len(t.Layout.Attributes) == 0 {
		return ""
	}
	texts := make([]string, len(t.Layout.Attributes))
	for i := range t.Layout.Attributes {
		texts[i] = t.text(t.Layout.Attributes[i].Column)
	}
	return "ARRAY[" + strings.Join(texts, ", ") + "]::text[]"
}

// readAttributes returns the attributes for the value of that expression; nil stands for a row
// whose content was not read.
func readAttributes(l *store.Layout, texts []*string) store.Attributes {
	if texts == nil {
		return nil
	}
	return l.ReadAttributes(func(i int) []byte {
		if texts[i] == nil {
			return nil
		}
		return []byte(*texts[i])
	})
}

// content returns an expression for a column's content: the bytes of a bytea, the text of
// any other type.
func (t *table) content(name string) string {
	if t.MustColumn(name).base == pgtype.ByteaOID {
		return "o." + Ident(name)
	}
	return t.text(name)
}

// state prints conditions on the state of a row o.
func (t *table) state(b *builder) columns.State {
	return columns.State{
		Layout: &t.Layout,
		Column: func(name string) string { return "o." + Ident(name) },
		Bind:   func(value any) string { return t.bindStatus(b, value) },
	}
}

// bindStatus binds a value of the status column.
func (t *table) bindStatus(b *builder, value any) string {
	text := fmt.Sprint(value)
	return b.bind("status "+text, t.MustColumn(t.Layout.Columns.Status).typ, text)
}

// open returns the condition that a row o, looked up by its id, is unsettled. IS TRUE keeps
// the planner from an index on the status. While the table is empty that index looks as good
// as the one on the id, and with a backlog it is a scan per row.
func (t *table) open(b *builder) string { return t.state(b).Unsettled() + " IS TRUE" }

// order returns the layout's order-by for rows o, then a serial column if there is one,
// then the id. The ctid gives no order, because new rows fill the space of deleted rows
// and a claim moves a row.
func (t *table) order() string {
	return t.OrderBy(func(name string) string { return "o." + Ident(name) })
}

// noTable returns a relation without rows in place of the table of an outbox of messages. The
// statements of a layout that is LogOnly write nothing, so it serves for all of them.
func noTable(o *store.Outbox) string {
	l := store.MessageLayout(o.Layout)
	var list []string
	for _, u := range columns.UsedColumns(&l) {
		list = append(list, "NULL::text AS "+Ident(u.Column))
	}
	return "(SELECT " + strings.Join(list, ", ") + " WHERE false)"
}

// messageTable describes that relation.
func messageTable(o *store.Outbox) *table {
	box := *o
	box.Layout = store.MessageLayout(o.Layout)
	t := &table{Described: columns.Described[column]{Outbox: &box, Quoted: TableName(&box), Same: sameName}}
	for i, u := range columns.UsedColumns(&box.Layout) {
		t.Columns = append(t.Columns, column{name: u.Column, num: int16(i + 1), typ: "text", full: "text", base: pgtype.TextOID})
	}
	return t
}
