package app

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// An alarm is logged once in a while, and hides no other one; a storm of them is bounded.
func TestAlarmsThatAreDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &sinkWatch{}
		for _, step := range []struct {
			alarm string
			due   bool
			then  time.Duration
		}{
			{"outcome of row 1", true, quietFor / 2},
			{"outcome of row 1", false, 0},
			{"outcome of row 2", true, quietFor / 2},
			{"outcome of row 1", true, 0},
			{"outcome of row 2", false, 2 * quietFor},
		} {
			if got := w.due(step.alarm); got != step.due {
				t.Errorf("after %s the alarm %q is due: %t", step.then, step.alarm, got)
			}
			time.Sleep(step.then)
		}
		said := 0
		for i := range 10 * mostAlarms {
			if w.due(fmt.Sprint("claim of row ", i)) {
				said++
			}
		}
		if said != mostAlarms {
			t.Errorf("%d alarms at once, want %d", said, mostAlarms)
		}
	})
}
