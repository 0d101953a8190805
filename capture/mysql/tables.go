package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/capture/internal/logsource"
	"github.com/sluicebox/sluicebox/store"
	mystore "github.com/sluicebox/sluicebox/store/mysql"
)

// table is an outbox table as Open found it, with its outboxes.
type table struct {
	schema, name      string
	outboxes          []*store.Outbox
	columns           []columnInfo
	stale             bool // a statement may have changed it since
	hasOtherUniqueKey bool // it may have a unique key without the id: see layout.changedID
}

// columnInfo is a column as the server describes it.
type columnInfo struct {
	name     string
	dataType string // e.g. varchar
	fullType string // e.g. enum('a','b') or bigint unsigned
	charset  string // "" if it is not text
}

// isBinary reports whether the column holds bytes, not text.
func (c *columnInfo) isBinary() bool {
	return strings.HasSuffix(c.dataType, "binary") || strings.HasSuffix(c.dataType, "blob")
}

// tables finds the tables for which the binlog is read.
type tables struct {
	foldCase  bool // the server folds names to lower case
	byKey     map[string]*table
	markerKey string
	charsets  *charsets
}

// keyOf returns a table name in the format of a TABLE_MAP event: schema, 0, length of the
// name, name.
func (t *tables) keyOf(schema, name string) string {
	if t.foldCase {
		schema, name = strings.ToLower(schema), strings.ToLower(name)
	}
	return schema + "\x00" + string([]byte{byte(len(name))}) + name
}

// findTables looks up the outboxes' tables.
func (s *Source) findTables(ctx context.Context, sv *server, faults *fault.List) (*tables, error) {
	t := &tables{foldCase: sv.setting("lower_case_table_names") != "0", byKey: map[string]*table{}}
	t.markerKey = t.keyOf(s.database(), markTable)
	t.charsets = newCharsets()
	t.charsets.load = func(name string) (*charset, error) { return s.control.loadCharset(ctx, name) }
	for i := range s.cfg.Outboxes {
		o := &s.cfg.Outboxes[i]
		key := t.keyOf(s.schemaOf(o), o.Table)
		tb := t.byKey[key]
		if tb == nil {
			tb = &table{schema: s.schemaOf(o), name: o.Table}
			if err := s.control.describe(ctx, tb); err != nil {
				return nil, err
			}
			if len(tb.columns) == 0 {
				faults.Add(fault.Fault{Subject: subjectNoTable, Problem: fmt.Sprintf("outbox %s: table %s does not exist, or the role may not see it", o.Name, mystore.TableName(o)),
					Instructions: "create it, or correct its name or schema"})
				faults.Fatal = true
				continue
			}
			if err := s.control.checkSystemVersioned(ctx, sv, tb, faults); err != nil {
				return nil, err
			}
			t.byKey[key] = tb
		}

		if err := s.control.describeKeys(ctx, tb, o.Layout.Columns.ID); err != nil {
			return nil, err
		}
		tb.outboxes = append(tb.outboxes, o)
	}

	if err := s.control.loadCollations(ctx, sv, t.charsets); err != nil {
		return nil, err
	}
	for _, key := range slices.Sorted(maps.Keys(t.byKey)) {
		if err := t.byKey[key].check(t.charsets, faults); err != nil {
			return nil, err
		}
	}

	return t, nil
}

// subjectNoTable is the subject of faults that the store reports as well.
const subjectNoTable = "no table"

const describeSQL = `SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, COALESCE(CHARACTER_SET_NAME, '')
FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? ORDER BY ORDINAL_POSITION`

// describe reads a table's columns; none if the table does not exist.
func (c *control) describe(ctx context.Context, t *table) error {
	var columns []columnInfo
	err := c.each(ctx, func(row *sql.Rows) error {
		var one columnInfo
		err := row.Scan(&one.name, &one.dataType, &one.fullType, &one.charset)
		one.dataType = strings.ToLower(one.dataType)
		columns = append(columns, one)
		return err
	}, describeSQL, t.schema, t.name)
	if err != nil {
		return fmt.Errorf("describe table %s.%s: %w", t.schema, t.name, mystore.Explain(err))
	}
	t.columns = columns
	return nil
}

const (
	// keysSQL lists the unique keys that do not contain a column.
	keysSQL = `SELECT INDEX_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? AND NON_UNIQUE = 0
GROUP BY INDEX_NAME HAVING SUM(COALESCE(COLUMN_NAME = ?, 0)) = 0`
	// versionedSQL is for MariaDB
	// (https://mariadb.com/kb/en/information-schema-tables-table/).
	versionedSQL = `SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? AND TABLE_TYPE = 'SYSTEM VERSIONED'`
)

