package sluicebox

import (
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/capture"
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

// Rows are spilled so early that the log which is written meanwhile fits below the limit, whatever
// checkpoints between two checks hide.
func TestSpillingStartsBeforeTheLimit(t *testing.T) {
	const limit = 256 << 20
	for name, c := range map[string]struct {
		rate, least, most int64 // bytes per second; of the lead
	}{
		"idle":   {0, 0, 0},
		"slow":   {1 << 20, 2 << 20, 3 << 20},
		"fast":   {20 << 20, 50 << 20, 60 << 20},
		"a wave": {500 << 20, limit / 2, limit / 2},
	} {
		t.Run(name, func(t *testing.T) {
			var g growth
			now, retained := time.Now(), int64(0)
			for i := range 50 {
				g.timeToGrow(limit/8, retained, now)
				now, retained = now.Add(200*time.Millisecond), retained+c.rate/5
				if i%5 == 4 {
					retained = 0 // a checkpoint was saved
				}
			}
			if got := g.lead(limit); got < c.least || got > c.most {
				t.Errorf("lead %d, want %d to %d", got, c.least, c.most)
			}
		})
	}
}

// A backlog that is delivered fast is not spilled, unless the log grows much or the server may soon discard it.
func TestABacklogIsDeliveredInsteadOfSpilled(t *testing.T) {
	const limit, backlog = 1 << 30, 3 << 30
	for name, c := range map[string]struct {
		slow   bool
		bytes  []int64 // after the backlog
		server int64
		want   bool
	}{
		"as much log":                  {want: true},
		"as much as its outcomes take": {bytes: []int64{5 * backlog}, want: true},
		"more":                         {bytes: []int64{5*backlog + 5}},
		"less, and more again":         {bytes: []int64{backlog / 2, backlog}, want: true},
		"rows written since":           {bytes: []int64{limit / 2, backlog}},
		"a slow receiver":              {slow: true},
		"a server with a far limit":    {server: 2 * backlog, want: true},
		"a server near its limit":      {server: backlog / 3 * 4},
	} {
		t.Run(name, func(t *testing.T) {
			r := &Relay{}
			r.options.Store(&Options{MaxHold: limit})
			p := &pressure{Relay: r, intake: &intake{}}
			p.intake.delivers.Store(!c.slow)
			got := false
			for _, bytes := range append([]int64{0, backlog}, c.bytes...) {
				got = p.catchesUp(capture.RetainedLog{Bytes: bytes, Limit: c.server})
			}
			if got != c.want {
				t.Errorf("catches up: %t, want %t", got, c.want)
			}
		})
	}
}

// A route that gets half of the rows, and does half as many, is not behind.
func TestRoutesAreComparedByTheirShare(t *testing.T) {
	for name, c := range map[string]struct {
		of, other bufferState
		want      bool
	}{
		"as fast":                    {bufferState{lately: 900, came: 100_000}, bufferState{lately: 1000, came: 100_000}, false},
		"as fast with half the rows": {bufferState{lately: 450, came: 50_000}, bufferState{lately: 1000, came: 100_000}, false},
		"as fast with more rows":     {bufferState{lately: 1000, came: 100_000}, bufferState{lately: 10, came: 1000}, false},
		"a third as fast":            {bufferState{lately: 300, came: 100_000}, bufferState{lately: 1000, came: 100_000}, true},
		"slow with half the rows":    {bufferState{lately: 200, came: 50_000}, bufferState{lately: 1000, came: 100_000}, true},
		"slow with few rows":         {bufferState{lately: 30, came: 5000}, bufferState{lately: 1000, came: 100_000}, true},
		"slow with more rows":        {bufferState{lately: 400, came: 100_000}, bufferState{lately: 10, came: 1000}, false}, // 10 show no pace
		"dead":                       {bufferState{lately: 0, came: 100_000}, bufferState{lately: 10, came: 1000}, true},
		"crawls":                     {bufferState{crawled: crawlsAfter}, bufferState{}, true},
		"nothing came":               {bufferState{}, bufferState{}, false},
	} {
		if got := c.of.isBehind(&c.other); got != c.want {
			t.Errorf("%s: behind %t, want %t", name, got, c.want)
		}
	}
}
