package postgres

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/store"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
)

// byteaOID is the type of bytea (pg_type.dat).
const byteaOID = 17

// table is an outbox table as Open found it, with its outboxes.
type table struct {
	oid          uint32
	schema, name string
	partitioned  bool
	owned        bool // by the role of Config.URL
	outboxes     []*store.Outbox
}

func (t *table) quoted() string { return pgstore.Ident(t.schema, t.name) }

// relation is a table as the WAL describes it, with the column indexes of each outbox.
type relation struct {
	schema, name string
	columns      int
	rows         []rowMap
}

// rowMap is the column indexes of one outbox; -1 is a column that it does not have.
type rowMap struct {
	outbox                            *store.Outbox
	id, kind, group, payload, retries int
	hexPayload                        bool
	hexGroup                          bool // the group is read from a bytea
}

// tables finds the outboxes of a relation. It finds a table by its OID, also under an
// earlier name, or by its name if it was recreated.
type tables struct {
	byOID  map[uint32]*table
	byName map[[2]string]*table
	bytea  map[uint32]bool // bytea and its domains
}

func newTables(list []*table) *tables {
	t := &tables{
		byOID:  map[uint32]*table{},
		byName: map[[2]string]*table{},
		bytea:  map[uint32]bool{byteaOID: true},
	}
	for _, tb := range list {
		t.byOID[tb.oid] = tb
		t.byName[[2]string{tb.schema, tb.name}] = tb
	}
	return t
}

// relation maps a Relation message; nil is a table that is not an outbox. The error is a
// *store.SetupError.
func (t *tables) relation(m *relationMsg) (*relation, error) {
	tb := t.byOID[m.oid]
	if tb == nil {
		tb = t.byName[[2]string{m.schema, m.name}]
	}
	if tb == nil {
		return nil, nil
	}

	rel := &relation{schema: m.schema, name: m.name, columns: len(m.columns)}
	for _, o := range tb.outboxes {
		rm, err := t.rowMap(m, o)
		if err != nil {
			return nil, err
		}
		rel.rows = append(rel.rows, rm)
	}

	return rel, nil
}

func (t *tables) rowMap(m *relationMsg, o *store.Outbox) (rowMap, error) {
	var missing []string
	find := func(name string) int {
		if name == "" {
			return -1
		}
		for i := range m.columns {
			if m.columns[i].name == name {
				return i
			}
		}
		missing = append(missing, name)
		return -1
	}

	c := &o.Layout.Columns
	rm := rowMap{
		outbox: o, id: find(c.ID), kind: find(c.Kind), group: find(c.Group),
		payload: find(c.Payload), retries: find(c.RetryCount),
	}
	if len(missing) > 0 {
		return rm, &missingColumnError{outbox: o, columns: missing, SetupError: store.SetupError{
			Problem: fmt.Sprintf("outbox %s: the WAL has table %s.%s without column %s", o.Name, m.schema, m.name, `"`+strings.Join(missing, `" and "`)+`"`),
			Remedy:  "correct the layout, put the column back, or remove the table's column list from the publication",
		}}
	}

	rm.hexPayload = t.bytea[m.columns[rm.payload].typeOID]
	rm.hexGroup = len(o.Layout.GroupPath) > 0 && t.bytea[m.columns[rm.group].typeOID]
	return rm, nil
}

// itemReader turns tuples into items. It interns kinds, because there are few of them.
type itemReader struct {
	kinds      map[string]string
	scratch    []byte
	receivedAt time.Time // when the current message was received
	// acceptsAnyBytes: the database accepts text of any bytes. Id, kind and group must be
	// UTF-8 all the same; the payload is bytes.
	acceptsAnyBytes bool
	// maxPayload is the largest payload to carry, 0 for any; see capture.Resume.
	maxPayload int
}

// maxKinds bounds the interned kinds, because a table with unique kinds must not fill the
// memory.
const maxKinds = 1024

