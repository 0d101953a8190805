// Package batch writes rows that others may write too: it finds rows that the table has already,
// and the row that the database refuses.
package batch

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/outbox"
)

// Row is a row with its fields.
type Row struct {
	outbox.Row
	Fields []outbox.Field
}

// Attempt writes rows in one transaction, all or none. The error is
//
//   - a *outbox.RowError if the database refuses one of them,
//   - ErrAgain if another transaction was in the way,
//   - any other error for the whole call.
type Attempt func(ctx context.Context, rows []Row) ([]outbox.Written, error)

// ErrAgain reports that the same attempt may succeed now.
var ErrAgain = errors.New("another transaction was in the way")

// maxAttempts bounds how often a batch is written again after ErrAgain. Deadlocks end on the
// second attempt, because the other transaction has gone on.
const maxAttempts = 10

// Write makes the fields of rows and attempts to write them. Rows with an id that is twice in the
// call are written one after another, so that the database compares them.
func Write(ctx context.Context, o *outbox.Outbox, clock *Clock, rows []outbox.Row, attempt Attempt) ([]outbox.Written, error) {
	all := make([]outbox.Written, len(rows))
	todo := make([]int, 0, len(rows))
	prepared := make([]Row, len(rows))
	for i := range rows {
		if prepared[i], all[i].Err = prepare(o, clock, rows[i]); all[i].Err == nil {
			todo = append(todo, i)
		}
	}
	for len(todo) > 0 {
		var now, later []int
		seen := make(map[string]bool, len(todo))
		for _, i := range todo {
			if id := prepared[i].ID; seen[id] && id != "" {
				later = append(later, i)
			} else {
				seen[id] = true
				now = append(now, i)
			}
		}
		if err := bisect(ctx, prepared, now, all, attempt); err != nil {
			return nil, err
		}
		todo = later
	}
	return all, nil
}

func prepare(o *outbox.Outbox, clock *Clock, row outbox.Row) (p Row, err error) {
	if row.Created.IsZero() {
		row.Created = clock.Now()
	}
	if err := o.Complete(context.Background(), &row); err != nil {
		return p, err
	}
	p.Row = row
	p.Fields, err = o.Fields(&row)
	return p, err
}

// bisect writes the rows at some indexes. It halves a batch with a row that the database refuses,
// so that k such rows among n cost about k·log n transactions.
func bisect(ctx context.Context, rows []Row, at []int, all []outbox.Written, attempt Attempt) error {
	some := make([]Row, len(at))
	for k, i := range at {
		some[k] = rows[i]
	}
	written, err := again(ctx, some, attempt)
	var refused *outbox.RowError
	switch {
	case err == nil:
		for k, i := range at {
			all[i] = written[k]
		}
		return nil
	case !errors.As(err, &refused):
		return err
	case len(at) == 1:
		all[at[0]].Err = refused
		return nil
	}
	half := len(at) / 2
	if err := bisect(ctx, rows, at[:half], all, attempt); err != nil {
		return err
	}
	return bisect(ctx, rows, at[half:], all, attempt)
}

// again repeats an attempt while other transactions are in its way.
func again(ctx context.Context, rows []Row, attempt Attempt) (written []outbox.Written, err error) {
	for range maxAttempts {
		if written, err = attempt(ctx, rows); !errors.Is(err, ErrAgain) {
			break
		}
	}
	return written, err
}

// Clock returns times that ascend in the microseconds that tables store, so that rows that were
// written at once keep their order where order-by is their time.
type Clock struct {
	mu   sync.Mutex
	last time.Time
}

// Now returns the time, and at least a microsecond more than before.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now().UTC().Truncate(time.Microsecond)
	if !now.After(c.last) {
		now = c.last.Add(time.Microsecond)
	}
	c.last = now
	return now
}

// Prepare returns the outbox as rows are written into it. The error is a *store.SetupError, also if the
// outbox has no table.
func Prepare(of *store.Outbox) (*outbox.Outbox, error) {
	if of.MessagePrefix != "" {
		return nil, &store.SetupError{
			Problem: "outbox " + of.Name + " has logical messages, in which no id is found again",
			Remedy:  "name an outbox with a table",
		}
	}
	o, err := outbox.New(*of)
	if err != nil {
		return nil, &store.SetupError{Problem: err.Error()}
	}
	return o, nil
}
