package replay

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// countedLanes are lanes with a number of finished live rows.
type countedLanes struct {
	Lanes
	gone int64
}

func (c *countedLanes) DoneCount() int64 { return c.gone }

// TestThrottleForLiveRows: a job slows down while live rows flow, whichever sink they
// go to.
func TestThrottleForLiveRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, other := &countedLanes{gone: 7}, &countedLanes{}
		r := &jobRun{spec: &Spec{}, traffic: newTraffic(map[string]Sink{"one": {Lanes: one}, "other": {Lanes: other}})}
		expect := func(when string, takes, rests time.Duration, page int) {
			t.Helper()
			if got := r.pageSize(1000); got != page {
				t.Errorf("%s, got a page of %d rows, want %d", when, got, page)
			}
			began := time.Now()
			time.Sleep(takes)
			slept := time.Now()
			if err := r.throttle(context.Background(), began); err != nil || time.Since(slept) != rests {
				t.Errorf("%s, a page of %s: got a pause of %s, want %s: %v", when, takes, time.Since(slept), rests, err)
			}
		}
		expect("at its start", 2*time.Millisecond, pauseFactor*2*time.Millisecond, throttledPageRows)
		time.Sleep(quietPeriod)
		expect("with nothing live", 2*time.Millisecond, 0, 1000)
		one.gone++
		expect("with a live row", 2*time.Millisecond, pauseFactor*2*time.Millisecond, throttledPageRows)
		time.Sleep(quietPeriod / 2)
		other.gone++
		expect("with another", 2*time.Millisecond, pauseFactor*2*time.Millisecond, throttledPageRows)
		time.Sleep(quietPeriod / 2)
		expect("a moment later", 400*time.Millisecond, maxPause, throttledPageRows)
		time.Sleep(quietPeriod)
		expect("when they are over", 2*time.Millisecond, 0, 1000)
		other.gone++
		if got := r.pageSize(7); got != 7 {
			t.Errorf("page of 7 rows: got %d", got)
		}
		r.spec.Rate = 1
		expect("with a rate that somebody chose", 2*time.Millisecond, 0, 1000)
	})
}

// TestRate: a limit permits its burst at once, and then its rate.
func TestRate(t *testing.T) {
	now := time.Unix(1000, 0)
	r := newRateLimiter(50, 10)
	sent, begun := 0, now
	for now.Sub(begun) < 10*time.Second {
		rows, wait := allowedRows(r, now, 7)
		if rows > 7 {
			t.Fatalf("got %d available rows", rows)
		}
		if rows == 0 {
			if wait <= 0 {
				t.Fatalf("at %s: none available, next in %s", now, wait)
			}
			now = now.Add(wait)
			continue
		}
		r.AllowN(now, rows)
		sent += rows
	}

	if sent < 499 || sent > 511 {
		t.Errorf("%d rows sent in 10 s", sent)
	}

	now = now.Add(time.Hour)
	if rows, _ := allowedRows(r, now, 100); rows != 10 {
		t.Errorf("after an hour got %d available rows at once", rows)
	}

	none := newRateLimiter(0, 10)
	if rows, _ := allowedRows(none, now, 100); rows != 100 {
		t.Errorf("without a bound got %d available rows", rows)
	}
}
