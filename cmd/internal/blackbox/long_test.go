package blackbox

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store/storetest/raced"
)

// The scenarios are short by default. These variables select a longer form; the package
// comment lists the commands.
const (
	outageVariable = "SLUICEBOX_TEST_OUTAGE" // the duration of a fault, such as 30s
	rowsVariable   = "SLUICEBOX_TEST_ROWS"   // the number of rows
)

// lasting returns the duration of a fault.
func lasting(t testing.TB, usual time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv(outageVariable)
	if text == "" {
		return usual
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < time.Second {
		t.Fatalf("%s is %q, must be at least 1s", outageVariable, text)
	}
	return d
}

// many returns the number of rows of a scenario.
func many(t testing.TB, usual int) int {
	t.Helper()
	text := os.Getenv(rowsVariable)
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1000 {
		t.Fatalf("%s is %q, must be at least 1000", rowsVariable, text)
	}
	return n
}

// peak returns the process's peak resident memory, in bytes.
func (r *relay) peak() int { r.t.Helper(); return r.memory("VmHWM:") }

// resident returns the current resident memory.
func (r *relay) resident() int { r.t.Helper(); return r.memory("VmRSS:") }

// memory reads a kB value of proc_pid_status(5).
func (r *relay) memory(name string) int {
	r.t.Helper()
	path := fmt.Sprintf("/proc/%d/status", r.cmd.Process.Pid)
	text, err := os.ReadFile(path)
	if err != nil {
		r.t.Skipf("the memory of a process cannot be read here: %v", err)
	}
	_, rest, found := strings.Cut(string(text), name)
	var kB int
	if _, err := fmt.Sscanf(rest, "%d kB", &kB); err != nil || !found {
		r.t.Fatalf("%s: %v\n%s", path, err, text)
	}
	return kB << 10
}

// expectSmall expects that the process's peak memory stays within an operator's limit. With
// the race detector the limit is doubled.
func (r *relay) expectSmall() {
	r.t.Helper()
	most := 256 << 20
	if raced.Enabled {
		most *= 2
	}
	have := r.peak()
	r.t.Logf("the most memory: %d MiB", have>>20)
	if have > most {
		r.t.Errorf("peak memory %d MiB, want at most %d", have>>20, most>>20)
	}
}
