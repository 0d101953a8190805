// Package fault describes why a log cannot be read: faults that an operator has to fix, and
// failures that a retry cannot fix.
package fault

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// Fault is a reason why a role cannot stream, with its remedy.
type Fault struct {
	// Subject is the subject of the finding, for example "publication".
	Subject string
	Problem string
	// Statements are the remedy. They can be run unchanged.
	Statements []string
	// Instructions says who runs the statements and what else to do. Without statements it
	// is the whole remedy.
	Instructions string
}

// SetupError converts the fault to a store.SetupError.
func (f *Fault) SetupError() store.SetupError {
	remedy := f.Instructions
	if len(f.Statements) > 0 {
		remedy = strings.TrimSpace("run `" + strings.Join(f.Statements, " ") + "` " + f.Instructions)
	}
	return store.SetupError{Problem: f.Problem, Remedy: remedy}
}

// Err converts the fault to an error of Open: a *capture.NoStreamError from which FromError
// recovers the fault.
func (f Fault) Err() error {
	return &faultError{capture.NoStreamError{SetupError: f.SetupError()}, f}
}

// Finding converts the fault to a finding of doctor. The instructions become an SQL comment
// before the statements.
func (f *Fault) Finding(grade store.Grade) store.Finding {
	remedy := f.Instructions
	if len(f.Statements) > 0 {
		lines := f.Statements
		if f.Instructions != "" {
			lines = append([]string{"-- " + f.Instructions}, lines...)
		}
		remedy = strings.Join(lines, "\n")
	}
	return store.Finding{Grade: grade, Subject: f.Subject, Text: f.Problem, Remedy: remedy}
}

// NoStream returns a *capture.NoStreamError.
func NoStream(problem, remedy string) error {
	return &capture.NoStreamError{SetupError: store.SetupError{Problem: problem, Remedy: remedy}}
}

type faultError struct {
	capture.NoStreamError
	fault Fault
}

// Unwrap returns the error as a *capture.NoStreamError.
func (e *faultError) Unwrap() error { return &e.NoStreamError }

// FromError returns the fault in an error that reports why the role cannot stream, or nil. A
// *capture.NoStreamError without a fault gets the subject "stream".
func FromError(err error) *Fault {
	var known *faultError
	var no *capture.NoStreamError
	switch {
	case errors.As(err, &known):
		return &known.fault
	case errors.As(err, &no):
		return &Fault{Subject: "stream", Problem: no.Problem, Instructions: no.Remedy}
	}
	return nil
}

// List collects all faults, so that an operator can fix them in one go.
type List struct {
	Faults []Fault
	// Fatal is set if the tables cannot be polled either.
	Fatal bool
}

// Add adds a fault.
func (l *List) Add(f Fault) { l.Faults = append(l.Faults, f) }

// AddErr adds the fault of an error. It returns the error if it contains none.
func (l *List) AddErr(err error) error {
	if f := FromError(err); f != nil {
		l.Add(*f)
		return nil
	}
	return err
}

// Err returns a *capture.NoStreamError that names all faults, or a *store.SetupError if
// polling is impossible too. It is nil without faults.
func (l *List) Err() error {
	if len(l.Faults) == 0 {
		return nil
	}
	all := l.Faults[0].SetupError()
	if len(l.Faults) > 1 {
		var lines strings.Builder
		for i := range l.Faults {
			one := l.Faults[i].SetupError()
			lines.WriteString("\n  - " + one.Error())
		}
		all = store.SetupError{Problem: fmt.Sprintf("database not ready for streaming; %d problems:%s", len(l.Faults), lines.String())}
	}
	if l.Fatal {
		return &all
	}
	return &capture.NoStreamError{SetupError: all}
}

// Lostf returns a *capture.LostError.
func Lostf(format string, args ...any) error {
	return &capture.LostError{Reason: fmt.Sprintf(format, args...)}
}

// OtherLogf returns a *capture.OriginError.
func OtherLogf(format string, args ...any) error {
	return &capture.OriginError{Reason: fmt.Sprintf(format, args...)}
}

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

// MissingColumnsError reports that the log has a table without columns that a layout names.
type MissingColumnsError struct {
	store.SetupError
	// Log names the log, for example "the WAL".
	Log string
	// Table is the table's name in the log.
	Table   string
	Outbox  *store.Outbox
	Columns []string
}

// Unwrap returns the error as a *store.SetupError.
func (e *MissingColumnsError) Unwrap() error { return &e.SetupError }

// ExplainMissingColumns turns a *MissingColumnsError into a *capture.LostError if the table
// has the columns by now. The log from the time without them is unreadable, but the table
// can be read. It returns every other error unchanged.
func ExplainMissingColumns(err error, hasNow func(*MissingColumnsError) bool) error {
	var missing *MissingColumnsError
	if !errors.As(err, &missing) || !hasNow(missing) {
		return err
	}
	return Lostf("%s has table %s without %s, which it has by now", missing.Log, missing.Table, strings.Join(missing.Columns, " and "))
}

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
		return Lostf("log after position %s contains a row that cannot be relayed: %v", last, row)
	case errors.As(err, &setup) || !errors.As(err, &fault):
		return err
	}
	if progress {
		t.consecutive = 0
	}
	t.consecutive++
	if t.consecutive >= MaxFailures {
		return Lostf("log after position %s is unreadable after %d attempts: %v", last, t.consecutive, err)
	}
	return fmt.Errorf("read log after position %s: %d consecutive failures: %w", last, t.consecutive, err)
}

// Findings collects the findings of a diagnosis, in the order in which an operator reads and
// fixes them.
type Findings struct {
	Found []store.Finding
	// Faults are those that AddSubject reports.
	Faults []Fault
}

// Add adds a finding, with the lines of its remedy.
func (f *Findings) Add(subject string, grade store.Grade, text string, remedies ...string) {
	f.Found = append(f.Found, store.Finding{Grade: grade, Subject: subject, Text: text, Remedy: strings.Join(remedies, "\n")})
}

// AddFault adds the finding of a fault that keeps the role from streaming.
func (f *Findings) AddFault(one *Fault) { f.Found = append(f.Found, one.Finding(store.GradeFault)) }

// AddSubject adds the faults of a subject, or okText if there are none and it is not "".
func (f *Findings) AddSubject(subject, okText string) {
	for i := range f.Faults {
		if f.Faults[i].Subject == subject {
			f.AddFault(&f.Faults[i])
		}
	}
	if okText != "" && !f.HasFault(subject) {
		f.Add(subject, store.GradeOK, okText)
	}
}

// HasFault reports whether a subject has a fault.
func (f *Findings) HasFault(subject string) bool {
	return slices.ContainsFunc(f.Faults, func(one Fault) bool { return one.Subject == subject })
}

// Result returns the findings of a diagnosis that ended with err. A *store.SetupError
// becomes a finding about the connection. Any other error means that the diagnosis is
// incomplete.
func (f *Findings) Result(err error) ([]store.Finding, error) {
	var setup *store.SetupError
	if errors.As(err, &setup) {
		f.Add("connection", store.GradeFault, setup.Problem, setup.Remedy)
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("diagnose log: %w", err)
	}
	return f.Found, err
}
