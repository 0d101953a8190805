// Package finding gathers what the examination of a database finds.
package finding

import (
	"fmt"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// List is findings in the order in which they were made.
type List struct {
	// Subject is what is being looked at.
	Subject  string
	Findings []store.Finding
}

// Add adds a finding about the subject, with the lines of its remedy.
func (l *List) Add(grade store.Grade, text string, remedies ...string) {
	l.Findings = append(l.Findings, store.Finding{Grade: grade, Subject: l.Subject, Text: text, Remedy: strings.Join(remedies, "\n")})
}

// AddFault adds what keeps the relay from working.
func (l *List) AddFault(text string, remedies ...string) { l.Add(store.GradeFault, text, remedies...) }

// AddSetupError adds a fault that was found elsewhere, whose text names the subject too.
func (l *List) AddSetupError(err *store.SetupError) {
	l.AddFault(strings.TrimPrefix(err.Problem, l.Subject+": "), err.Remedy)
}

// maxClockSkew is by how much two clocks may differ before it is worth a word.
const maxClockSkew = time.Second

// AddClockSkew compares this machine's clock, which was read before and after the server's,
// with that: claims carry times.
func (l *List) AddClockSkew(before, server, after time.Time) {
	const remedy = "have both machines keep the same time (chrony, systemd-timesyncd): the relay writes the times of claims by its own clock"
	switch {
	case server.Sub(after) > maxClockSkew:
		l.Add(store.GradeAdvice, fmt.Sprintf("this machine is %s behind the server", server.Sub(after).Round(time.Millisecond)), remedy)
	case before.Sub(server) > maxClockSkew:
		l.Add(store.GradeAdvice, fmt.Sprintf("this machine is %s ahead of the server", before.Sub(server).Round(time.Millisecond)), remedy)
	default:
		l.Add(store.GradeOK, "this machine and the server differ by less than a second")
	}
}

// CountFaults counts the faults.
func (l *List) CountFaults() int { return store.CountFaults(l.Findings) }

// Err puts the faults into one *store.SetupError; nil if there are none.
func (l *List) Err() error { return store.FaultError(l.Findings) }
