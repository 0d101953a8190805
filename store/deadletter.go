package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// DeadLetterFilter selects FAILED rows of one outbox. A zero field selects all rows.
type DeadLetterFilter struct {
	Outbox string // required
	IDs    []string
	// Kind matches the row's own kind, as Item.OwnKind returns it, and Group the group of its
	// lane, byte for byte. If the layout has no column for one of them, every row has the
	// outbox's Kind, or no group.
	Kind  string
	Group *Group
	// Error is a substring of the row's error text, case-sensitive. Validate rejects it for
	// layouts that store FAILED and no error text.
	Error string
	// Since and Until limit the time at which the row FAILED: Since <= t < Until. A row
	// without a time is not selected then. Validate rejects both for layouts that store
	// FAILED and no such time.
	Since, Until time.Time
}

// Validate returns every reason why the filter cannot select rows of o, in one error.
func (f *DeadLetterFilter) Validate(o *Outbox) error {
	l := &o.Layout
	recorded := !l.Stores(Failed) // with its error and time

	var errs []error
	if f.Error != "" && l.Columns.Error == "" && !recorded {
		errs = append(errs, fmt.Errorf("outbox %s: layout %s has no error column to select rows by", o.Name, l.Name))
	}
	if (!f.Since.IsZero() || !f.Until.IsZero()) && l.FailedTime() == "" && !recorded {
		errs = append(errs, fmt.Errorf("outbox %s: layout %s has no settlement time column to select rows by", o.Name, l.Name))
	}
	if !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until) {
		errs = append(errs, fmt.Errorf("outbox %s: since %s is not before until %s", o.Name, f.Since.Format(time.RFC3339), f.Until.Format(time.RFC3339)))
	}

	return errors.Join(errs...)
}

// Matches reports whether the filter selects a FAILED row of its outbox, whatever its id. It
// compares texts byte for byte.
func (f *DeadLetterFilter) Matches(d *DeadLetter) bool {
	switch {
	case f.Kind != "" && d.Kind != f.Kind, f.Group != nil && d.Group != *f.Group, !strings.Contains(d.Error, f.Error):
		return false
	case f.Since.IsZero() && f.Until.IsZero():
		return true
	}
	return !d.FailedAt.IsZero() && !d.FailedAt.Before(f.Since) && (f.Until.IsZero() || d.FailedAt.Before(f.Until))
}

// FailedTime returns the column with the time at which a row FAILED, "" if there is none.
func (l *Layout) FailedTime() string {
	c := &l.Columns
	switch {
	case !l.Stores(Failed):
		return ""
	case l.State == StateTimestamps:
		return c.Failed
	case c.Settled != "" || l.Lease:
		return c.Settled
	}
	return c.Claimed
}

// FailedCodes returns every number that means FAILED, in ascending order.
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
	Kind        string    `json:"kind"` // of the row itself; its lane may have another
	Group       Group     `json:"group"`
	RetryCount  int       `json:"retry_count"`
	Error       string    `json:"error"`
	FailedAt    time.Time `json:"failed_at,omitzero"` // by the relay's clock; zero if the layout stores no time
	PayloadSize int       `json:"payload_size"`       // bytes
	// Payload is nil unless the caller requested payloads. Only its text is JSON, so the
	// caller encodes it.
	Payload []byte `json:"-"`
}

// Item returns the row of o as it is after a requeue, captured at now.
func (d *DeadLetter) Item(o *Outbox, now time.Time) Item {
	it := Item{Ref: d.Ref, Kind: o.Kind, Group: d.Group, PayloadSize: d.PayloadSize, Captured: now}
	if o.Layout.Columns.Kind != "" {
		it.Kind = d.Kind
	}
	return it
}

// ErrUnsure reports that a requeue of rows that only the log has may have been carried out,
// because its answer was lost.
var ErrUnsure = errors.New("the requeue may have been carried out")

// DeadLetters reads, requeues and deletes FAILED rows. CountFailed and Failed need no leader
// and block no writer, so another process may call them while a relay runs.
//
// The rows of a layout that does not store FAILED are in the relay's own records, in the order
// in which they FAILED; see package ledger. The tables of such a layout select only rows that
// the filter names by IDs, and all of these that are unsettled.
type DeadLetters interface {
	// CountFailed counts the rows that the filter selects.
	CountFailed(ctx context.Context, f DeadLetterFilter) (int, error)
	// Failed returns up to limit of the selected rows, in the layout's order-by.
	Failed(ctx context.Context, f DeadLetterFilter, limit int, payload bool) ([]DeadLetter, error)
	// Requeue sets up to limit of the selected rows back to PENDING, durably, with no
	// retries and no error. It takes the first rows in the layout's order-by and returns
	// them in that order, without payload, Txn and Seq.
	//
	// Rows that are no longer FAILED when Requeue writes are left unchanged and are not
	// returned. A Blocked hold that names a requeued row is deleted with it. After
	// ErrNotLeader or a *RefusedError nothing was written. After ErrUnsure the rows may be among
	// the spilled rows; see SpillStore.SpilledLanes.
	Requeue(ctx context.Context, epoch Epoch, f DeadLetterFilter, limit int) ([]Item, error)
	// Discard deletes up to limit of the selected rows, durably. It takes the first rows in
	// the layout's order-by and returns their names in that order. Rows that are no longer
	// FAILED and Blocked holds are treated as by Requeue. After ErrNotLeader or a
	// *RefusedError nothing was written.
	//
	// With a FailedArchive, the same transaction copies the rows into it. A row that it does not
	// take is refused.
	Discard(ctx context.Context, epoch Epoch, f DeadLetterFilter, limit int) ([]Ref, error)
}

// FailedReader iterates over any number of FAILED rows.
type FailedReader interface {
	// EachFailed calls take for every selected row, without payload, in the layout's
	// order-by. It needs little memory and no leader. It may restart from the first row, so
	// take can see a row twice.
	EachFailed(ctx context.Context, f DeadLetterFilter, take func(*DeadLetter)) error
}

// RequeuedItems returns the items of requeued dead letters of o, captured at now.
func RequeuedItems(o *Outbox, letters []DeadLetter, now time.Time) []Item {
	items := make([]Item, len(letters))
	for i := range letters {
		items[i] = letters[i].Item(o, now)
	}
	return items
}

// Refs returns the row names of dead letters.
func Refs(letters []DeadLetter) []Ref {
	refs := make([]Ref, len(letters))
	for i := range letters {
		refs[i] = letters[i].Ref
	}
	return refs
}

// Attempt is a request that carried a row.
type Attempt struct {
	Started time.Time // by the relay's clock
	Took    time.Duration
	Class   string // the name of a class of package sink
	Error   string // "" for a delivery
}

// FailedAttempts are the latest failed attempts of a row, the oldest first. Total counts all.
type FailedAttempts struct {
	Ref
	Latest []Attempt
	Total  int
}

// AttemptLog keeps the failed attempts of rows that are not delivered, for operators. The caller limits
// the number of rows. Losing the latest ones harms nothing.
type AttemptLog interface {
	// SaveAttempts writes the attempts of rows in place of what it had, and deletes those of other
	// rows. No row is in both. Errors: those of Settler, without RefusedError.
	SaveAttempts(ctx context.Context, epoch Epoch, save []FailedAttempts, drop []Ref) error
	// LoadAttempts returns the attempts of all rows, also of outboxes that are not configured any more.
	LoadAttempts(ctx context.Context) ([]FailedAttempts, error)
	// ReadAttempts returns the attempts of a row, nil if there are none. Any process may call it.
	ReadAttempts(ctx context.Context, row Ref) (*FailedAttempts, error)
}
