package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Problem is one error in a configuration.
type Problem struct {
	// Where is file:line, the name of a variable, or the file.
	Where string
	// Key is the key, for example dispatch.max-retries. It may be empty.
	Key string
	// Text is the cause and the remedy. It contains no secret.
	Text string

	line int // for sorting; 0 if unknown
}

// String returns the problem in one line.
func (p Problem) String() string {
	parts := make([]string, 0, 3)
	for _, part := range []string{p.Where, p.Key, p.Text} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, ": ")
}

// Error lists all problems of a configuration.
type Error struct {
	Problems []Problem
}

func (e *Error) Error() string {
	if len(e.Problems) == 1 {
		return e.Problems[0].String()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "the configuration has %d faults:", len(e.Problems))
	for _, p := range e.Problems {
		b.WriteString("\n  " + p.String())
	}
	return b.String()
}

// problems collects problems.
type problems []Problem

// err returns the problems sorted by line, or nil.
func (ps problems) err() error {
	if len(ps) == 0 {
		return nil
	}
	slices.SortStableFunc(ps, func(a, b Problem) int { return cmp.Compare(a.line, b.line) })
	return &Error{Problems: ps}
}
