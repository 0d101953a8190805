package mysql

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/store"
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
	case !isInsert(kind) && (!isUpdate(kind) || !l.table.hasOtherUniqueKey):
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
		at := l.rows[k].id
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
			a.marks = append(a.marks, strings.Clone(token))
		}
	}

	return nil
}

// addRow adds a row. It emits part of a transaction only when the next row has arrived,
// so that the last batch of a transaction always has at least one row.
func (a *assembler) addRow(l *layout, values []any, skipped []int) error {
	size := 0
	for i := range l.rows {
		size += sizeOf(values[l.rows[i].payload])
	}

	if n := len(a.items); n > 0 && (n+len(l.rows) > a.maxRows || a.bytes+size > a.maxBytes) {
		part := capture.Batch{Items: a.items}
		a.items, a.bytes = make([]store.Item, 0, n), 0
		if err := a.emit(part); err != nil {
			return err
		}
	}

	a.bytes += size
	if a.items == nil {
		a.items = make([]store.Item, 0, max(a.expected, len(l.rows)))
	}

	for i := range l.rows {
		rm := &l.rows[i]
		if at := rm.missingColumn(skipped); at >= 0 {
			return &fault.RowError{Schema: l.table.schema, Table: l.table.name, Err: fmt.Errorf(
				"column %s is missing from the binlog: the session that wrote the row has a binlog_row_image other than FULL", mystore.Ident(l.columns[at].name))}
		}
		it, err := a.reader.read(l, rm, values)
		if err != nil {
			return err
		}
		it.Committed = a.committed
		a.items = append(a.items, it)
	}

	return nil
}

// missingColumn returns a column of the outbox that is among the skipped ones; -1 if
// there is none.
func (rm *rowMap) missingColumn(skipped []int) int {
	for _, at := range []int{rm.id, rm.kind, rm.group, rm.payload, rm.retries} {
		if at >= 0 && slices.Contains(skipped, at) {
			return at
		}
	}
	return -1
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

// itemReader converts rows to items. It interns kinds, because there are few different
// ones.
type itemReader struct {
	kinds            map[string]string
	scratch          []byte
	receivedAt       time.Time // when the server sent the current event
	dropLargePayload func(*store.Item)
}

// maxKinds limits the interned kinds, so that a column with unique values cannot fill the
// memory.
const maxKinds = 1024

// read converts one row to an item that owns its memory. Its error is a *fault.RowError.
func (ir *itemReader) read(l *layout, rm *rowMap, values []any) (store.Item, error) {
	it := store.Item{Kind: rm.outbox.Kind, Captured: ir.receivedAt}
	it.Outbox = rm.outbox.Name
	err := ir.fill(&it, l, rm, values)
	if err != nil {
		return it, &fault.RowError{Schema: l.table.schema, Table: l.table.name, ID: it.ID, Err: err}
	}
	return it, nil
}

func (ir *itemReader) fill(it *store.Item, l *layout, rm *rowMap, values []any) (err error) {
	c := &rm.outbox.Layout.Columns
	if values[rm.id] == nil {
		return fmt.Errorf("row has NULL in its id column %s: rows are claimed and settled by id", mystore.Ident(c.ID))
	}

	if it.ID, it.Group, err = ir.identify(l, rm, values); err != nil {
		return err
	}
	if rm.kind >= 0 {
		if it.Kind, err = ir.kind(&l.columns[rm.kind], values[rm.kind]); err != nil {
			return err
		}
	}

	if rm.retries >= 0 && values[rm.retries] != nil {
		text, err := l.columns[rm.retries].append(ir.scratch[:0], values[rm.retries])
		if err != nil {
			return err
		}
		if it.RetryCount, err = strconv.Atoi(string(text)); err != nil {
			return fmt.Errorf("invalid retry count %q in column %s", text, mystore.Ident(c.RetryCount))
		}
	}

	// NULL becomes empty, not nil, because nil means that the payload was dropped.
	it.Payload = make([]byte, 0, sizeOf(values[rm.payload]))
	if values[rm.payload] != nil {
		if it.Payload, err = l.columns[rm.payload].append(it.Payload, values[rm.payload]); err != nil {
			return fmt.Errorf("payload: %w", err)
		}
	}

	it.PayloadSize = len(it.Payload)
	if ir.dropLargePayload != nil {
		ir.dropLargePayload(it)
	}
	return nil
}

// identify returns a row's id and group. If both are text they share one string.
func (ir *itemReader) identify(l *layout, rm *rowMap, values []any) (string, store.Group, error) {
	text, err := l.columns[rm.id].appendText(ir.scratch[:0], values[rm.id])
	ir.scratch = text
	if err != nil {
		return "", store.Group{}, fmt.Errorf("id: %w", err)
	}

	if rm.group < 0 || values[rm.group] == nil {
		return string(text), store.Group{}, nil
	}
	n := len(text)
	read := l.columns[rm.group].appendText
	if len(rm.outbox.Layout.GroupPath) > 0 {
		read = l.columns[rm.group].append
	}

	if text, err = read(text, values[rm.group]); err != nil {
		return string(text[:n]), store.Group{}, fmt.Errorf("group: %w", err)
	}
	ir.scratch = text
	if len(rm.outbox.Layout.GroupPath) > 0 {
		return string(text[:n]), rm.outbox.Layout.Group(text[n:]), nil
	}

	both := string(text)
	return both[:n], store.Group{Name: both[n:], Valid: true}, nil
}

func (ir *itemReader) kind(c *column, v any) (string, error) {
	if v == nil {
		return "", nil
	}
	text, err := c.appendText(ir.scratch[:0], v)
	ir.scratch = text
	if err != nil {
		return "", fmt.Errorf("kind: %w", err)
	}

	if s, ok := ir.kinds[string(text)]; ok {
		return s, nil
	}
	s := string(text)
	if len(ir.kinds) < maxKinds {
		ir.kinds[s] = s
	}

	return s, nil
}

// layoutMismatch returns the error for a table whose columns in the binlog differ from
// its current description. Rows from before the change cannot be read reliably, but the
// table has them.
func (a *assembler) layoutMismatch(t *table, err error) error {
	var missing *missingColumnError
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
