package logsource

import (
	"fmt"
	"strconv"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/store"
)

// Row is an inserted row of the log. It decodes its columns, given by their index.
type Row interface {
	// Table returns the row's table, for errors.
	Table() (schema, name string)
	// IsNull reports whether a column is NULL.
	IsNull(column int) bool
	// Size returns about how many bytes AppendBytes appends.
	Size(column int) int
	// AppendText appends a column to dst in the store's form of ids, kinds and groups.
	AppendText(dst []byte, column int) ([]byte, error)
	// AppendBytes appends the content of a column to dst.
	AppendBytes(dst []byte, column int) ([]byte, error)
}

// Transaction turns the rows and markers of the log's current transaction into batches. The
// batch that ends a transaction with rows always has at least one row, as capture.Resume
// requires, because a part is returned only when the next row has arrived.
type Transaction struct {
	// MaxRows and MaxBytes bound a batch; a single row may exceed them.
	MaxRows, MaxBytes int
	// MaxPayload is the largest payload to carry, 0 for any; see capture.Resume. A row that
	// only the log has keeps its payload.
	MaxPayload int
	// ReceivedAt is when the current message was received.
	ReceivedAt time.Time
	// ID and Committed belong to the current transaction.
	ID        store.Txn
	Committed time.Time

	items    []store.Item
	changes  []capture.Change
	expected int // expected number of items of the next transaction
	bytes    int
	marks    []string
	kinds    map[string]string // interned, because there are few of them
	scratch  []byte
}

// maxKinds bounds the interned kinds, because a table with unique kinds must not fill the
// memory.
const maxKinds = 1024

// maxScratch is the largest buffer that is kept from row to row.
const maxScratch = 64 << 10

// NewTransaction returns a Transaction for batches of these bounds.
func NewTransaction(maxRows, maxBytes int) Transaction {
	return Transaction{MaxRows: maxRows, MaxBytes: maxBytes, kinds: map[string]string{}, scratch: make([]byte, 0, 64)}
}

// Add adds a row of size bytes to each outbox over its table. ready is true if the rows
// before it form a full batch, which is a part of the transaction. The error is a
// *fault.RowError.
func (t *Transaction) Add(row Row, outboxes []Columns, size int) (part capture.Batch, ready bool, err error) {
	if n := len(t.items); n > 0 && (n+len(outboxes) > t.MaxRows || t.bytes+size > t.MaxBytes) {
		part.Items, ready = t.items, true
		t.items, t.bytes = make([]store.Item, 0, n), 0
	}
	t.bytes += size
	if t.items == nil {
		t.items = make([]store.Item, 0, max(t.expected, len(outboxes)))
	}

	for i := range outboxes {
		it := store.Item{Kind: outboxes[i].Outbox.Kind, Captured: t.ReceivedAt, Txn: t.ID, Committed: t.Committed}
		if err := t.read(&it, row, &outboxes[i]); err != nil {
			schema, name := row.Table()
			return capture.Batch{}, false, &fault.RowError{Schema: schema, Table: name, ID: it.ID, Err: err}
		}
		t.items = append(t.items, it)
	}
	return part, ready, nil
}

// Mark adds a marker.
func (t *Transaction) Mark(token string) { t.marks = append(t.marks, token) }

// End ends the transaction. It returns the rest of it, without a position.
func (t *Transaction) End() capture.Batch {
	b := capture.Batch{Items: t.items, Marks: t.marks}
	if len(b.Marks) > 0 {
		b.Marked = t.Committed
	}
	t.items, t.bytes, t.marks = nil, 0, nil
	t.expected = len(b.Items) // transactions are often alike
	return b
}

// read fills an item from a row, with memory of its own.
func (t *Transaction) read(it *store.Item, row Row, c *Columns) (err error) {
	names := &c.Outbox.Layout.Columns
	it.Outbox = c.Outbox.Name
	if row.IsNull(c.ID) {
		return fmt.Errorf("row with NULL in its id column %q cannot be relayed: claims and outcomes need the id", names.ID)
	}
	if err := t.identify(it, row, c); err != nil {
		return err
	}

	if c.Kind >= 0 {
		if it.Kind, err = t.kind(row, c.Kind); err != nil {
			return fmt.Errorf("kind: %w", err)
		}
	}
	if c.RetryCount >= 0 && !row.IsNull(c.RetryCount) {
		if t.scratch, err = row.AppendBytes(t.scratch[:0], c.RetryCount); err != nil {
			return err
		}
		if it.RetryCount, err = strconv.Atoi(string(t.scratch)); err != nil {
			return fmt.Errorf("%q in column %q is not a count", t.scratch, names.RetryCount)
		}
	}
	limit := t.MaxPayload
	if c.Outbox.Layout.LogOnly() {
		limit = 0 // no claim reads it
	}
	err = t.payload(it, row, c.Payload, limit)
	if err != nil || it.Payload == nil && !c.Outbox.KeepsAttributes() {
		return err // without the payload, the attributes are read with it
	}
	return t.attributes(it, row, c)
}

