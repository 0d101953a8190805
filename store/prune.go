package store

import (
	"cmp"
	"context"
	"fmt"
	"time"
)

// PruneRequest deletes delivered rows of one outbox.
type PruneRequest struct {
	Outbox string
	// Before is the limit of settlement times: rows settled at or after it are kept.
	Before time.Time
	// Limit is the maximum number of rows to delete, except that a partition whose rows are
	// all to be deleted may be emptied as a whole. It must be positive. The call scans a
	// part of the table in proportion to it; see ScanRows.
	Limit int
	// From is the cursor: "" for the beginning, else Next of the previous call.
	From string
}

// ScanRows is how many rows a call reads at most: 4 for each that it may delete, because the
// rows to delete usually follow each other.
func (p *PruneRequest) ScanRows() int { return 4 * p.Limit }

// Validate reports whether the request may be made of o.
func (p *PruneRequest) Validate(o *Outbox) error {
	if p.Limit <= 0 {
		return fmt.Errorf("outbox %s: limit %d must be positive", o.Name, p.Limit)
	}
	if err := o.validatePrunable(); err != nil {
		return fmt.Errorf("outbox %q: %w", o.Name, err)
	}
	return nil
}

// PruneResult is the result of Prune.
type PruneResult struct {
	// Rows is the number of deleted rows.
	Rows int
	// Next is the cursor for the next call, valid only for the same store; "" at the end of
	// the table.
	Next string
}

// Pruner deletes delivered rows after their retention.
type Pruner interface {
	// Prune scans a bounded part of a table, in the order in which the database stores its
	// rows. In one short transaction it deletes the rows that are COMPLETED and were
	// settled before p.Before. A crash may undo the deletion.
	//
	//   - With an Archive, the same transaction copies the rows into it. A row that the
	//     archive does not take is refused.
	//   - Prune does not wait for locked rows: they stay until the next scan of the table.
	//   - A row without a settlement time stays.
	//   - After ErrNotLeader or a *RefusedError nothing was deleted. After a *RefusedError
	//     a non-empty Next is the cursor behind the refused rows.
	Prune(ctx context.Context, epoch Epoch, p PruneRequest) (PruneResult, error)
	// Clock returns the database's time.
	Clock(ctx context.Context) (time.Time, error)
}

// DeliveredTime returns the column with the delivery time, "" if there is none.
func (l *Layout) DeliveredTime() string {
	c := &l.Columns
	switch {
	case l.State == StateNone || l.DeleteDelivered:
		return ""
	case c.Delivered != "" || c.Settled != "" || l.Lease:
		return cmp.Or(c.Delivered, c.Settled)
	}
	return c.Claimed
}

// ValidateRetention reports whether the outbox's delivered rows can be deleted after
// Retention. The error is a *SetupError and does not name the outbox.
func (o *Outbox) ValidateRetention() error {
	switch {
	case o.Retention == 0:
		return nil
	case o.Retention < 0:
		return &SetupError{
			Problem: fmt.Sprintf("retention %s must not be negative", o.Retention),
			Remedy:  "use a duration such as 168h, or 0 to keep delivered rows",
		}
	}
	return o.validatePrunable()
}

// ValidateArchive reports whether rows can be moved into Archive. The error is a *SetupError
// and does not name the outbox.
func (o *Outbox) ValidateArchive() error {
	switch {
	case o.Archive == "":
		return nil
	case o.Retention <= 0:
		return &SetupError{
			Problem: "rows are archived after their retention, and there is none",
			Remedy:  "set a retention such as 168h, or remove the archive",
		}
	case o.Archive == o.Table && o.ArchiveSchema == o.Schema:
		return &SetupError{Problem: fmt.Sprintf("archive %s is the outbox's own table", o.Archive), Remedy: "name another table"}
	}
	return nil
}

// ValidateFailedArchive reports whether FAILED rows can be moved into FailedArchive. The error is
// a *SetupError and does not name the outbox.
func (o *Outbox) ValidateFailedArchive() error {
	switch {
	case o.FailedArchive == "":
		return nil
	case len(o.Routes) > 0:
		return &SetupError{
			Problem: "FAILED rows of an outbox with routes cannot be moved, because a route that failed keeps its part of the row",
			Remedy:  "remove the table for dead letters; list them by route",
		}
	case o.Layout.LogOnly():
		return &SetupError{
			Problem: fmt.Sprintf("FAILED rows cannot be moved: layout %s keeps no state, so the relay takes no row out of the table", o.Layout.Name),
			Remedy:  "remove the table for dead letters; the relay's own tables keep them",
		}
	case o.FailedArchive == o.Table && o.FailedArchiveSchema == o.Schema:
		return &SetupError{Problem: fmt.Sprintf("dead-letter table %s is the outbox's own table", o.FailedArchive), Remedy: "name another table"}
	}
	return nil
}

// validatePrunable reports whether the layout records which rows were delivered, and when.
func (o *Outbox) validatePrunable() error {
	l := &o.Layout
	fault := func(why, remedy string) error {
		return &SetupError{Problem: fmt.Sprintf("delivered rows cannot be pruned: layout %s %s", l.Name, why), Remedy: remedy}
	}
	const leave = "remove the retention"
	switch {
	case l.State == StateNone:
		return fault("keeps no state", leave)
	case l.DeleteDelivered:
		return fault("deletes them at once", leave)
	case l.DeliveredTime() == "":
		return fault("has no settlement time column", "name one in columns.settled or columns.claimed, or "+leave)
	}

	return nil
}