// read makes an item from a row, in memory of its own. The error is a *fault.RowError.
func (ir *itemReader) read(rel *relation, rm *rowMap, values [][]byte) (store.Item, error) {
	unreadable := func(err error) (store.Item, error) {
		return store.Item{}, &fault.RowError{Schema: rel.schema, Table: rel.name, ID: string(values[rm.id]), Err: err}
	}

	c := &rm.outbox.Layout.Columns
	if values[rm.id] == nil {
		return unreadable(fmt.Errorf("row with NULL in its id column %q cannot be relayed: claims and outcomes need the id", c.ID))
	}
	if ir.acceptsAnyBytes {
		if err := checkUTF8(rm, values); err != nil {
			return unreadable(err)
		}
	}

	it := store.Item{Kind: rm.outbox.Kind, Captured: ir.receivedAt}
	it.Outbox = rm.outbox.Name
	var err error
	if it.ID, it.Group, err = ir.identify(rm, values[rm.id], values); err != nil {
		return unreadable(err)
	}
	if rm.kind >= 0 {
		it.Kind = ir.intern(values[rm.kind])
	}
	if rm.retries >= 0 && values[rm.retries] != nil {
		if it.RetryCount, err = strconv.Atoi(string(values[rm.retries])); err != nil {
			return unreadable(fmt.Errorf("%q in column %q is not a count", values[rm.retries], c.RetryCount))
		}
	}

	it.PayloadSize = len(values[rm.payload])
	if rm.hexPayload {
		it.PayloadSize = max(0, hex.DecodedLen(it.PayloadSize-2))
	}
	if ir.maxPayload > 0 && it.PayloadSize > ir.maxPayload {
		return it, nil
	}
	if it.Payload, err = decodeColumn(values[rm.payload], rm.hexPayload); err != nil {
		return unreadable(fmt.Errorf("payload: %w", err))
	}
	return it, nil
}

// checkUTF8 checks id, kind and group.
func checkUTF8(rm *rowMap, values [][]byte) error {
	c := &rm.outbox.Layout.Columns
	group := rm.group
	if len(rm.outbox.Layout.GroupPath) > 0 {
		group = -1 // a group read from JSON is converted to UTF-8
	}

	for _, column := range []struct {
		at   int
		name string
	}{{rm.id, c.ID}, {rm.kind, c.Kind}, {group, c.Group}} {
		if column.at >= 0 && !utf8.Valid(values[column.at]) {
			return fmt.Errorf("column %q is %q, which is not UTF-8, as relayed text must be: the database encoding is SQL_ASCII, which accepts any bytes",
				column.name, values[column.at])
		}
	}

	return nil
}

// identify returns a row's id and its group.
func (ir *itemReader) identify(rm *rowMap, id []byte, values [][]byte) (string, store.Group, error) {
	var group []byte
	if rm.group >= 0 {
		group = values[rm.group]
	}
	if len(rm.outbox.Layout.GroupPath) > 0 {
		if rm.hexGroup && group != nil {
			var err error
			if group, err = decodeColumn(group, true); err != nil {
				return "", store.Group{}, fmt.Errorf("group: %w", err)
			}
		}
		return string(id), rm.outbox.Layout.Group(group), nil
	}

	// One string holds the id and the group.
	ir.scratch = append(append(ir.scratch[:0], id...), group...)
	text := string(ir.scratch)
	return text[:len(id)], store.Group{Name: text[len(id):], Valid: group != nil}, nil
}

func (ir *itemReader) intern(kind []byte) string {
	if s, ok := ir.kinds[string(kind)]; ok {
		return s
	}
	s := string(kind)
	if len(ir.kinds) < maxKinds {
		ir.kinds[s] = s
	}
	return s
}

// decodeColumn copies a column's value out of the message. NULL becomes empty, not nil,
// because a nil payload means that the bytes were dropped.
func decodeColumn(text []byte, isHex bool) ([]byte, error) {
	if !isHex || text == nil {
		return append(make([]byte, 0, len(text)), text...), nil
	}
	if len(text) < 2 || text[0] != '\\' || text[1] != 'x' {
		return nil, errors.New(`bytea does not begin with \x`)
	}
	raw := make([]byte, hex.DecodedLen(len(text)-2))
	if _, err := hex.Decode(raw, text[2:]); err != nil {
		return nil, fmt.Errorf("bytea: %w", err)
	}
	return raw, nil
}
