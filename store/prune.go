package store

import (
	"context"
	"fmt"
	"time"
)

// PruneRequest asks for the deletion of delivered rows of one outbox.
type PruneRequest struct {
	Outbox string
	// Before: rows that were settled at this time or later stay.
	Before time.Time
	// Limit is the most rows to delete; it must be positive.
	Limit int
	// From is where to go on: "" at the beginning, else the Next of the call
	// before.
	From string
}

// Validate reports whether rows of its outbox may be deleted so.
func (p *PruneRequest) Validate(o *Outbox) error {
	if p.Limit <= 0 {
		return fmt.Errorf("outbox %s: the limit is %d, must be positive", o.Name, p.Limit)
	}
	return o.validatePrunable()
}

// PruneResult is what a Prune did.
type PruneResult struct {
	// Rows is how many rows were deleted.
	Rows int
	// Next is where to go on, for the same store alone; "" says that the end of
	// the table was reached.
	Next string
}

// Pruner deletes delivered rows that were kept long enough.
type Pruner interface {
	// Prune looks at a bounded part of a table, in the order in which its rows
	// come to stand there, and deletes those that are COMPLETED and were settled
	// before a time, in one short transaction. It waits for no row that somebody
	// has locked: those stay until the table is gone through again. A row without
	// a time of settlement stays. The deletion may be taken back by a crash.
	//
	// ErrNotLeader and *RefusedError mean that nothing was deleted; after the
	// latter Next, if it is not "", is where to go on without these rows.
	Prune(ctx context.Context, epoch Epoch, p PruneRequest) (PruneResult, error)
	// Clock returns the time by the database's clock.
	Clock(ctx context.Context) (time.Time, error)
}

// DeliveredTime returns the column that tells when a row was delivered, "" if
// there is none.
func (l *Layout) DeliveredTime() string {
	c := &l.Columns
	switch {
	case l.State == StateNone || l.DeleteDelivered:
		return ""
	case l.State == StateTimestamps:
		return c.Delivered
	case c.Settled != "":
		return c.Settled
	}
	return c.Claimed
}

// ValidateRetention reports whether the outbox's delivered rows can be deleted
// after its Retention. The error is a *SetupError.
func (o *Outbox) ValidateRetention() error {
	switch {
	case o.Retention == 0:
		return nil
	case o.Retention < 0:
		return &SetupError{
			Problem: fmt.Sprintf("outbox %q: the retention is %s, must not be negative", o.Name, o.Retention),
			Remedy:  "give a time such as 168h, or 0 to keep delivered rows for ever",
		}
	}
	return o.validatePrunable()
}

// validatePrunable reports whether it can be told which rows were delivered, and when.
func (o *Outbox) validatePrunable() error {
	l := &o.Layout
	fault := func(why, remedy string) error {
		return &SetupError{Problem: fmt.Sprintf("outbox %q: delivered rows cannot be deleted after a retention: layout %s %s", o.Name, l.Name, why), Remedy: remedy}
	}
	const leave = "leave the retention out"
	switch {
	case l.State == StateNone:
		return fault("keeps no state", leave)
	case l.DeleteDelivered:
		return fault("deletes them at once", leave)
	case l.DeliveredTime() == "":
		return fault("has no column for the time of settlement", "name one in columns.settled or columns.claimed, or "+leave)
	}
	return nil
}
