package app

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/checkpoint"
	"github.com/sluicebox/sluicebox/store"
)

// The line for the service manager includes the checks that depend on the time passed.
func TestSummaryOfASilentStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracker := checkpoint.NewTracker(store.Checkpoint{Position: "start"})
		r, end := beginSession(sessionStats{mode: "stream", sourceDetail: "reading the log", tracker: tracker, expectedInterval: 30 * time.Second, paused: func() bool { return false }})
		defer end()
		if line := r.summary(); !strings.HasSuffix(line, "; reading the log") {
			t.Errorf("the line of one that is well is %q", line)
		}
		time.Sleep(2 * time.Minute)
		if line := r.summary(); !strings.Contains(line, "; source: no message from the log for 2m0s") {
			t.Errorf("the line of a silent stream is %q", line)
		}
	})
}

// A sink that fails and a row that cannot be spilled do not keep the relay from READY,
// because the service manager would restart it. A database that fails does.
func TestChecksOfASinkDoNotDelayReady(t *testing.T) {
	r, end := beginSession(sessionStats{mode: "stream", sourceDetail: "reading the log", expectedInterval: time.Minute, paused: func() bool { return false }})
	defer end()
	r.health.fail("sink platform", "circuit breaker open")
	r.health.fail(spillCheckPrefix+"platform", "row 1 of outbox cannot be spilled")
	if !r.isWorking() {
		t.Errorf("got not working with the checks %+v", r.health.Checks())
	}
	r.health.fail("database", "unreachable")
	if r.isWorking() {
		t.Error("got working without the database")
	}
}
