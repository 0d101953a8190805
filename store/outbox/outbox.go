package outbox

import (
	"context"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Row is a row to write.
type Row struct {
	// ID is the row's id. If it is "", a new one is made in the form of Layout.NewID.
	ID string
	// Kind is the kind of the row: the column of the kind, or the attribute kind. If it is "",
	// the kind is that of the outbox.
	Kind string
	// Group are the parts of the message group, one for each column of Layout.GroupColumns.
	// Nil means no group.
	Group []string
	// Payload is the payload, which is stored byte for byte if its column is a text or binary.
	Payload []byte
	// Attributes are the attributes beside the payload. The layout names their columns.
	Attributes store.Attributes
	// Created is when the row was made, the zero time for now. It fills the columns with the
	// attribute time and those of Layout.OrderBy.
	Created time.Time
}

// Writer writes rows in transactions of its own, for a program that receives rows from others.
// A service that owns the data writes in its own transaction instead; see New.
//
// If no unique index of a table is on the id alone, as in a table that is partitioned by its time,
// its writers write one after another, and look for the ids first. PostgreSQL, MySQL and MariaDB may
// have such tables. There a writer does not find the id of a row that a service has not committed yet.
type Writer interface {
	// Write writes rows durably, and returns a result for each, by position. It writes them
	// in their order. It may be called concurrently.
	//
	//   - Written.Err is set for a row that the layout or the database rejects. Other rows of
	//     the call are written.
	//   - An id that the table has is not written again; see Written. The relay may have deleted
	//     a delivered row, and then the table has forgotten its id.
	//
	// The error concerns the whole call, and the result of each row is unknown. Writing the same
	// rows again is safe. A *store.SetupError needs an administrator; after any other
	// error the database may be back soon.
	Write(ctx context.Context, o *store.Outbox, rows []Row) ([]Written, error)
	// Close closes the connections. Calls in flight and later ones fail.
	Close()
}

// Written is the result of writing a row.
type Written struct {
	// Created is the time of the row in its table: of the first one if Repeated is set. It is
	// zero if the layout has no column for it.
	Created time.Time
	// Repeated: the table had the row already, with the same content: its id, kind, group,
	// payload and attributes. Contents are the same if the database stores the same bytes for
	// them. So a column of type jsonb, which normalises its text, takes {"a":1} and { "a": 1 }
	// for the same, but 1 and 1.0 are two.
	Repeated bool
	// Conflict: the table has a row of this id with another content. Nothing was written.
	Conflict bool
	// Err says why this row cannot be written, nil if it can. It is a *RowError.
	Err error
}

// RowError reports a row that cannot be written, whatever else is written.
type RowError struct {
	// Key is the field of the row at fault, for example "group" or "attributes.tenant_id", and
	// "" if only the database knows it.
	Key string
	// Problem says what is wrong, and names the column. It contains no value of the row unless
	// the database's own text does.
	Problem string
	// Remedy is the way out.
	Remedy string
	// Err is the database's error, nil if the layout already rejects the row.
	Err error
}

func (e *RowError) Error() string {
	text := e.Problem
	if e.Key != "" {
		text = e.Key + ": " + text
	}
	if e.Remedy != "" {
		text += "; " + e.Remedy
	}
	return text
}

// Unwrap returns the database's error.
func (e *RowError) Unwrap() error { return e.Err }