// describeKeys checks whether a REPLACE can replace rows by another key than the id.
func (c *control) describeKeys(ctx context.Context, t *table, id string) error {
	keys, err := c.queryStrings(ctx, keysSQL, t.schema, t.name, id)
	if err != nil {
		return fmt.Errorf("describe keys of table %s.%s: %w", t.schema, t.name, mystore.Explain(err))
	}
	t.hasOtherUniqueKey = t.hasOtherUniqueKey || len(keys) > 0
	return nil
}

// checkSystemVersioned checks that MariaDB does not keep a history of the table.
func (c *control) checkSystemVersioned(ctx context.Context, sv *server, t *table, faults *fault.List) error {
	if sv.flavour != mariaDB {
		return nil
	}
	versioned, err := c.queryStrings(ctx, versionedSQL, t.schema, t.name)
	if err != nil {
		return fmt.Errorf("describe table %s.%s: %w", t.schema, t.name, mystore.Explain(err))
	}

	if len(versioned) > 0 {
		name := mystore.Ident(t.schema, t.name)
		faults.Add(fault.Fault{Subject: "tables", Problem: fmt.Sprintf("table %s is system-versioned: the binlog has each version of a row as a new row", name),
			Statements: []string{"ALTER TABLE " + name + " DROP SYSTEM VERSIONING;"}, Instructions: "as its owner (deletes the history), or poll"})
	}

	return nil
}

// column returns a column; nil if there is none. Column names are case-insensitive.
func (t *table) column(name string) *columnInfo {
	for i := range t.columns {
		if strings.EqualFold(t.columns[i].name, name) {
			return &t.columns[i]
		}
	}
	return nil
}

// isUnreadable reports whether the source cannot read a type from the binlog, because its
// text differs from the result of a SELECT or it has none.
func isUnreadable(dataType string) bool {
	switch dataType {
	case "float", "double", "bit", "vector", "inet4", "inet6":
		return true
	}
	return isGeometry(dataType)
}

func isGeometry(dataType string) bool {
	switch dataType {
	case "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon", "geomcollection", "geometrycollection":
		return true
	}
	return false
}

// check reports columns in the layouts that cannot be read, before the first row arrives.
func (t *table) check(cs *charsets, faults *fault.List) error {
	for i := range t.columns {
		if c := &t.columns[i]; strings.Contains(c.fullType, "COMPRESSED") { // MariaDB
			faults.Add(fault.Fault{Subject: "tables", Problem: fmt.Sprintf("outbox %s: column %s of table %s is COMPRESSED, which the relay cannot read from the binlog",
				t.outboxes[0].Name, mystore.Ident(c.name), mystore.TableName(t.outboxes[0])), Instructions: "remove COMPRESSED from the column, or poll"})
		}
	}

	for _, o := range t.outboxes {
		for _, name := range logsource.CapturedColumns(&o.Layout) {
			c := t.column(name)
			if c == nil {
				continue // the store reports all missing columns
			}
			problem, remedy, err := c.unreadable(cs)
			if err != nil {
				return err
			}
			if problem != "" {
				faults.Add(fault.Fault{Subject: "tables", Problem: fmt.Sprintf("outbox %s: column %s (%s) of table %s %s", o.Name, mystore.Ident(c.name), o.Layout.ConfigKey(name), mystore.TableName(o), problem), Instructions: remedy})
			}
		}
	}

	return nil
}

func (c *columnInfo) unreadable(cs *charsets) (problem, remedy string, err error) {
	if isUnreadable(c.dataType) {
		return "is of type " + c.dataType + ", which the relay cannot read from the binlog", "use another column, or poll", nil
	}
	if c.charset == "" {
		return "", "", nil
	}
	set, err := cs.find(c.charset)
	if err == nil && set == nil {
		problem, remedy = "is of charset "+c.charset+", which the relay cannot read", "convert it to utf8mb4, or poll"
	}
	return problem, remedy, err
}

// refresh reads a table's columns again, for a binlog without column names.
func (c *control) refresh(ctx context.Context, t *table) error {
	if err := c.describe(ctx, t); err != nil {
		return err
	}
	if len(t.columns) == 0 {
		return errors.New("columns unknown: the binlog has no column names (binlog_row_metadata is not FULL), and the table is gone")
	}
	t.stale = false
	return nil
}
