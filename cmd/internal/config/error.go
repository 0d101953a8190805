package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Problem is one fault of a configuration.
type Problem struct {
	// Where is file:line, the name of a variable, or the file alone.
	Where string
	// Key is the key at fault, such as dispatch.max-retries; empty where it is
	// none.
	Key string
	// Text says what is wrong and how to mend it. It holds no secret.
	Text string

	line int // sorts problems; 0 where there is no line
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

// Error is everything that is wrong with a configuration.
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

// problems collects faults.
type problems []Problem

// err returns the faults in the order of their lines, or nil if there are none.
func (ps problems) err() error {
	if len(ps) == 0 {
		return nil
	}
	slices.SortStableFunc(ps, func(a, b Problem) int { return cmp.Compare(a.line, b.line) })
	return &Error{Problems: ps}
}
