package bench

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// loadBatchRows is the number of rows in a transaction of a load.
const loadBatchRows = 1000

// The rows of a benchmark are numbered from 1 in each database. A row's id is its number,
// and its payload begins with it, so that the receiver can identify the row.
const (
	idDigits    = 13
	payloadHead = `{"id":"`
)

func rowID(n int) string { return fmt.Sprintf("%0*d", idDigits, n) }

// padding returns the rest of a payload of the given size, after the id.
func padding(size int) string {
	const around = `","pad":""}`
	return `","pad":"` + strings.Repeat("x", max(0, size-len(payloadHead)-idDigits-len(around))) + `"}`
}

// rowSpan is a range of rows to write, with their common attributes.
type rowSpan struct {
	first, last int
	groups      int    // 0 for rows without a group
	firstGroup  int    // number of the first of the groups
	oneGroup    string // the group of all rows, if set
	padding     string
	completed   bool // rows are already delivered
}

// group returns an expression for the group of row n. form takes the first group and the number
// of groups.
func (r *rowSpan) group(form string) string {
	switch {
	case r.oneGroup != "":
		return "'" + r.oneGroup + "'"
	case r.groups == 0:
		return "NULL"
	}
	return fmt.Sprintf(form, r.firstGroup, r.groups)
}

func (r *rowSpan) status(t *outboxTable) string {
	if r.completed {
		return t.completed
	}
	return t.pending
}

// nextRows returns the next rows to write to a database.
func (b *bench) nextRows(p *benchDatabase, rows int) *rowSpan {
	r := &rowSpan{first: p.rowsWritten + 1, last: p.rowsWritten + rows, groups: b.opts.Groups, padding: padding(b.opts.Size)}
	if b.opts.Ungrouped {
		r.groups = 0
	}
	return r
}

// load commits rows, several in a transaction. change may modify each span.
func (b *bench) load(ctx context.Context, p *benchDatabase, rows, batchRows int, change func(*rowSpan)) error {
	for left := rows; left > 0; left -= batchRows {
		r := b.nextRows(p, min(left, batchRows))
		if change != nil {
			change(r)
		}
		if err := p.load(ctx, r); err != nil {
			return fmt.Errorf("load rows: %w", err)
		}
		p.rowsWritten = r.last
	}
	return nil
}

// write commits rows at the rate of the options, each in its own transaction. A row that is
// due while the database is slow is written as soon as possible. All rows of a group use one
// session, so that their order is known.
func (b *bench) write(ctx context.Context, p *benchDatabase, to *tally) error {
	writers := make([]rowWriter, 0, b.opts.Clients)
	defer func() {
		for _, w := range writers {
			w.close()
		}
	}()
	rows := b.nextRows(p, to.count)
	for range b.opts.Clients {
		w, err := p.writer(ctx, rows)
		if err != nil {
			return fmt.Errorf("write rows: %w", err)
		}
		writers = append(writers, w)
	}

	begin := time.Now()
	work, ctx := errgroup.WithContext(ctx)
	for i, w := range writers {
		work.Go(func() error {
			timer := time.NewTimer(0)
			defer timer.Stop()
			for k := i; k < to.count; k += len(writers) {
				timer.Reset(time.Until(begin.Add(time.Duration(k) * time.Second / time.Duration(b.opts.Rate))))
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-timer.C:
				}
				if err := w.write(ctx, rows.first+k); err != nil {
					return fmt.Errorf("write rows: %w", err)
				}
				to.committed(rows.first+k, time.Now())
			}
			return nil
		})
	}

	p.rowsWritten = rows.last
	return work.Wait()
}
