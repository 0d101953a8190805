package store

import (
	"fmt"
	"time"
)

// DeliveredQuery selects COMPLETED rows of one outbox.
type DeliveredQuery struct {
	Outbox string
	// Since and Until limit the time in the first column of order-by: Since <= t < Until. A
	// zero time is no limit.
	Since, Until time.Time
	// IDs, Kinds and Groups match rows byte for byte. The zero Group matches rows without a
	// group. An empty list matches all rows.
	IDs, Kinds []string
	Groups     []Group
}

// Validate reports whether the layout of o allows reading delivered rows. The error is a
// *SetupError.
func (q *DeliveredQuery) Validate(o *Outbox) error {
	switch l := &o.Layout; {
	case l.State == StateNone:
		return DeliveredReadError(o, "layout "+l.Name+" keeps no state", "")
	case l.DeleteDelivered:
		return DeliveredReadError(o, "layout "+l.Name+" deletes them at once", "")
	case len(l.OrderBy) == 0:
		return DeliveredReadError(o, "layout "+l.Name+" has no insert time column in order-by",
			"name that column first in order-by, or ")
	}
	return nil
}

// DeliveredReadError returns the error for an outbox whose delivered rows cannot be read. A
// non-empty remedy ends with "or ", because the text goes on with the alternative: replay
// from the log.
func DeliveredReadError(o *Outbox, why, remedy string) error {
	return &SetupError{
		Problem: fmt.Sprintf("outbox %q: delivered rows cannot be read from the table: %s", o.Name, why),
		Remedy:  remedy + "replay from the log",
	}
}

// OrderTimeError returns the error for a table whose first column in order-by has no time
// type.
func OrderTimeError(o *Outbox, table, typ string) error {
	return DeliveredReadError(o, fmt.Sprintf("column %s of %s, the first in order-by of layout %s, has type %s and is not a time", o.Layout.OrderBy[0], table, o.Layout.Name, typ),
		"name an insert time column first in order-by, or ")
}
