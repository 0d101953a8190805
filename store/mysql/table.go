package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
)

// table is an outbox's table as the database describes it.
type table struct {
	columns.Described[column]
	// index is the index that finds rows by id; "" if there is none.
	index string
	// unique means that no two rows share an id, except on a partitioned table whose
	// unique index begins with the id.
	unique bool
	// single means that the id column alone is unique, as the column compares.
	single bool
	// engine is the storage engine.
	engine string
}

const findTable = `
SELECT table_type, COALESCE(engine, ''), COALESCE(create_options, '') LIKE '%partitioned%' FROM information_schema.tables
WHERE table_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND table_name = ?`

const findColumns = `
SELECT column_name, data_type, column_type, COALESCE(character_set_name, ''), COALESCE(collation_name, ''),
  COALESCE(character_maximum_length, 0), COALESCE(numeric_scale, 0), COALESCE(datetime_precision, 0), is_nullable = 'NO',
  extra LIKE '%auto_increment%' AND FIND_IN_SET('select', privileges) > 0
FROM information_schema.columns
WHERE table_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND table_name = ? ORDER BY ordinal_position`

// findIndexes returns the query for the indexes that begin with the id and may be named:
// unique ones first, and of these the ones with the fewest columns. An index on a prefix
// of a text finds rows but does not prove uniqueness.
func (s *server) findIndexes() string {
	return `
SELECT i.index_name, i.non_unique = 0 AND i.sub_part IS NULL AS makes_unique,
  (SELECT COUNT(*) FROM information_schema.statistics k
    WHERE k.table_schema = i.table_schema AND k.table_name = i.table_name AND k.index_name = i.index_name) AS width
FROM information_schema.statistics i
WHERE i.table_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND i.table_name = ? AND i.seq_in_index = 1 AND i.column_name = ?
  AND i.index_type = 'BTREE' AND i.` + s.visible() + `
ORDER BY makes_unique DESC, width, i.index_name = 'PRIMARY' DESC, i.index_name`
}

// describe reads the description of an outbox's table from the catalog.
func describe(ctx context.Context, c *conn, o *store.Outbox) (*table, error) {
	t, err := readTable(ctx, c, o)
	if err == nil {
		err = t.CheckComplete()
	}
	return t, err
}

