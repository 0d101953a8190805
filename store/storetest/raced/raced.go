// Package raced selects tests for runs with the race detector, which makes a program about
// five times slower, and SQLite, which is Go code here, more.
package raced

import (
	"flag"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"
)

// Only limits a run with the race detector to the given tests, unless -run selects others.
// Without the detector it does nothing. TestMain calls it, before m.Run.
func Only(tests ...func(*testing.T)) error {
	if !Enabled {
		return nil
	}
	flag.Parse()
	run := flag.Lookup("test.run").Value
	if run.String() != "" {
		return nil
	}

	if err := run.Set(Pattern(tests...)); err != nil {
		return fmt.Errorf("select tests for the race detector: %w", err)
	}
	return nil
}

// Pattern returns the pattern that -run and -skip take for the given tests.
func Pattern(tests ...func(*testing.T)) string {
	names := make([]string, len(tests))
	for i, test := range tests {
		name := runtime.FuncForPC(reflect.ValueOf(test).Pointer()).Name()
		names[i] = name[strings.LastIndexByte(name, '.')+1:]
	}
	return fmt.Sprintf("^(%s)$", strings.Join(names, "|"))
}
