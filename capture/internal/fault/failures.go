package fault

import (
	"errors"
	"fmt"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// MaxFailures is the number of consecutive failures to read the log at one position before
// it counts as lost. With the backoff of capture.Follow they take some seconds.
const MaxFailures = 7

// UnreadableLogError reports that the log at the present position could not be decoded. A
// single one may be transient.
type UnreadableLogError struct{ Err error }

func (e *UnreadableLogError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *UnreadableLogError) Unwrap() error { return e.Err }

// RowError reports a row in the log that cannot be relayed. It names the table and, if
// known, the row's id.
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

// Unwrap returns the cause.
func (e *RowError) Unwrap() error { return e.Err }

// FailureCounter counts failed runs, to distinguish a permanent fault from a lost connection. Its
// zero value is ready. It belongs to the goroutine of Run.
type FailureCounter struct {
	consecutive int // failures in a row, without a row or a position in between
}

// Classify returns the error to report for a run that failed after position last. progress
// is whether the run sent something new. A position that stays unreadable for MaxFailures
// runs becomes a *capture.LostError, because a new snapshot continues after it.
func (t *FailureCounter) Classify(err error, progress bool, last store.Position) error {
	var row *RowError
	var setup *store.SetupError
	var fault *UnreadableLogError
	switch {
	case errors.As(err, &row):
		return &capture.LostError{Reason: fmt.Sprintf("log after position %s contains a row that cannot be relayed: %v", last, row)}
	case errors.As(err, &setup) || !errors.As(err, &fault):
		return err
	}
	if progress {
		t.consecutive = 0
	}
	t.consecutive++
	if t.consecutive >= MaxFailures {
		return &capture.LostError{Reason: fmt.Sprintf("log after position %s is unreadable after %d attempts: %v", last, t.consecutive, err)}
	}
	return fmt.Errorf("read log after position %s: %d consecutive failures: %w", last, t.consecutive, err)
}
