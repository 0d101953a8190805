package sluicebox

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// markedLog records the markers that are written into it.
type markedLog struct {
	tokens chan string
	err    atomic.Pointer[error]
}

func (l *markedLog) Mark(_ context.Context, token string) error {
	if err := l.err.Load(); err != nil {
		return *err
	}
	l.tokens <- token
	return nil
}

// serverClock is the clock of a server, which differs from this machine's by skew.
type serverClock struct {
	skew time.Duration
	tick time.Duration // its resolution
}

func (c *serverClock) at(age time.Duration) time.Time {
	return time.Now().Add(c.skew - age).Round(0).Truncate(max(c.tick, 1))
}

// runFreshness runs a freshness in fake time.
func runFreshness(t *testing.T, test func(f *freshness, log *markedLog)) {
	synctest.Test(t, func(t *testing.T) {
		log := &markedLog{tokens: make(chan string, 10)}
		f := newFreshness(7, log, func() bool { return true })
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- f.run(ctx) }()
		test(f, log)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// row returns the time for which a row of some age is fresh.
func (f *freshness) row(c *serverClock, age time.Duration) time.Duration {
	b := capture.Batch{Items: []store.Item{{Committed: c.at(age)}}}
	until := f.freshUntil(&b, time.Now())
	if until.IsZero() {
		return 0
	}
	return time.Until(until)
}

// flows takes new rows that ask for a marker.
func (f *freshness) flows(c *serverClock) {
	for range minFlow {
		f.row(c, 0)
	}
}

// mark brings a marker back after some time. It was committed when it was written.
func (f *freshness) mark(t *testing.T, log *markedLog, c *serverClock, took time.Duration) {
	t.Helper()
	f.flows(c)
	synctest.Wait()
	select {
	case token := <-log.tokens:
		committed := c.at(0)
		time.Sleep(took)
		f.onMarker(token, committed)
	default:
		t.Fatal("no marker was written")
	}
}

// Until the log has brought back a marker of this leader, no row is fresh: an earlier leader may
// have settled it. Markers of others are none of them.
func TestNoRowIsFreshBeforeTheMarker(t *testing.T) {
	runFreshness(t, func(f *freshness, log *markedLog) {
		var c serverClock
		f.flows(&c)
		if left := f.row(&c, 0); left != 0 {
			t.Errorf("before the marker: fresh for %s, want 0", left)
		}
		synctest.Wait()
		f.onMarker("fresh-6-1", c.at(0))
		f.onMarker("sweep-7-1", c.at(0))
		if left := f.row(&c, 0); left != 0 {
			t.Errorf("after the markers of others: fresh for %s, want 0", left)
		}
		f.onMarker(<-log.tokens, c.at(0))
		if left := f.row(&c, 0); left != maxFreshAge {
			t.Errorf("after the marker: fresh for %s, want %s", left, maxFreshAge)
		}
	})
}

// A row is fresh for a second since its commit, whatever the difference of the clocks.
func TestFreshSinceTheCommit(t *testing.T) {
	for _, skew := range []time.Duration{0, time.Hour, -time.Hour, 700 * time.Millisecond, -700 * time.Millisecond} {
		t.Run(skew.String(), func(t *testing.T) {
			runFreshness(t, func(f *freshness, log *markedLog) {
				c := serverClock{skew: skew}
				time.Sleep(123456 * time.Microsecond)
				f.mark(t, log, &c, 50*time.Millisecond)
				time.Sleep(4 * time.Second) // the marker is too old to tell by itself
				for age, want := range map[time.Duration]time.Duration{
					0: maxFreshAge, 400 * time.Millisecond: 600 * time.Millisecond, 999 * time.Millisecond: time.Millisecond,
					time.Second: 0, 3 * time.Second: 0, time.Hour: 0,
				} {
					if left := f.row(&c, age); left != want {
						t.Errorf("a row committed %s ago is fresh for %s, want %s", age, left, want)
					}
				}
			})
		})
	}
}

// An old row never looks new: not if a marker took long, not if the server's clock is set, and not
// after the source has connected again, maybe to another server.
func TestNoOldRowIsFresh(t *testing.T) {
	for name, spoil := range map[string]func(f *freshness, c *serverClock){
		"the clock is set forward": func(_ *freshness, c *serverClock) { c.skew = time.Hour },
		"another server":           func(f *freshness, c *serverClock) { f.connected(); c.skew = 1500 * time.Millisecond },
		"the intake waits": func(f *freshness, c *serverClock) {
			c.skew = 1500 * time.Millisecond
			f.waits(time.Now())
			time.Sleep(1500 * time.Millisecond)
		},
		"a long time passes": func(_ *freshness, c *serverClock) { time.Sleep(clockValidity); c.skew = 1500 * time.Millisecond },
	} {
		t.Run(name, func(t *testing.T) {
			runFreshness(t, func(f *freshness, log *markedLog) {
				c := serverClock{}
				time.Sleep(123456 * time.Microsecond)
				f.mark(t, log, &c, 900*time.Millisecond)
				time.Sleep(4 * time.Second)
				spoil(f, &c)
				for _, age := range []time.Duration{1100 * time.Millisecond, 1500 * time.Millisecond, 2 * time.Second} {
					if left := f.row(&c, age); left != 0 {
						t.Errorf("a row committed %s ago is fresh for %s, want 0", age, left)
					}
				}
			})
		})
	}
}

// A marker that was written before the intake waited, or over an earlier connection, does not
// tell the clocks.
func TestMarkerBeforeAWait(t *testing.T) {
	for name, spoil := range map[string]func(f *freshness){
		"wait":       func(f *freshness) { f.waits(time.Now()) },
		"connection": func(f *freshness) { f.connected() },
	} {
		t.Run(name, func(t *testing.T) {
			runFreshness(t, func(f *freshness, log *markedLog) {
				c := serverClock{}
				time.Sleep(123456 * time.Microsecond)
				f.flows(&c)
				token, committed := <-log.tokens, c.at(0)
				time.Sleep(time.Second)
				spoil(f)
				time.Sleep(3 * time.Second)
				c.skew = 3 * time.Second
				f.onMarker(token, committed)
				if left := f.row(&c, 3*time.Second); left != 0 {
					t.Errorf("a row committed 3s ago is fresh for %s, want 0", left)
				}
			})
		})
	}
}

// Commit times in whole seconds tell nothing. The age counts from the latest marker, and markers
// are written more often.
func TestFreshByMarkersAlone(t *testing.T) {
	runFreshness(t, func(f *freshness, log *markedLog) {
		c := serverClock{tick: time.Second}
		f.mark(t, log, &c, 10*time.Millisecond)
		if left := f.row(&c, 0); left != 990*time.Millisecond {
			t.Errorf("10 ms after the marker was written: fresh for %s, want 990ms", left)
		}
		time.Sleep(2 * time.Second)
		if left := f.row(&c, 0); left != 0 {
			t.Errorf("2 s after the marker: fresh for %s, want 0", left)
		}
		synctest.Wait()
		f.onMarker(<-log.tokens, c.at(0))
		if left := f.row(&c, 0); left != maxFreshAge {
			t.Errorf("after the next marker: fresh for %s, want %s", left, maxFreshAge)
		}
	})
}

// An idle relay writes no marker, and a busy one few. A marker that cannot be written is written
// later.
func TestMarkersOfFreshRows(t *testing.T) {
	runFreshness(t, func(f *freshness, log *markedLog) {
		var c serverClock
		time.Sleep(time.Hour + 123456*time.Microsecond)
		if n := len(log.tokens); n != 0 {
			t.Errorf("%d markers without rows, want 0", n)
		}
		failure := errors.New("read-only")
		log.err.Store(&failure)
		f.flows(&c)
		time.Sleep(time.Second)
		log.err.Store(nil)
		for range 100 { // ten seconds
			if f.row(&c, 0); len(log.tokens) > 0 {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		f.onMarker(<-log.tokens, c.at(0))
		n := 0
		for range 600 { // a minute
			f.row(&c, 0)
			time.Sleep(100 * time.Millisecond)
			select {
			case token := <-log.tokens:
				f.onMarker(token, c.at(0))
				n++
			default:
			}
		}
		if n < 10 || n > 12 {
			t.Errorf("%d markers in a minute, want one each %s", n, clockInterval)
		}
	})
}

// Rows that come seldom cost no marker, because it would save no claim. Of rows that come a few at
// a time, a marker behind which no row was fresh is not repeated for long.
func TestSparseRowsCostNoMarkers(t *testing.T) {
	for name, c := range map[string]struct {
		tick    time.Duration
		gap     time.Duration // between the rows of a burst
		burst   int
		pause   time.Duration
		markers int // at most, for a thousand rows
		fresh   int // at least
	}{
		"a row in 20 s":                        {0, 20 * time.Second, 1, 0, 0, 0},
		"a row in 6 s":                         {0, 6 * time.Second, 1, 0, 0, 0},
		"pairs of rows":                        {0, time.Second, 2, time.Minute, 2, 0},
		"bursts of five rows":                  {0, time.Second, 5, time.Minute, 250, 500},
		"a row in 4 s":                         {0, 4 * time.Second, 1, 0, 501, 990},
		"a row a second":                       {0, time.Second, 1, 0, 201, 990},
		"whole seconds, a row a second":        {time.Second, time.Second, 1, 0, 8, 0},
		"whole seconds, three rows a second":   {time.Second, 333 * time.Millisecond, 1, 0, 501, 990},
		"whole seconds, rows in bursts of two": {time.Second, 100 * time.Millisecond, 2, 30 * time.Second, 3, 0},
	} {
		t.Run(name, func(t *testing.T) {
			runFreshness(t, func(f *freshness, log *markedLog) {
				clock := serverClock{tick: c.tick}
				time.Sleep(123456 * time.Microsecond)
				markers, fresh := 0, 0
				for n := range 1000 {
					if f.row(&clock, 0) > 0 {
						fresh++
					}
					synctest.Wait()
					select {
					case token := <-log.tokens:
						markers++
						f.onMarker(token, clock.at(0))
					default:
					}
					time.Sleep(c.gap)
					if (n+1)%c.burst == 0 {
						time.Sleep(c.pause)
					}
				}
				if markers > c.markers || fresh < c.fresh || markers > fresh+6 {
					t.Errorf("%d markers for 1000 rows, %d of which were fresh; want at most %d, and at least %d", markers, fresh, c.markers, c.fresh)
				}
			})
		})
	}
}
