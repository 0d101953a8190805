package store

import (
	"fmt"
	"time"
)

// DeliveredQuery asks for COMPLETED rows of one outbox.
type DeliveredQuery struct {
	Outbox string
	// Since and Until bound the time in the first column of order-by:
	// Since <= t < Until. A zero one is no bound.
	Since, Until time.Time
	// IDs, Kinds and Groups choose rows byte for byte, the zero Group those without
	// one. An empty list chooses all.
	IDs, Kinds []string
	Groups     []Group
}

// Validate reports whether the rows of its outbox can be read so, as far as the layout
// tells. The error is a *SetupError.
func (q *DeliveredQuery) Validate(o *Outbox) error {
	switch l := &o.Layout; {
	case l.State == StateNone:
		return DeliveredReadError(o, "layout "+l.Name+" keeps no state", "")
	case l.DeleteDelivered:
		return DeliveredReadError(o, "layout "+l.Name+" deletes them at once", "")
	case len(l.OrderBy) == 0:
		return DeliveredReadError(o, "layout "+l.Name+" names no column in order-by that tells when a row was inserted",
			"name that column first in order-by, or ")
	}
	return nil
}

// DeliveredReadError says why the delivered rows of an outbox cannot be read. A remedy but
// for the log ends with "or ".
func DeliveredReadError(o *Outbox, why, remedy string) error {
	return &SetupError{
		Problem: fmt.Sprintf("outbox %q: delivered rows cannot be read from the table: %s", o.Name, why),
		Remedy:  remedy + "replay from the log",
	}
}

// OrderTimeError says that a table has no time in the column with which order-by begins.
func OrderTimeError(o *Outbox, table, typ string) error {
	return DeliveredReadError(o, fmt.Sprintf("column %s of %s, with which order-by of layout %s begins, is of type %s and no time", o.Layout.OrderBy[0], table, o.Layout.Name, typ),
		"name a column with the time of the insert first in order-by, or ")
}
