package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// DeadLetterFilter chooses FAILED rows of one outbox. A zero field chooses all.
type DeadLetterFilter struct {
	Outbox string // required
	IDs    []string
	// Kind and Group choose rows whose lane has them, byte for byte. Where the
	// layout names no column for one of them, all rows have the outbox's kind and
	// no group.
	Kind  string
	Group *Group
	// Error is a part of the row's error text, in the same case. For layouts that
	// keep no such text it is an error.
	Error string
	// Since and Until bound when the row FAILED: Since <= t < Until. A row
	// without a time is not chosen then. For layouts that keep no such time,
	// either is an error.
	Since, Until time.Time
}

// Validate reports everything that keeps a filter from choosing rows of its
// outbox, in one error.
func (f *DeadLetterFilter) Validate(o *Outbox) error {
	l := &o.Layout
	if l.State == StateNone {
		return fmt.Errorf("outbox %s: layout %s keeps no state, so there are no FAILED rows to find", o.Name, l.Name)
	}
	var errs []error
	if f.Error != "" && l.Columns.Error == "" {
		errs = append(errs, fmt.Errorf("outbox %s: layout %s names no column for the error, so rows cannot be chosen by it", o.Name, l.Name))
	}
	if (!f.Since.IsZero() || !f.Until.IsZero()) && l.FailedTime() == "" {
		errs = append(errs, fmt.Errorf("outbox %s: layout %s names no column for the time of settlement, so rows cannot be chosen by it", o.Name, l.Name))
	}
	if !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until) {
		errs = append(errs, fmt.Errorf("outbox %s: since %s is not before until %s", o.Name, f.Since.Format(time.RFC3339), f.Until.Format(time.RFC3339)))
	}
	return errors.Join(errs...)
}

// FailedTime returns the column that tells when a row FAILED, "" if there is
// none.
func (l *Layout) FailedTime() string {
	c := &l.Columns
	switch {
	case l.State == StateNone:
		return ""
	case l.State == StateTimestamps:
		return c.Failed
	case c.Settled != "":
		return c.Settled
	}
	return c.Claimed
}

// FailedCodes returns every number that reads as FAILED, in ascending order.
func (l *Layout) FailedCodes() []int {
	set := []int{l.Numbers[Failed]}
	for _, n := range l.FailedNumbers {
		set = append(set, n)
	}
	slices.Sort(set)
	return slices.Compact(set)
}

// DeadLetter is one FAILED row.
type DeadLetter struct {
	Ref
	Kind       string
	Group      Group
	RetryCount int
	Error      string
	FailedAt   time.Time // zero where the layout keeps no time
	// Payload is nil unless it was asked for.
	Payload     []byte
	PayloadSize int
}

// Item returns the row as it is once it was requeued, as captured now.
func (d *DeadLetter) Item(now time.Time) Item {
	return Item{Ref: d.Ref, Kind: d.Kind, Group: d.Group, PayloadSize: d.PayloadSize, Captured: now}
}

// OpenDeadLetters reads and mends FAILED rows. Layouts that keep no state have none;
// asking for theirs is an error that says so. Counting and reading need no
// leader and hold nothing up, so another process may do it beside a relay.
type DeadLetters interface {
	// CountFailed counts the rows that a filter chooses.
	CountFailed(ctx context.Context, f DeadLetterFilter) (int, error)
	// Failed returns at most limit of the chosen rows, in the layout's order-by.
	Failed(ctx context.Context, f DeadLetterFilter, limit int, payload bool) ([]DeadLetter, error)
	// Requeue sets at most limit of the chosen rows, the first in the layout's
	// order-by, back to PENDING with no retries and no error, durably. It returns
	// them in that order, without payload, Txn and Seq. Rows that are no longer
	// FAILED when it comes to write are left alone and left out. A Blocked hold
	// that names a row is forgotten with it. ErrNotLeader and *RefusedError mean
	// that nothing was written.
	Requeue(ctx context.Context, epoch Epoch, f DeadLetterFilter, limit int) ([]Item, error)
	// Discard deletes at most limit of the chosen rows, the first in the layout's
	// order-by, durably, and returns which, in that order. What is said of rows
	// and holds at Requeue goes for it too. ErrNotLeader and *RefusedError mean
	// that nothing was written.
	Discard(ctx context.Context, epoch Epoch, f DeadLetterFilter, limit int) ([]Ref, error)
}

// FailedReader reads FAILED rows however many they are.
type FailedReader interface {
	// EachFailed hands over every chosen row without payload, in the layout's order-by. It
	// takes little memory and needs no leader. It may begin again from the first row.
	EachFailed(ctx context.Context, f DeadLetterFilter, take func(*DeadLetter)) error
}

// RequeuedItems returns dead letters as the items that they are once they are
// requeued, captured now.
func RequeuedItems(letters []DeadLetter, now time.Time) []Item {
	items := make([]Item, len(letters))
	for i := range letters {
		items[i] = letters[i].Item(now)
	}
	return items
}

// Refs returns the names of dead letters.
func Refs(letters []DeadLetter) []Ref {
	refs := make([]Ref, len(letters))
	for i := range letters {
		refs[i] = letters[i].Ref
	}
	return refs
}