// attributes reads a row's attributes.
func (t *Transaction) attributes(it *store.Item, row Row, c *Columns) (err error) {
	if len(c.Attributes) == 0 {
		return nil
	}
	it.Attributes = c.Outbox.Layout.ReadAttributes(func(i int) []byte {
		text, readErr := t.text(row, c.Attributes[i])
		if readErr != nil && err == nil {
			err = fmt.Errorf("attribute: %w", readErr)
		}
		return text
	})
	return err
}

// text returns a column's text until the next call, nil for NULL.
func (t *Transaction) text(row Row, column int) ([]byte, error) {
	if row.IsNull(column) {
		return nil, nil
	}
	text, err := row.AppendText(t.scratch[:0], column)
	if cap(text) <= maxScratch {
		t.scratch = text
	}
	return text, err
}

// groupOfColumns reads a group over several columns.
func (t *Transaction) groupOfColumns(it *store.Item, row Row, c *Columns) (err error) {
	it.Group = c.Outbox.Layout.GroupOfColumns(func(i int) []byte {
		column := c.Group
		if i > 0 {
			column = c.GroupRest[i-1]
		}
		text, readErr := t.text(row, column)
		if readErr != nil && err == nil {
			err = fmt.Errorf("group: %w", readErr)
		}
		return text
	})
	return err
}

// identify reads a row's id and group. If both are text they share one string.
func (t *Transaction) identify(it *store.Item, row Row, c *Columns) error {
	id, err := row.AppendText(t.scratch[:0], c.ID)
	if err != nil {
		return fmt.Errorf("id: %w", err)
	}
	t.scratch = id
	layout := &c.Outbox.Layout
	switch {
	case len(c.GroupRest) > 0:
		it.ID = string(id)
		return t.groupOfColumns(it, row, c)
	case c.Group < 0 || row.IsNull(c.Group):
		it.ID = string(id)
		return nil
	case len(layout.GroupPath) > 0:
		it.ID = string(id)
		group, err := row.AppendBytes(id[:0], c.Group)
		if err != nil {
			return fmt.Errorf("group: %w", err)
		}
		it.Group = layout.Group(group)
		if cap(group) <= maxScratch { // the JSON may be a payload of any size
			t.scratch = group
		}
		return nil
	}

	both, err := row.AppendText(id, c.Group)
	if err != nil {
		it.ID = string(id)
		return fmt.Errorf("group: %w", err)
	}
	t.scratch = both
	text := string(both)
	it.ID, it.Group = text[:len(id)], store.GroupOf(text[len(id):])
	return nil
}

func (t *Transaction) kind(row Row, column int) (kind string, err error) {
	if row.IsNull(column) {
		return "", nil
	}
	if t.scratch, err = row.AppendText(t.scratch[:0], column); err != nil {
		return "", err
	}
	if kind, known := t.kinds[string(t.scratch)]; known {
		return kind, nil
	}
	kind = string(t.scratch)
	if len(t.kinds) < maxKinds {
		t.kinds[kind] = kind
	}
	return kind, nil
}

// payload reads a payload of up to limit bytes; 0 is no limit. NULL becomes empty, not nil,
// because nil means that the payload stays in the table.
func (t *Transaction) payload(it *store.Item, row Row, column, limit int) (err error) {
	it.PayloadSize = row.Size(column)
	if limit > 0 && it.PayloadSize > limit {
		return nil
	}
	it.Payload = make([]byte, 0, it.PayloadSize)
	if row.IsNull(column) {
		return nil
	}
	if it.Payload, err = row.AppendBytes(it.Payload, column); err != nil {
		return fmt.Errorf("payload: %w", err)
	}
	if it.PayloadSize = len(it.Payload); limit > 0 && it.PayloadSize > limit {
		it.Payload = nil
	}
	return nil
}

// Defaults of the limits of a batch.
const (
	defaultBatchRows  = 500
	defaultBatchBytes = 4 << 20
)

// ValidateBatch rejects negative limits of a batch.
func ValidateBatch(rows, bytes int) error {
	if rows < 0 || bytes < 0 {
		return fmt.Errorf("batch limits of %d rows and %d bytes must not be negative", rows, bytes)
	}
	return nil
}

// SetBatchDefaults replaces limits of a batch that are 0 by 500 rows and 4 MiB.
func SetBatchDefaults(rows, bytes *int) {
	if *rows == 0 {
		*rows = defaultBatchRows
	}
	if *bytes == 0 {
		*bytes = defaultBatchBytes
	}
}
