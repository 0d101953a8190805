package fault

import (
	"errors"
	"fmt"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// MostFailures is how often the log may fail to be read at one place. The pauses
// that capture.Follow makes in between last some seconds.
const MostFailures = 7

// LogError is a fault of the log itself at the place where a run stands: it could
// not be decoded. One may be an accident.
type LogError struct{ Err error }

func (e *LogError) Error() string { return e.Err.Error() }

// Unwrap returns what went wrong.
func (e *LogError) Unwrap() error { return e.Err }

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

// Trouble counts what runs end with, so that what trying again does not mend is
// told from a lost connection. Its zero value is ready. It belongs to the
// goroutine of Run.
type Trouble struct {
	failures int // in a row, without a row or a position between
}

// Ended says what becomes of a run that ended with an error behind a position.
// progress says that it had sent something new. A place in the log that cannot be
// read however often it is tried is as good as lost: a new cut goes on behind it.
func (t *Trouble) Ended(err error, progress bool, last store.Position) error {
	var row *RowError
	var setup *store.SetupError
	var fault *LogError
	switch {
	case errors.As(err, &row):
		return &capture.LostError{Reason: fmt.Sprintf("what follows %s holds a row that cannot be relayed: %v", last, row)}
	case errors.As(err, &setup) || !errors.As(err, &fault):
		return err
	}
	if progress {
		t.failures = 0
	}
	t.failures++
	if t.failures >= MostFailures {
		return &capture.LostError{Reason: fmt.Sprintf("what follows %s cannot be read, tried %d times: %v", last, t.failures, err)}
	}
	return fmt.Errorf("the log cannot be read behind %s, %d failures in a row: %w", last, t.failures, err)
}
