// Package fault describes why a log cannot be read: faults that an operator has to fix, and
// failures that a retry cannot fix.
package fault

import (
	"errors"
	"fmt"
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
