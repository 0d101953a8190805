package app

import (
	"fmt"
	"testing"
)

// Processes that start together share the sources about evenly, whatever their names are.
func TestProcessesShareSources(t *testing.T) {
	const sources = 1000
	leads := map[string]int{}
	processes := []string{"relay-0", "relay-1", "relay-2"}
	for i := range sources {
		first := processes[0]
		for _, p := range processes {
			wait := patience(p, fmt.Sprint("tenant", i))
			if wait < 0 || wait >= maxPatience || wait != patience(p, fmt.Sprint("tenant", i)) {
				t.Fatalf("%s waits %s", p, wait)
			}
			if wait < patience(first, fmt.Sprint("tenant", i)) {
				first = p
			}
		}
		leads[first]++
	}
	for _, p := range processes {
		if n := leads[p]; n < sources/4 || n > sources*5/12 {
			t.Errorf("%s leads %d of %d, want about a third: %v", p, n, sources, leads)
		}
	}
}
