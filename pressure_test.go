package sluicebox

import (
	"testing"
	"time"
)

// The retained log is checked before another eighth of its limit is written, also while
// checkpoints between two checks hide the growth.
func TestCheckIntervalFollowsLogGrowth(t *testing.T) {
	const eighth = 128 << 10
	now := time.Now()
	var g growth
	if got := g.timeToGrow(eighth, 0, now); got != fastRetainedInterval {
		t.Errorf("the first look is followed by another after %s, want %s", got, fastRetainedInterval)
	}
	look := func(retained int64, want time.Duration) {
		t.Helper()
		now = now.Add(200 * time.Millisecond)
		if got := g.timeToGrow(eighth, retained, now); got != want {
			t.Errorf("%d bytes are followed by a look after %s, want %s", retained, got, want)
		}
	}
	look(100<<10, fastRetainedInterval)         // 500 KiB/s
	look(100<<10+eighth*4, 50*time.Millisecond) // four eighths in 200 ms
	look(0, 100*time.Millisecond)               // saved: the rate halves
	look(0, fastRetainedInterval)               // and halves again
	look(100<<20, minRetainedInterval)          // the shortest interval
}
