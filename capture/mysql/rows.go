package mysql

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/sluicebox/sluicebox/capture/internal/fault"
	mystore "github.com/sluicebox/sluicebox/store/mysql"
)

// Columns of the table of markers.
const (
	markName = iota
	markToken
	markColumns
)

// isOwnTable reports whether a key is that of a relay's table.
func isOwnTable(key []byte) bool {
	i := bytes.IndexByte(key, 0)
	return i >= 0 && len(key) > i+1 && bytes.HasPrefix(key[i+2:], []byte(ownPrefix))
}

func foldKey(key []byte) []byte {
	// The server does not fold bytes above 127 either, except for letters of its own
	// collation, which it has already folded.
	return bytes.ToLower(key)
}

// readRows processes one rows event of a statement.
func (a *assembler) readRows(d *decoder, kind replication.EventType, raw []byte) error {
	id, flags, err := tableIDOf(raw)
	if err != nil {
		return err
	}

	l := a.mapped[id]
	if flags&replication.RowsEventStmtEndFlag != 0 {
		clear(a.mapped)
	}

	switch {
	case l == nil:
		return nil
	case !a.open:
		return errors.New("rows outside a transaction")
	case l == a.marker:
		return a.readMarkers(d, raw)
	case !a.watching && !isInsert(kind) && (!isUpdate(kind) || !l.table.hasOtherUniqueKey):
		return nil
	}

	e, err := d.events.Parse(raw)
	if err != nil {
		return err
	}

	rows, ok := e.Event.(*replication.RowsEvent)
	if !ok {
		return fmt.Errorf("event of type %s decoded as %T", kind, e.Event)
	}

	if a.watching {
		return a.addChanges(l, rows)
	}
	for i, values := range rows.Rows {
		if isUpdate(kind) && (i%2 == 0 || !l.changedID(rows, i)) {
			continue
		}
		if err := a.addRow(l, values, rows.SkippedColumns[i]); err != nil {
			return err
		}
	}

	return nil
}

func isUpdate(kind replication.EventType) bool {
	return kind == replication.UPDATE_ROWS_EVENTv2 || kind == replication.UPDATE_ROWS_EVENTv1 ||
		kind == replication.MARIADB_UPDATE_ROWS_COMPRESSED_EVENT_V1
}

// changedID reports whether an update changed the id of the row whose old image precedes
// index i. The servers log a REPLACE that way if it met a row by another unique key.
func (l *layout) changedID(rows *replication.RowsEvent, i int) bool {
	for k := range l.rows {
		at := l.rows[k].ID
		if slices.Contains(rows.SkippedColumns[i], at) {
			continue // unchanged column
		}
		if slices.Contains(rows.SkippedColumns[i-1], at) || !reflect.DeepEqual(rows.Rows[i-1][at], rows.Rows[i][at]) {
			return true
		}
	}
	return false
}

func isInsert(kind replication.EventType) bool {
	return kind == replication.WRITE_ROWS_EVENTv2 || kind == replication.WRITE_ROWS_EVENTv1 ||
		kind == replication.MARIADB_WRITE_ROWS_COMPRESSED_EVENT_V1
}

// readMarkers keeps the relay's own markers. An update event holds the old row, then the
// new one.
func (a *assembler) readMarkers(d *decoder, raw []byte) error {
	e, err := d.events.Parse(raw)
	if err != nil {
		return err
	}

	rows, ok := e.Event.(*replication.RowsEvent)
	if !ok || rows.Type() == replication.EnumRowsEventTypeDelete {
		return nil
	}

	for i, values := range rows.Rows {
		if rows.Type() == replication.EnumRowsEventTypeUpdate && i%2 == 0 {
			continue
		}
		if len(values) < markColumns {
			return fmt.Errorf("table %s has %d columns", markTable, len(values))
		}
		name, _ := values[markName].(string)
		token, ok := values[markToken].(string)
		if ok && name == a.name && (token == a.snapshotMark || !strings.HasPrefix(token, snapshotMarkPrefix)) {
			a.tx.Mark(strings.Clone(token))
		}
	}

	return nil
}

// addRow adds a row, and emits the rows before it if they form a full batch.
func (a *assembler) addRow(l *layout, values []any, skipped []int) error {
	size := 0
	for i := range l.rows {
		size += sizeOf(values[l.rows[i].Payload])
		if k := slices.IndexFunc(skipped, l.rows[i].Include); k >= 0 {
			return &fault.RowError{Schema: l.table.schema, Table: l.table.name, Err: fmt.Errorf(
				"column %s is missing from the binlog: the session that wrote the row has a binlog_row_image other than FULL", mystore.Ident(l.columns[skipped[k]].name))}
		}
	}

	a.row = row{layout: l, values: values}
	part, ready, err := a.tx.Add(&a.row, l.rows, size)
	a.row = row{} // the values hold the whole event
	if err == nil && ready {
		err = a.emit(part)
	}
	return err
}

func sizeOf(v any) int {
	switch x := v.(type) {
	case string:
		return len(x)
	case []byte:
		return len(x)
	}
	return 0
}

// row is an inserted row of a layout. It implements logsource.Row.
type row struct {
	*layout
	values []any
}

func (r *row) Table() (schema, name string) { return r.table.schema, r.table.name }

func (r *row) IsNull(column int) bool { return r.values[column] == nil }

func (r *row) Size(column int) int { return sizeOf(r.values[column]) }

func (r *row) AppendText(dst []byte, column int) ([]byte, error) {
	return r.columns[column].appendText(dst, r.values[column])
}

func (r *row) AppendBytes(dst []byte, column int) ([]byte, error) {
	return r.columns[column].append(dst, r.values[column])
}

// layoutMismatch returns the error for a table whose columns in the binlog differ from
// its current description. Rows from before the change cannot be read reliably, but the
// table has them.
func (a *assembler) layoutMismatch(t *table, err error) error {
	var missing *fault.MissingColumnsError
	if errors.As(err, &missing) {
		return err
	}
	return &layoutMismatchError{table: t, RowError: fault.RowError{Schema: t.schema, Table: t.name, Err: err}}
}

// layoutMismatchError means that a table's columns in the binlog differ from its
// description.
type layoutMismatchError struct {
	fault.RowError
	table *table
}

// Unwrap makes the error a *fault.RowError.
func (e *layoutMismatchError) Unwrap() error { return &e.RowError }