func readTable(ctx context.Context, c *conn, o *store.Outbox) (*table, error) {
	t := &table{Described: columns.Described[column]{Outbox: o, Quoted: TableName(o), Same: strings.EqualFold}}
	var kind string
	var partitioned bool
	err := c.row(ctx, findTable, []any{o.Schema, o.Table}, &kind, &t.engine, &partitioned)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, &store.SetupError{
			Problem: fmt.Sprintf("outbox %s: no table %s visible to the account in database %s", o.Name, TableName(o), cmp.Or(o.Schema, c.server.database)),
			Remedy:  "create it, or check the table's name and schema in the configuration, and the account's rights",
		}
	case err != nil:
		return nil, fmt.Errorf("look up table %s: %w", TableName(o), err)
	case kind != "BASE TABLE" && kind != "SYSTEM VERSIONED":
		return nil, &store.SetupError{
			Problem: fmt.Sprintf("outbox %s: %s is not a table", o.Name, TableName(o)),
			Remedy:  "name the table that the services insert into",
		}
	}

	if t.Columns, err = readColumns(ctx, c, o); err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(t.Columns, func(c column) bool { return c.serial }); i >= 0 {
		t.Inserted = t.Columns[i].name
	}
	err = c.query(ctx, c.server.findIndexes(), []any{o.Schema, o.Table, o.Layout.Columns.ID}, func(rows *sql.Rows) error {
		var name string
		var unique bool
		var width int
		err := rows.Scan(&name, &unique, &width)
		if t.index == "" {
			t.index, t.single = name, unique && width == 1
			t.unique = t.single || unique && partitioned
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look up indexes of %s: %w", TableName(o), err)
	}

	return t, nil
}

// readColumns reads the columns of an outbox's table in their order.
func readColumns(ctx context.Context, c *conn, o *store.Outbox) (list []column, err error) {
	err = c.query(ctx, findColumns, []any{o.Schema, o.Table}, func(rows *sql.Rows) error {
		var col column
		var limit uint64 // 2^32 - 1 for a longtext
		err := rows.Scan(&col.name, &col.typ, &col.full, &col.charset, &col.collation, &limit, &col.scale, &col.fraction, &col.notNull, &col.serial)
		col.typ = strings.ToLower(col.typ)
		col.family, col.unsigned, col.limit = familyOf(col.typ), strings.Contains(col.full, "unsigned"), int(limit)
		list = append(list, col)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look up columns of %s: %w", TableName(o), err)
	}

	return list, nil
}

// Name implements columns.Column.
func (c column) Name() string { return c.name }

// NotNull implements columns.Column.
func (c column) NotNull() bool { return c.notNull }

func (t *table) id() column { return t.MustColumn(t.Layout.Columns.ID) }

// from returns the table as o with an index hint. Without the hint the server may scan a
// small table, and lock rows outside the call.
func (t *table) from() string {
	name := TableName(t.Outbox) + " AS o"
	if t.index != "" {
		name += " FORCE INDEX (" + Ident(t.index) + ")"
	}
	return name
}

// retryCount returns an expression for the retry count.
func (t *table) retryCount() string {
	if t.Layout.Columns.RetryCount == "" || t.Layout.State == store.StateNone {
		return "0"
	}
	return "COALESCE(o." + Ident(t.Layout.Columns.RetryCount) + ", 0)"
}

// optional returns an expression for the text of a column; NULL if the layout does not
// have it.
func (t *table) optional(name string) string {
	if name == "" {
		return "NULL"
	}
	return t.MustColumn(name).textOf()
}

// group returns an expression for the input of Layout.Group.
func (t *table) group() string {
	name := t.Layout.Columns.Group
	switch {
	case len(t.Layout.GroupRest) > 0:
		return t.joinedGroup()
	case name != "" && len(t.Layout.GroupPath) > 0:
		return t.MustColumn(name).content()
	}
	return t.optional(name)
}

// groupColumns returns the columns of the group; nil if the layout has none.
func (t *table) groupColumns() (list []column) {
	for _, name := range t.Layout.GroupColumns() {
		list = append(list, t.MustColumn(name))
	}
	return list
}

// joinedGroup returns an expression for the bytes of a group over several columns, joined as
// Layout.GroupOfColumns does. Bytes have no collation, so the columns may have several. The
// literals, a backslash, a slash and a backslash with N, depend on no sql_mode.
func (t *table) joinedGroup() string {
	var absent, parts []string
	for _, c := range t.groupColumns() {
		absent = append(absent, "o."+Ident(c.name)+" IS NULL")
		parts = append(parts, "COALESCE(REPLACE(REPLACE("+c.bytesOf()+", X'5C', X'5C5C'), X'2F', X'5C2F'), X'5C4E')")
	}
	return "IF(" + strings.Join(absent, " AND ") + ", NULL, CONCAT(" + strings.Join(parts, ", X'2F', ") + "))"
}

// groupBytes returns an expression for the UTF-8 bytes of the group.
func (t *table) groupBytes() string {
	if len(t.Layout.GroupRest) > 0 {
		return t.joinedGroup()
	}
	return t.MustColumn(t.Layout.Columns.Group).bytesOf()
}

// kindIsAttribute reports whether a row's own kind is an attribute and not part of its lane.
func (t *table) kindIsAttribute() bool { return t.Layout.KindColumn() != t.Layout.Columns.Kind }

// payload returns an expression for the payload.
func (t *table) payload() string { return t.MustColumn(t.Layout.Columns.Payload).content() }

// state prints conditions on the state of a row o.
func (t *table) state(s *statement) columns.State {
	return columns.State{Layout: &t.Layout, Column: func(name string) string { return "o." + Ident(name) }, Bind: s.arg}
}

// open returns the condition that a row o is unsettled.
func (t *table) open(s *statement) string { return t.state(s).Unsettled() }

// status returns the value of a status in the status column.
func (t *table) status(to store.Status) any { return columns.Stored(&t.Layout, to) }

// order returns the ORDER BY list for rows o: the layout's order-by, an AUTO_INCREMENT
// column if there is one, and the id.
func (t *table) order() string {
	return t.OrderBy(func(name string) string { return "o." + Ident(name) })
}

// family groups the types that the relay treats alike.
type family uint8

const (
	familyOther family = iota
	familyText
	familyBytes
	familyInteger
	familyDecimal
	familyTime
	familyUUID
	familyJSON
)

// familyOf returns the family of a type name in information_schema.
func familyOf(dataType string) family {
	switch dataType {
	case "char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set":
		return familyText
	case "binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob":
		return familyBytes
	case "tinyint", "smallint", "mediumint", "int", "bigint":
		return familyInteger
	case "decimal":
		return familyDecimal
	case "datetime", "timestamp":
		return familyTime
	case "uuid":
		return familyUUID
	case "json":
		return familyJSON
	}

	return familyOther
}

// column is a column of a table.
type column struct {
	name      string
	typ       string // e.g. varchar
	full      string // e.g. varchar(26)
	family    family
	unsigned  bool
	charset   string // of a text
	collation string
	limit     int // maximum length of a text in characters, or in bytes
	scale     int // fractional digits of a decimal
	fraction  int // fractional digits of a time's seconds
	notNull   bool
	serial    bool // AUTO_INCREMENT
}

// textOf returns an expression for a column's value as text. Bytes become an SQL literal,
// e.g. 0x0a1b.
func (c column) textOf() string {
	ref := "o." + Ident(c.name)
	switch c.family {
	case familyInteger, familyDecimal:
		return c.withoutZerofill(ref)
	case familyText, familyTime, familyUUID:
		return ref
	case familyBytes:
		return "CONCAT('0x', LOWER(HEX(" + ref + ")))"
	}
	return "CAST(" + ref + " AS CHAR)"
}

// withoutZerofill returns an expression for a number without ZEROFILL's zeros, because
// the binlog does not contain them. Only unsigned columns are zero-filled.
func (c column) withoutZerofill(ref string) string {
	switch {
	case !strings.Contains(c.full, "zerofill"):
		return ref
	case c.family == familyDecimal:
		return "CAST(" + ref + " AS DECIMAL(65, " + strconv.Itoa(c.scale) + "))"
	}
	return "CAST(" + ref + " AS UNSIGNED)"
}

// bytesOf returns an expression for the UTF-8 bytes of a column's text, so that only
// identical texts compare as equal.
func (c column) bytesOf() string {
	if c.family == familyText && c.charset == "utf8mb4" && c.typ != "enum" && c.typ != "set" {
		return "CAST(o." + Ident(c.name) + " AS BINARY)"
	}
	return "CAST(CONVERT(" + c.textOf() + " USING utf8mb4) AS BINARY)"
}

// content returns an expression for a column's content: raw bytes, or the text of any
// other type.
func (c column) content() string {
	if c.family == familyBytes {
		return "o." + Ident(c.name)
	}
	return c.textOf()
}

// Formats of ids.
var (
	decimalForm = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.([0-9]+))?$`)
	uuidForm    = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
)

// key returns an id as a value of the column's type, and false if no row can have this
// id.
func (c column) key(id string) (any, bool) {
	switch c.family {
	case familyText:
		return id, utf8.ValidString(id)
	case familyBytes:
		body, ok := strings.CutPrefix(id, "0x")
		raw, err := hex.DecodeString(body)
		return raw, ok && err == nil && body == strings.ToLower(body)
	case familyInteger:
		return c.integerKey(id)
	case familyDecimal:
		form := decimalForm.FindStringSubmatch(id)
		return id, form != nil && len(form[3]) == c.scale
	case familyUUID:
		return id, uuidForm.MatchString(id)
	}

	return nil, false
}

func (c column) integerKey(id string) (any, bool) {
	if c.unsigned {
		n, err := strconv.ParseUint(id, 10, 64)
		return n, err == nil && strconv.FormatUint(n, 10) == id
	}
	n, err := strconv.ParseInt(id, 10, 64)
	return n, err == nil && strconv.FormatInt(n, 10) == id
}

// placeholder returns the placeholder of a key in a statement. It has the type and
// collation of the column, so that an index on the column can be used.
func (c column) placeholder() string {
	switch {
	case c.family == familyDecimal:
		return "CAST(? AS DECIMAL(65, " + strconv.Itoa(c.scale) + "))"
	case c.family == familyText && c.charset != "utf8mb4":
		// Characters that the column's charset lacks must match no row, and not raise an
		// error.
		return "CONVERT(CAST(? AS CHAR CHARACTER SET utf8mb4) USING " + c.charset + ") COLLATE " + c.collation
	}
	return "?"
}

// comparesExactly reports whether the column's comparison treats only identical keys as
// equal.
func (c column) comparesExactly() bool {
	return c.family != familyText || c.collation == "utf8mb4_0900_bin" || strings.HasSuffix(c.collation, "_nopad_bin")
}

// time returns a time as the column stores it, because MySQL would round the excess
// digits and MariaDB would truncate them.
func (c column) time(t time.Time) string {
	form := "2006-01-02 15:04:05"
	if c.fraction > 0 {
		form += "." + strings.Repeat("0", c.fraction)
	}
	return c.truncateTime(t).Format(form)
}

// truncateTime truncates a time to the precision of the column.
func (c column) truncateTime(t time.Time) time.Time {
	unit := time.Second
	for range c.fraction {
		unit /= 10
	}
	return t.UTC().Truncate(unit)
}

// readTime parses a time as the server prints it. It returns false for the zero date.
func readTime(text string) (time.Time, bool) {
	t, err := time.ParseInLocation("2006-01-02 15:04:05", text, time.UTC)
	return t, err == nil
}

// maxInteger returns the largest integer that the column holds.
func (c column) maxInteger() int64 {
	bits := map[string]int{"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32}[c.typ]
	switch {
	case bits == 0:
		return math.MaxInt64
	case c.unsigned:
		return 1<<bits - 1
	}
	return 1<<(bits-1) - 1
}

// minInteger returns the smallest one.
func (c column) minInteger() int64 {
	if c.unsigned {
		return 0
	}
	return -c.maxInteger() - 1
}

// labels returns the values of an ENUM; nil for any other type. The full type of an ENUM
// is, for example, enum('a','it”s').
func (c column) labels() []string {
	body, ok := strings.CutPrefix(c.full, "enum('")
	if !ok {
		return nil
	}
	list := strings.Split(strings.TrimSuffix(body, "')"), "','")
	for i, label := range list {
		list[i] = strings.ReplaceAll(label, "''", "'")
	}
	return list
}

// assign returns the SET list of a statement; value provides the value to bind for each
// column, or valuesByKey. An outcome without an error keeps the row's text.
func (t *table) assign(s *statement, set []columns.Assignment, value func(c column, a columns.Assignment) any) string {
	return columns.SetList(set, func(name string) string { return "o." + Ident(name) }, func(a columns.Assignment) string {
		v := value(t.MustColumn(a.Column), a)
		if each, differ := v.(valuesByKey); differ {
			return t.choose(s, each)
		}
		bound := s.arg(v)
		if a.Value == columns.Error {
			return "COALESCE(NULLIF(" + bound + ", ''), o." + Ident(a.Column) + ")"
		}
		return bound
	})
}

// valuesByKey are the values of a column that differ from row to row.
type valuesByKey struct{ keys, values []any }

// choose returns an expression for the value of a row o, by its id. Like a list, it has a power of
// two of branches if the statement is prepared.
func (t *table) choose(s *statement, of valuesByKey) string {
	id := t.id()
	ref, place := "o."+Ident(id.name), id.placeholder()
	exact := id.comparesExactly()
	if !exact {
		ref, place = id.bytesOf(), "?"
	}
	n := len(of.keys)
	if !s.unprepared {
		n = placeholderCount(n)
	}
	for i := range n {
		i = min(i, len(of.keys)-1)
		key := of.keys[i]
		if text, is := key.(string); is && !exact {
			key = []byte(text)
		}
		s.args = append(s.args, key, of.values[i])
	}
	return "CASE " + ref + strings.Repeat(" WHEN "+place+" THEN ?", n) + " END"
}
