package mysql

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/logsource"
)

// Watch sends every change of the outbox tables from now on; see capture.Watcher. It reads the
// binlog as Tap does. The binlog may have only the changed columns of a row (binlog_row_image).
// MariaDB's commit times have whole seconds, so its changes have none.
func (s *Source) Watch(ctx context.Context, out chan<- capture.Batch, begun func()) error {
	s.watching = true
	return s.Tap(ctx, out, begun)
}

// watchedNeeds reports whether a watch needs what a fault is about.
func watchedNeeds(subject string) bool {
	return subject != "binlog_row_image" && subject != "retention"
}

// changedRow is a row of a rows event, perhaps without some columns.
type changedRow struct {
	row
	missing []int
}

func (r *changedRow) Has(column int) bool { return !slices.Contains(r.missing, column) }

// changeAt returns the row at an index of a rows event. In an update, a column that only the old
// row has is unchanged.
func (l *layout) changeAt(rows *replication.RowsEvent, i int, old int) *changedRow {
	r := &changedRow{row: row{layout: l, values: rows.Rows[i]}}
	for _, k := range rows.SkippedColumns[i] {
		if old >= 0 && !slices.Contains(rows.SkippedColumns[old], k) {
			r.values[k] = rows.Rows[old][k]
		} else {
			r.missing = append(r.missing, k)
		}
	}
	return r
}

// addChanges adds the rows of an event.
func (a *assembler) addChanges(l *layout, rows *replication.RowsEvent) (err error) {
	const none = -1
	for i := range rows.Rows {
		switch update := rows.Type() == replication.EnumRowsEventTypeUpdate; {
		case rows.Type() == replication.EnumRowsEventTypeDelete:
			err = a.tx.AddChange(capture.Deleted, l.changeAt(rows, i, none), l.changes)
		case !update:
			err = a.tx.AddChange(capture.Inserted, l.changeAt(rows, i, none), l.changes)
		case i%2 == 0:
		case l.changedID(rows, i):
			if err = a.tx.AddChange(capture.Deleted, l.changeAt(rows, i-1, none), l.changes); err == nil {
				err = a.tx.AddChange(capture.Inserted, l.changeAt(rows, i, i-1), l.changes)
			}
		default:
			err = a.tx.AddChange(capture.Updated, l.changeAt(rows, i, i-1), l.changes)
		}
		if err != nil {
			return err
		}
		if part, full := a.tx.TakeChanges(true); full {
			if err := a.emit(part); err != nil {
				return err
			}
		}
	}
	return nil
}

// beginChanges begins a transaction of a watch.
func (a *assembler) beginChanges() {
	a.tx.ID++
	if a.flavour == mariaDB {
		a.tx.Committed = time.Time{}
	}
}

// truncate adds the end of all rows if a statement empties or drops a table.
func (a *assembler) truncate(first, schema string, query []byte) {
	if first != "TRUNCATE" && first != "DROP" {
		return
	}
	text := strings.ToLower(string(query))
	for _, t := range a.tables.byKey {
		o := object{strings.ToLower(t.schema), strings.ToLower(t.name)}
		if !o.isNamedIn(text, strings.ToLower(schema)) {
			continue
		}
		var outboxes []logsource.ChangeColumns
		for _, one := range t.outboxes {
			outboxes = append(outboxes, logsource.ChangeColumns{Columns: logsource.Columns{Outbox: one}})
		}
		a.tx.AddTruncate(outboxes)
	}
}
