package sluicebox

import (
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
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

// A backlog that is delivered fast is not spilled. Each other reason for a long log ends that for the session.
func TestABacklogIsDeliveredInsteadOfSpilled(t *testing.T) {
	const limit, backlog = 1 << 30, 3 << 30
	type check struct {
		bytes, server int64
		slow, read    bool // read: up to the end at the start
		// The checkpoint passes the position read, unless it stands still, with rows in memory or without, or is far behind.
		stuck, silent, crawls bool
	}
	for name, c := range map[string]struct {
		checks []check
		want   bool
	}{
		"a backlog":                   {[]check{{bytes: backlog}, {bytes: 3 * backlog}}, true},
		"its outcomes":                {[]check{{bytes: backlog}, {bytes: backlog, read: true}, {bytes: backlog / 2, read: true}}, true},
		"rows written since":          {[]check{{bytes: backlog, read: true}, {bytes: backlog + limit/marginShare + 1, read: true}}, false},
		"more again":                  {[]check{{bytes: limit - 1, read: true}, {bytes: backlog, read: true}}, false},
		"a slow receiver":             {[]check{{bytes: backlog, slow: true}}, false},
		"was slow":                    {[]check{{bytes: backlog, slow: true}, {bytes: backlog}}, false},
		"a row in flight for long":    {[]check{{bytes: backlog, stuck: true}, {bytes: backlog, stuck: true}}, false},
		"one slow row after another":  {[]check{{bytes: backlog, crawls: true}, {bytes: backlog, crawls: true}}, false},
		"nothing is read for a while": {[]check{{bytes: backlog}, {bytes: backlog, silent: true}, {bytes: backlog, silent: true}}, true},
		"a server with a far limit":   {[]check{{bytes: backlog, server: 2*backlog + 2}}, true},
		"a server near its limit":     {[]check{{bytes: backlog, server: 2 * backlog}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := &Relay{}
			r.options.Store(&Options{MaxHold: limit})
			p, now, saved, got := &pressure{Relay: r, intake: &intake{}, compare: byText}, time.Now(), "p", false
			for _, check := range c.checks {
				p.intake.delivers.Store(!check.slow)
				p.intake.behind.Store(!check.read)
				if now = now.Add(pinnedAfter + 1); !check.stuck && !check.silent {
					saved += "p"
				}
				read := saved
				if check.stuck || check.crawls {
					read = "z"
				}
				got = p.catchesUp(capture.RetainedLog{Bytes: check.bytes, Limit: check.server}, store.Position(saved), store.Position(read), now)
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
