package postgres

import (
	"errors"
	"strings"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// fault is what keeps a role from streaming, and the way out.
type fault struct {
	subject string // what it is about
	problem string
	// statements mend it and can be run as they stand; how says who runs them and
	// what else is to be done. Without statements how is all of the way out.
	statements []string
	how        string
}

// setup is the fault as an error of its kind.
func (f *fault) setup() store.SetupError {
	remedy := f.how
	if len(f.statements) > 0 {
		remedy = strings.TrimSpace("run `" + strings.Join(f.statements, " ") + "` " + f.how)
	}
	return store.SetupError{Problem: f.problem, Remedy: remedy}
}

// err is the fault as an error of Open.
func (f fault) err() error {
	return &faultError{capture.NoStreamError{SetupError: f.setup()}, f}
}

// faultError is a *capture.NoStreamError that knows its fault.
type faultError struct {
	capture.NoStreamError
	fault fault
}

// Unwrap makes the error a *capture.NoStreamError.
func (e *faultError) Unwrap() error { return &e.NoStreamError }

// faultOf returns the fault behind an error that keeps the role from streaming, nil
// if it is none.
func faultOf(err error) *fault {
	var known *faultError
	var no *capture.NoStreamError
	switch {
	case errors.As(err, &known):
		return &known.fault
	case errors.As(err, &no):
		return &fault{subject: "stream", problem: no.Problem, how: no.Remedy}
	}
	return nil
}

// finding is the fault as an examination tells it: what is no statement is a
// comment among them.
func (f *fault) finding(grade store.Grade) store.Finding {
	remedy := f.how
	if len(f.statements) > 0 {
		lines := f.statements
		if f.how != "" {
			lines = append([]string{"-- " + f.how}, lines...)
		}
		remedy = strings.Join(lines, "\n")
	}
	return store.Finding{Grade: grade, Subject: f.subject, Text: f.problem, Remedy: remedy}
}
