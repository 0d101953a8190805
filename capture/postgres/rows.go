package postgres

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/capture/internal/logsource"
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

// relation is a table as the WAL describes it.
type relation struct {
	schema, name string
	columns      []column
	outboxes     []logsource.Columns
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

	rel := &relation{schema: m.schema, name: m.name, columns: m.columns}
	for i := range rel.columns {
		rel.columns[i].isBytea = t.bytea[rel.columns[i].typeOID]
	}
	find := func(name string) int {
		return slices.IndexFunc(rel.columns, func(c column) bool { return c.name == name })
	}
	missing := fault.MissingColumnsError{Log: "the WAL", Table: m.schema + "." + m.name}
	missing.Remedy = "correct the layout, put the column back, or remove the table's column list from the publication"
	for _, o := range tb.outboxes {
		columns, err := logsource.FindColumns(o, find, missing, `"`)
		if err != nil {
			return nil, err
		}
		rel.outboxes = append(rel.outboxes, columns)
	}
	return rel, nil
}

// row is a tuple of a relation. It implements logsource.Row.
type row struct {
	*relation
	values [][]byte // nil is NULL; they alias the message
	// acceptsAnyBytes: the database accepts text of any bytes. Id, kind and group must be
	// UTF-8 all the same; the payload is bytes.
	acceptsAnyBytes bool
}

func (r *row) Table() (schema, name string) { return r.schema, r.name }

func (r *row) IsNull(column int) bool { return r.values[column] == nil }

func (r *row) Size(column int) int {
	n := len(r.values[column])
	if r.columns[column].isBytea {
		n = max(0, hex.DecodedLen(n-len(byteaPrefix)))
	}
	return n
}

func (r *row) AppendText(dst []byte, column int) ([]byte, error) {
	if r.acceptsAnyBytes && !utf8.Valid(r.values[column]) {
		return dst, fmt.Errorf("column %q is %q, which is not UTF-8, as relayed text must be: the database encoding is SQL_ASCII, which accepts any bytes",
			r.columns[column].name, r.values[column])
	}
	return append(dst, r.values[column]...), nil
}

// byteaPrefix begins the text of a bytea.
const byteaPrefix = `\x`

func (r *row) AppendBytes(dst []byte, column int) ([]byte, error) {
	if !r.columns[column].isBytea {
		return append(dst, r.values[column]...), nil
	}
	text, ok := bytes.CutPrefix(r.values[column], []byte(byteaPrefix))
	if !ok {
		return dst, errors.New(`bytea does not begin with \x`)
	}
	dst, err := hex.AppendDecode(dst, text)
	if err != nil {
		return dst, fmt.Errorf("bytea: %w", err)
	}
	return dst, nil
}
