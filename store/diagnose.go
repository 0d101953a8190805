package store

import (
	"context"
	"slices"
	"strings"
)

// Grade is the severity of a finding.
type Grade uint8

// Grades of findings, from best to worst.
const (
	// GradeOK: no action needed.
	GradeOK Grade = iota + 1
	// GradeAdvice: the relay works; the remedy would improve it.
	GradeAdvice
	// GradeFault: the relay does not work, or not as configured.
	GradeFault
)

// String returns the grade's name in output.
func (g Grade) String() string {
	switch g {
	case GradeOK:
		return "ok"
	case GradeAdvice:
		return "advice"
	case GradeFault:
		return "fault"
	}
	return "unknown"
}

// Finding is one result of a diagnosis.
type Finding struct {
	Grade Grade
	// Subject is the checked object: a server, role, table, slot or sink.
	Subject string
	// Text is the result, on one line and without secrets.
	Text string
	// Remedy is the fix: complete statements, one per line, or else prose. It is empty if
	// no action is needed.
	Remedy string
}

// Diagnoser checks the parts of a database that a relay depends on.
type Diagnoser interface {
	// Diagnose returns all findings, good and bad, in the order in which to read and fix
	// them. It changes nothing. An error means that the remaining checks could not run.
	Diagnose(ctx context.Context) ([]Finding, error)
}

// CountFaults returns the number of faults in found.
func CountFaults(found []Finding) (n int) {
	for i := range found {
		if found[i].Grade == GradeFault {
			n++
		}
	}
	return n
}

// FaultError combines the faults in found into one *SetupError, with each line of the
// remedies once. It returns nil if there are none.
func FaultError(found []Finding) error {
	var problems, remedies []string
	for _, f := range found {
		if f.Grade != GradeFault {
			continue
		}
		problems = append(problems, f.Subject+": "+f.Text)
		for _, r := range strings.Split(f.Remedy, "\n") {
			if !slices.Contains(remedies, r) {
				remedies = append(remedies, r)
			}
		}
	}

	if len(problems) == 0 {
		return nil
	}
	return &SetupError{
		Problem: strings.Join(problems, "\n"),
		Remedy:  "fix:\n" + strings.Join(remedies, "\n"),
	}
}
