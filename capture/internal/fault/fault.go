// Package fault holds what sources say about a log that cannot be read: what an
// operator is to mend, and what trying again does not mend.
package fault

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// Fault is what keeps a role from streaming, and the way out.
type Fault struct {
	// Subject is what it is about: the subject of a finding.
	Subject string
	Problem string
	// Statements mend it and can be run as they stand.
	Statements []string
	// Instructions says who runs them and what else is to be done. Without statements it is
	// all of the way out.
	Instructions string
}

// SetupError is the fault as an error of its kind.
func (f *Fault) SetupError() store.SetupError {
	remedy := f.Instructions
	if len(f.Statements) > 0 {
		remedy = strings.TrimSpace("run `" + strings.Join(f.Statements, " ") + "` " + f.Instructions)
	}
	return store.SetupError{Problem: f.Problem, Remedy: remedy}
}

// Err is the fault as an error of Open: a *capture.NoStreamError that knows its
// fault.
func (f Fault) Err() error {
	return &faultError{capture.NoStreamError{SetupError: f.SetupError()}, f}
}

// Finding is the fault as an examination tells it: what is no statement is a
// comment among them.
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

// Unwrap makes the error a *capture.NoStreamError.
func (e *faultError) Unwrap() error { return &e.NoStreamError }

// FromError returns the fault behind an error that keeps the role from streaming, nil if
// it is none. A *capture.NoStreamError of no fault is about the subject stream.
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

// List gathers everything that is wrong, so that an operator mends it in one go.
type List struct {
	Faults []Fault
	// Fatal: without mending it the tables cannot be polled either.
	Fatal bool
}

// Add takes a fault in.
func (l *List) Add(f Fault) { l.Faults = append(l.Faults, f) }

// AddErr takes in what keeps the role from streaming and returns any other error.
func (l *List) AddErr(err error) error {
	if f := FromError(err); f != nil {
		l.Add(*f)
		return nil
	}
	return err
}

// Err is a *capture.NoStreamError that names all faults, or a *store.SetupError if
// polling is no way out; nil without faults.
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
		all = store.SetupError{Problem: fmt.Sprintf("the database is not ready for streaming, %d things are to be done:%s", len(l.Faults), lines.String())}
	}
	if l.Fatal {
		return &all
	}
	return &capture.NoStreamError{SetupError: all}
}
