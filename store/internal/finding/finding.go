// Package finding gathers what the examination of a database finds.
package finding

import (
	"strings"

	"github.com/sluicebox/sluicebox/store"
)

// List is findings in the order in which they were made.
type List struct {
	// Subject is what is being looked at.
	Subject string
	Found   []store.Finding
}

// Add adds a finding about the subject, with the lines of its remedy.
func (l *List) Add(grade store.Grade, text string, remedies ...string) {
	l.Found = append(l.Found, store.Finding{Grade: grade, Subject: l.Subject, Text: text, Remedy: strings.Join(remedies, "\n")})
}

// Fault adds what keeps the relay from working.
func (l *List) Fault(text string, remedies ...string) { l.Add(store.Fault, text, remedies...) }

// Setup adds a fault that was found elsewhere, whose text names the subject too.
func (l *List) Setup(err *store.SetupError) {
	l.Fault(strings.TrimPrefix(err.Problem, l.Subject+": "), err.Remedy)
}

// Faults counts the faults.
func (l *List) Faults() int { return store.CountFaults(l.Found) }

// Err puts the faults into one *store.SetupError; nil if there are none.
func (l *List) Err() error { return store.FaultError(l.Found) }
