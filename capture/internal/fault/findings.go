package fault

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sluicebox/sluicebox/store"
)

// Findings is what an examination of a log finds, in the order in which it is to be
// read and mended.
type Findings struct{ Found []store.Finding }

// Add adds a finding, with the lines of its remedy.
func (f *Findings) Add(subject string, grade store.Grade, text string, remedies ...string) {
	f.Found = append(f.Found, store.Finding{Grade: grade, Subject: subject, Text: text, Remedy: strings.Join(remedies, "\n")})
}

// Result returns what was found by an examination that ended with an error. A
// *store.SetupError is a finding about the connection; another one means that the rest
// could not be looked at.
func (f *Findings) Result(err error) ([]store.Finding, error) {
	var setup *store.SetupError
	if errors.As(err, &setup) {
		f.Add("connection", store.GradeFault, setup.Problem, setup.Remedy)
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("examine the log: %w", err)
	}
	return f.Found, err
}
