package mysql

import (
	"database/sql"
	"strings"

	"github.com/sluicebox/sluicebox/store"
)

// rowReader reads the rows of one statement. It collects the expressions to select, each with
// the variable that takes its value. Each row overwrites the variables.
type rowReader struct {
	table *table
	exprs []string
	into  []any

	id, kindText sql.NullString
	ownKind      sql.RawBytes // the attribute kind
	group        []byte
	size         int // of the payload
	retries      int
	payload      []byte
	attributes   []sql.RawBytes
	readsContent bool
}

// newRowReader returns a reader that selects the id.
func (t *table) newRowReader() *rowReader {
	r := &rowReader{table: t}
	r.add(t.id().textOf(), &r.id)
	return r
}

// add selects an expression.
func (r *rowReader) add(expr string, into any) {
	r.exprs, r.into = append(r.exprs, expr), append(r.into, into)
}

// addLane selects the kind and the group.
func (r *rowReader) addLane() {
	r.add(r.table.optional(r.table.Layout.Columns.Kind), &r.kindText)
	r.add(r.table.group(), &r.group)
}

// addOwnKind selects the attribute kind, if the layout has it.
func (r *rowReader) addOwnKind() {
	if r.table.kindIsAttribute() {
		r.add(r.table.MustColumn(r.table.Layout.KindColumn()).textOf(), &r.ownKind)
	}
}

// addContent selects the payload and the attributes. within returns an expression for one of
// them that is NULL if the row's content is not to be read; nil reads it always.
func (r *rowReader) addContent(within func(content string) string) {
	if within == nil {
		within = func(content string) string { return content }
	}
	list := r.table.Layout.Attributes
	r.attributes, r.readsContent = make([]sql.RawBytes, len(list)), true
	r.add(within(r.table.payload()), &r.payload)
	if r.table.KeepsAttributes() {
		within = func(content string) string { return content }
	}
	for i := range list {
		r.add(within(r.table.MustColumn(list[i].Column).textOf()), &r.attributes[i])
	}
}

// list returns the expressions to select.
func (r *rowReader) list() string { return strings.Join(r.exprs, ", ") }

// scan reads the current row.
func (r *rowReader) scan(rows *sql.Rows) error { return rows.Scan(r.into...) }

// item returns the current row without content and own kind.
func (r *rowReader) item() store.Item {
	t := r.table
	it := store.Item{Ref: store.Ref{Outbox: t.Name, ID: r.id.String}, Kind: t.Kind, PayloadSize: r.size, RetryCount: r.retries}
	if t.Layout.Columns.Kind != "" {
		it.Kind = r.kindText.String
	}
	it.Group = t.Layout.Group(r.group)
	return it
}

// kindAttributes returns the attribute kind of the current row.
func (r *rowReader) kindAttributes() store.Attributes {
	return r.table.Layout.ReadKind(r.ownKind)
}

// content returns the payload and the attributes of the current row, whose content was
// selected. A NULL payload is empty: nil stands for one that was not read.
func (r *rowReader) content() ([]byte, store.Attributes) {
	payload := r.payload
	if payload == nil {
		payload = []byte{}
	}
	return payload, r.table.Layout.ReadAttributes(func(i int) []byte { return r.attributes[i] })
}
