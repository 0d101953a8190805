package store

import (
	"context"
	"slices"
	"strings"
)

// Grade says how much a finding matters.
type Grade uint8

// Grades of findings, from good to bad.
const (
	// GradeOK: it is as it should be.
	GradeOK Grade = iota + 1
	// GradeAdvice: the relay works, and would do better otherwise.
	GradeAdvice
	// GradeFault: the relay does not work, or not as it is configured.
	GradeFault
)

// String names the grade for output.
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

// Finding is what an examination found out about one thing.
type Finding struct {
	Grade Grade
	// Subject is what was looked at: a server, a role, a table, a slot, a sink.
	Subject string
	// Text is what was found, in one line, without secrets.
	Text string
	// Remedy is what to do about it: statements that can be run as they stand, one
	// a line, or else words. It is empty where nothing is to be done.
	Remedy string
}

// Diagnoser looks at everything that a relay leans on, for whoever sets one up.
type Diagnoser interface {
	// Diagnose returns what it found, good and bad, in the order in which it is
	// to be read and mended. It changes nothing. An error means that the rest
	// could not be looked at.
	Diagnose(ctx context.Context) ([]Finding, error)
}

// CountFaults counts the faults among findings.
func CountFaults(found []Finding) (n int) {
	for i := range found {
		if found[i].Grade == GradeFault {
			n++
		}
	}
	return n
}

// FaultError puts the faults among findings into one *SetupError, each line of the
// remedies once; nil if there are none.
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
		Remedy:  "to mend it:\n" + strings.Join(remedies, "\n"),
	}
}
