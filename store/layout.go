package store

import (
	"errors"
	"fmt"
	"slices"
)

// StateKind says how a table keeps the state of its rows.
type StateKind uint8

// The kinds of state.
const (
	// StateWords: a column holds a word for each status.
	StateWords StateKind = iota + 1
	// StateNumbers: a column holds a number for each status.
	StateNumbers
	// StateTimestamps: nullable timestamps say whether a row was delivered or
	// failed.
	StateTimestamps
	// StateNone: the table keeps no state. Outcomes write nothing but are
	// fenced all the same; what is settled is known from the checkpoint alone.
	StateNone
)

// Columns names the columns of an outbox table. An empty name means that the
// table has no such column.
type Columns struct {
	ID         string // required
	Kind       string // empty: the outbox has one Kind
	Group      string
	Payload    string // required
	Status     string // StateWords, StateNumbers
	Delivered  string // StateTimestamps: when the row was delivered
	Failed     string // StateTimestamps: when the row was given up
	RetryCount string
	Claimed    string // set at the claim, and again at settlement if Settled is empty
	Settled    string // set at settlement, where that is another column than Claimed
	Error      string
}

// Layout maps an outbox table onto an Item.
type Layout struct {
	Name    string
	Columns Columns
	State   StateKind
	// Words are the values of the status column under StateWords.
	Words map[Status]string
	// Numbers are the values of the status column under StateNumbers.
	Numbers map[Status]int
	// FailedNumbers are the values that say why a row failed. A reason that is
	// not listed is written as Numbers[Failed]. Each of them reads as FAILED.
	FailedNumbers map[Reason]int
	// DeleteDelivered: a delivered row is deleted instead of marked.
	DeleteDelivered bool
	// OrderBy are the columns in whose order rows are read where the log does
	// not give the order. The id is always the last of them.
	OrderBy []string
}

// FailedNumber returns the number that the layout writes for a failed row.
func (l *Layout) FailedNumber(r Reason) int {
	if n, ok := l.FailedNumbers[r]; ok {
		return n
	}
	return l.Numbers[Failed]
}

// SettledNumbers returns every number that reads as COMPLETED or FAILED, in
// ascending order.
func (l *Layout) SettledNumbers() []int {
	set := []int{l.Numbers[Completed], l.Numbers[Failed]}
	for _, n := range l.FailedNumbers {
		set = append(set, n)
	}
	slices.Sort(set)
	return slices.Compact(set)
}

// Validate reports what is missing or contradictory in the layout, all of it in
// one error.
func (l *Layout) Validate() error {
	var errs []error
	need := func(value, column string) {
		if value == "" {
			errs = append(errs, fmt.Errorf("layout %s: no %s column is named", l.Name, column))
		}
	}
	need(l.Columns.ID, "id")
	need(l.Columns.Payload, "payload")
	errs = append(errs, l.validateColumns())
	switch l.State {
	case StateWords:
		need(l.Columns.Status, "status")
		errs = append(errs, l.validateWords())
	case StateNumbers:
		need(l.Columns.Status, "status")
		errs = append(errs, l.validateNumbers())
	case StateTimestamps:
		need(l.Columns.Delivered, "delivered")
		need(l.Columns.Failed, "failed")
	case StateNone:
	default:
		errs = append(errs, fmt.Errorf("layout %s: no kind of state is chosen", l.Name))
	}
	return errors.Join(errs...)
}

// validateColumns refuses a column with two meanings: a claim would settle the
// row, or a text would overwrite its state.
func (l *Layout) validateColumns() error {
	c := &l.Columns
	seen := map[string]string{}
	var errs []error
	for _, col := range []struct{ meaning, name string }{
		{"id", c.ID}, {"payload", c.Payload}, {"status", c.Status}, {"delivered", c.Delivered}, {"failed", c.Failed},
		{"retry count", c.RetryCount}, {"claimed", c.Claimed}, {"settled", c.Settled}, {"error", c.Error},
	} {
		if other, taken := seen[col.name]; taken && col.name != "" {
			errs = append(errs, fmt.Errorf("layout %s: column %q is named for both %s and %s", l.Name, col.name, other, col.meaning))
		}
		seen[col.name] = col.meaning
	}
	return errors.Join(errs...)
}

func (l *Layout) validateWords() error {
	seen := map[string]Status{}
	for s := Pending; s <= Failed; s++ {
		word := l.Words[s]
		if word == "" {
			return fmt.Errorf("layout %s: no word for %s", l.Name, s)
		}
		if other, taken := seen[word]; taken {
			return fmt.Errorf("layout %s: %q stands for both %s and %s", l.Name, word, other, s)
		}
		seen[word] = s
	}
	return nil
}

func (l *Layout) validateNumbers() error {
	seen := map[int]Status{}
	for s := Pending; s <= Failed; s++ {
		n, ok := l.Numbers[s]
		if !ok {
			return fmt.Errorf("layout %s: no number for %s", l.Name, s)
		}
		if other, taken := seen[n]; taken {
			return fmt.Errorf("layout %s: %d stands for both %s and %s", l.Name, n, other, s)
		}
		seen[n] = s
	}
	for _, n := range l.FailedNumbers {
		if s, taken := seen[n]; taken && s != Failed {
			return fmt.Errorf("layout %s: %d stands for both %s and %s", l.Name, n, s, Failed)
		}
	}
	return nil
}

// FlowCatalyst is the layout of the two tables of the FlowCatalyst outbox
// processor: words for the status, delivered rows are kept.
func FlowCatalyst() Layout {
	return Layout{
		Name: "flowcatalyst",
		Columns: Columns{
			ID: "id", Group: "message_group", Payload: "payload",
			Status: "status", RetryCount: "retry_count",
			Claimed: "processed_at", Error: "error_message",
		},
		State: StateWords,
		Words: map[Status]string{
			Pending: "PENDING", Processing: "PROCESSING",
			Completed: "COMPLETED", Failed: "FAILED",
		},
		OrderBy: []string{"created_at"},
	}
}

// OutboxMessages is the layout of the one table that FlowCatalyst's SDKs write
// today: numbers for the status, the kind in a column, delivered rows deleted.
func OutboxMessages() Layout {
	return Layout{
		Name: "outbox-messages",
		Columns: Columns{
			ID: "id", Kind: "type", Group: "message_group", Payload: "payload",
			Status: "status", RetryCount: "retry_count",
			Claimed: "updated_at", Error: "error_message",
		},
		State:   StateNumbers,
		Numbers: map[Status]int{Pending: 0, Completed: 1, Failed: 3, Processing: 9},
		FailedNumbers: map[Reason]int{
			ReasonBadRequest: 2, ReasonInternal: 3, ReasonUnauthorized: 4,
			ReasonForbidden: 5, ReasonGateway: 6,
		},
		DeleteDelivered: true,
		OrderBy:         []string{"created_at"},
	}
}
