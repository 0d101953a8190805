package fault

import (
	"errors"
	"fmt"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// MaxFailures is how often the log may fail to be read at one place. The pauses
// that capture.Follow makes in between last some seconds.
const MaxFailures = 7

// UnreadableLogError is a fault of the log itself at the place where a run stands: it could
// not be decoded. One may be an accident.
type UnreadableLogError struct{ Err error }

func (e *UnreadableLogError) Error() string { return e.Err.Error() }

// Unwrap returns what went wrong.
func (e *UnreadableLogError) Unwrap() error { return e.Err }

// RowError says that a row in the log is none that could be relayed. It names
// the table and, where it has one, the row's id.
type RowError struct {
	Schema, Table, ID string
	Err               error
}

func (e *RowError) Error() string {
	if e.ID == "" {
		return fmt.Sprintf("table %s.%s: %v", e.Schema, e.Table, e.Err)
	}
	return fmt.Sprintf("table %s.%s: row %q: %v", e.Schema, e.Table, e.ID, e.Err)
}

// Unwrap returns what is wrong with the row.
func (e *RowError) Unwrap() error { return e.Err }

// FailureCounter counts what runs end with, so that what trying again does not mend is
// told from a lost connection. Its zero value is ready. It belongs to the
// goroutine of Run.
type FailureCounter struct {
	consecutive int // in a row, without a row or a position between
}

// Classify says what becomes of a run that ended with an error behind a position.
// progress says that it had sent something new. A place in the log that cannot be
// read however often it is tried is as good as lost: a new cut goes on behind it.
func (t *FailureCounter) Classify(err error, progress bool, last store.Position) error {
	var row *RowError
	var setup *store.SetupError
	var fault *UnreadableLogError
	switch {
	case errors.As(err, &row):
		return &capture.LostError{Reason: fmt.Sprintf("what follows %s holds a row that cannot be relayed: %v", last, row)}
	case errors.As(err, &setup) || !errors.As(err, &fault):
		return err
	}
	if progress {
		t.consecutive = 0
	}
	t.consecutive++
	if t.consecutive >= MaxFailures {
		return &capture.LostError{Reason: fmt.Sprintf("what follows %s cannot be read, tried %d times: %v", last, t.consecutive, err)}
	}
	return fmt.Errorf("the log cannot be read behind %s, %d failures in a row: %w", last, t.consecutive, err)
}
