package app

import (
	"testing"
	"time"
)

// The retained log is looked at before another eighth of its bound is written, also
// while checkpoints between two looks hide how much that was.
func TestLooksFollowTheGrowthOfTheLog(t *testing.T) {
	const eighth = 128 << 10
	now := time.Now()
	var g growth
	if got := g.until(eighth, 0, now); got != retainedOften {
		t.Errorf("the first look is followed by another after %s, want %s", got, retainedOften)
	}
	look := func(retained int64, want time.Duration) {
		t.Helper()
		now = now.Add(200 * time.Millisecond)
		if got := g.until(eighth, retained, now); got != want {
			t.Errorf("%d bytes are followed by a look after %s, want %s", retained, got, want)
		}
	}
	look(100<<10, retainedOften)                // 500 KiB a second
	look(100<<10+eighth*4, 50*time.Millisecond) // four eighths in 200 ms
	look(0, 100*time.Millisecond)               // saved: the rate fades by half
	look(0, retainedOften)                      // and again
	look(100<<20, retainedLeast)                // as fast as it gets
}
