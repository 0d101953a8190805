package logsource

import (
	"fmt"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/store"
)

// ChangedRow is a row as a change of the log has it, perhaps in part.
type ChangedRow interface {
	Row
	// Has reports whether the change has a column.
	Has(column int) bool
}

// ChangeColumns are the indexes of the columns that changes are read from.
type ChangeColumns struct {
	Columns                // without payload, attributes and retry count
	Status  map[string]int // of store.Layout.StatusColumns
}

// WatchedColumns returns the names of the columns that FindChangeColumns looks for, each once.
func WatchedColumns(o *store.Outbox) []string {
	return append(CapturedColumns(watchedLayout(o)), o.Layout.StatusColumns()...)
}

// watchedLayout is the layout without the columns that changes are not read from.
func watchedLayout(o *store.Outbox) *store.Layout {
	l := o.Layout
	l.Columns.Payload, l.Columns.RetryCount, l.Attributes = "", "", nil
	return &l
}

// FindChangeColumns is FindColumns for changes.
func FindChangeColumns(o *store.Outbox, find func(name string) int, missing fault.MissingColumnsError, quote string) (ChangeColumns, error) {
	watched := *o
	watched.Layout = *watchedLayout(o)
	found, err := FindColumns(&watched, find, missing, quote)
	c := ChangeColumns{Columns: found, Status: map[string]int{}}
	if err != nil {
		return c, err
	}
	for _, name := range o.Layout.StatusColumns() {
		if c.Status[name] = find(name); c.Status[name] < 0 {
			missing.Outbox, missing.Columns = o, []string{name}
			missing.Problem = fmt.Sprintf("outbox %s: %s has table %s without column %s%s%s", o.Name, missing.Log, missing.Table, quote, name, quote)
			return c, &missing
		}
	}
	return c, nil
}

// AddChange adds a change of a row to each outbox over its table. The error is a *fault.RowError.
func (t *Transaction) AddChange(kind capture.ChangeKind, row ChangedRow, outboxes []ChangeColumns) error {
	for i := range outboxes {
		c := &outboxes[i]
		change := capture.Change{Kind: kind, Lane: store.LaneKey{Outbox: c.Outbox.Name, Kind: c.Outbox.Kind}, Txn: t.ID, Committed: t.Committed, Captured: t.ReceivedAt}
		if err := t.readChange(&change, row, c); err != nil {
			schema, name := row.Table()
			return &fault.RowError{Schema: schema, Table: name, ID: change.ID, Err: err}
		}
		t.changes = append(t.changes, change)
	}
	return nil
}

// AddTruncate adds the end of all rows of the outboxes.
func (t *Transaction) AddTruncate(outboxes []ChangeColumns) {
	for i := range outboxes {
		t.changes = append(t.changes, capture.Change{
			Kind: capture.Truncated, Lane: store.LaneKey{Outbox: outboxes[i].Outbox.Name}, Txn: t.ID, Committed: t.Committed, Captured: t.ReceivedAt,
		})
	}
}

// maxChanges is the most changes of a batch. Those of a larger transaction come in parts.
const maxChanges = 20_000

// TakeChanges returns the changes so far, without a position. They have the time of their commit
// if it is known by now. With full it returns changes only if a batch is full.
func (t *Transaction) TakeChanges(full bool) (b capture.Batch, ready bool) {
	if full && len(t.changes) < maxChanges {
		return b, false
	}
	for i := range t.changes {
		t.changes[i].Committed = t.Committed
	}
	b.Changes, t.changes = t.changes, nil
	return b, true
}

func (t *Transaction) readChange(to *capture.Change, row ChangedRow, c *ChangeColumns) (err error) {
	hasID := row.Has(c.ID) && !row.IsNull(c.ID)
	if kind := to.Kind; kind == capture.Inserted && hasID {
		var it store.Item
		if err := t.identify(&it, row, &c.Columns); err != nil {
			return err
		}
		to.ID, to.Lane.Group = it.ID, it.Group
		if c.Kind >= 0 {
			if to.Lane.Kind, err = t.kind(row, c.Kind); err != nil {
				return fmt.Errorf("kind: %w", err)
			}
		}
	} else if hasID {
		id, err := t.text(row, c.ID)
		if err != nil {
			return fmt.Errorf("id: %w", err)
		}
		to.ID = string(id)
	}
	if to.Kind == capture.Deleted {
		return nil
	}
	to.Status = c.Outbox.Layout.StatusOf(func(name string) (text []byte, known bool) {
		column := c.Status[name]
		if !row.Has(column) {
			return nil, false
		}
		if row.IsNull(column) {
			return nil, true
		}
		text, readErr := row.AppendBytes(t.scratch[:0], column)
		if readErr != nil && err == nil {
			err = fmt.Errorf("status: %w", readErr)
		}
		return text, true
	})
	return err
}
