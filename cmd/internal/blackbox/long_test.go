package blackbox

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The scenarios are short by default and have a longer form, which these
// variables ask for; the package comment lists the commands.
const (
	outageVariable = "SLUICEBOX_TEST_OUTAGE" // how long a fault lasts, such as 30s
	rowsVariable   = "SLUICEBOX_TEST_ROWS"   // how many rows there are
)

// lasting is how long a fault lasts.
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

// many is how many rows a scenario has.
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

// peak is the most memory that the process ever had resident, in bytes.
func (r *relay) peak() int { r.t.Helper(); return r.memory("VmHWM:") }

// resident is how much it has now.
func (r *relay) resident() int { r.t.Helper(); return r.memory("VmRSS:") }

// memory reads what proc_pid_status(5) has in kB.
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

// expectSmall expects that the process never had more memory than an operator
// gives it. The race detector may take twice that.
func (r *relay) expectSmall() {
	r.t.Helper()
	most := 256 << 20
	if raced {
		most *= 2
	}
	have := r.peak()
	r.t.Logf("the most memory: %d MiB", have>>20)
	if have > most {
		r.t.Errorf("the process had %d MiB in memory, want at most %d", have>>20, most>>20)
	}
}
