package fault

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sluicebox/sluicebox/store"
)

// Findings collects the findings of a diagnosis, in the order in which an operator reads and
// fixes them.
type Findings struct{ Found []store.Finding }

// Add adds a finding, with the lines of its remedy.
func (f *Findings) Add(subject string, grade store.Grade, text string, remedies ...string) {
	f.Found = append(f.Found, store.Finding{Grade: grade, Subject: subject, Text: text, Remedy: strings.Join(remedies, "\n")})
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
