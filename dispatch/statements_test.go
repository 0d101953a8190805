package dispatch

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// reset clears the recorded statements.
func (d *fakeBackend) reset() {
	d.set(func() {
		d.rows, d.claimTimes, d.statementTimes, d.claims, d.settles, d.outcomes = nil, nil, nil, nil, nil, nil
		d.claimEnds, d.settleTimes = nil, nil
	})
}

func TestClaimNamesOwnEarlierClaim(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.advance(1500 * time.Nanosecond)
		k.set(func() { k.lostErr, k.answer = errors.New("connection reset"), always(sink.Unavailable) })
		row := items("a", "1")
		row[0].Txn = 5
		add(t, d, nil, row)
		k.advance(10 * time.Millisecond)
		k.set(func() { k.lostErr = nil })
		k.advance(time.Second)
		first := k.began.Add(time.Microsecond) // the precision of every database
		for i, want := range []time.Time{{}, first, first} {
			k.expect(t, fmt.Sprintf("claim %d tells", i+1), k.rows[i].OwnClaimAt, want)
		}
		for i, want := range []time.Time{first, first} { // again, with the same timestamp
			k.expect(t, fmt.Sprintf("claim %d writes", i+1), k.claimTimes[i], want)
		}
		k.expect(t, "claim 4 tells", k.rows[3].OwnClaimAt, k.claimTimes[2])
		k.expect(t, "its transaction", k.rows[3].Txn, store.Txn(5))
	})
}

func TestRefusedClaimNamesOwnEarlierClaim(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		d.Freeze(true)
		add(t, d, nil, items("a", "1"))
		add(t, d, nil, items("b", "2"))
		k.set(func() { k.answer = always(sink.Unavailable) })
		d.Freeze(false)
		k.advance(100 * time.Millisecond)
		d.Freeze(true) // until both have waited
		k.advance(time.Second)
		k.reset()
		k.set(func() { k.refusedIDs = map[string]bool{"2": true} })
		d.Freeze(false)
		k.advance(10 * time.Millisecond)
		k.expect(t, "claims", k.claims[0], "[1]")
		for _, r := range k.rows {
			k.expect(t, "claim of "+r.ID+" tells", r.OwnClaimAt, k.began)
		}
	})
}

func TestRowGivenBackIsNoLongerOwn(t *testing.T) {
	t.Run("counted", func(t *testing.T) {
		drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
			k.set(func() { k.answer = always(sink.Rejected) })
			add(t, d, nil, items("a", "1"))
			k.advance(300 * time.Millisecond)
			k.expect(t, "the second claim tells", k.rows[1].OwnClaimAt, time.Time{})
		})
	})
	t.Run("held", func(t *testing.T) {
		drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
			k.set(func() { k.answer = always(sink.Unavailable) })
			add(t, d, nil, items("a", "1"))
			k.advance(100 * time.Millisecond)
			until := time.Now().Add(10 * time.Second)
			k.set(func() {
				k.grant = func(*store.ClaimRow) store.ClaimAnswer {
					return store.ClaimAnswer{Result: store.Held, Until: until}
				}
			})
			k.advance(5 * time.Second)
			k.expect(t, "claims before it is free", len(k.rows), 2)
			k.advance(6 * time.Second)
			k.expect(t, "the third claim tells", k.rows[2].OwnClaimAt, time.Time{})
		})
	})
}

// wantWait checks the wait for a row that is not visible. Long waits may be shorter by up
// to an eighth.
func wantWait(t *testing.T, got, want time.Duration) {
	t.Helper()
	if got > want || got < want*7/8 || got < want && want < 100*time.Millisecond {
		t.Errorf("wait: got %s, want %s", got, want)
	}
}

func TestInvisibleRowIsClaimedAgain(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() {
			k.latency = 0
			k.grant = func(*store.ClaimRow) store.ClaimAnswer {
				return store.ClaimAnswer{Result: store.NotYetVisible}
			}
		})
		add(t, d, nil, items("a", "1", "2"))
		k.advance(10 * time.Second)
		k.expect(t, "first claims", k.claims[:2], "[[1 2] [1]]")
		for i, want := range []time.Duration{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 1000} {
			wantWait(t, k.statementTimes[i+1]-k.statementTimes[i], want*time.Millisecond)
		}
	})
}

func TestHeldRowIsNotClaimedInBusyLoop(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() {
			k.grant = func(*store.ClaimRow) store.ClaimAnswer {
				return store.ClaimAnswer{Result: store.Held, Until: k.began}
			}
		})
		add(t, d, nil, items("a", "1"))
		k.advance(10 * time.Second)
		n := 0
		k.set(func() { n = len(k.claims) })
		if n < 10 || n > 20 {
			t.Errorf("got %d claims in 10 s, want waits doubling from 1 ms to 1 s", n)
		}
	})
}

func TestRunsAreFullOnceRowIsVisible(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() {
			k.grant = func(r *store.ClaimRow) store.ClaimAnswer {
				if r.ID == "1" && len(k.claims) < 3 {
					return store.ClaimAnswer{Result: store.NotYetVisible}
				}
				return store.ClaimAnswer{Result: store.Claimed}
			}
		})
		add(t, d, nil, items("a", "1", "2", "3"))
		k.advance(time.Second)
		k.expect(t, "claims", k.claims, "[[1 2 3] [1] [1] [2 3]]")
	})
}

func TestMissingPayloadIsReadAgain(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() {
			k.answer = always(sink.Unavailable)
			k.grant = func(r *store.ClaimRow) store.ClaimAnswer {
				a := store.ClaimAnswer{Result: store.Claimed}
				if r.WantPayload {
					a.Payload = []byte("read again")
				}
				return a
			}
		})
		rows := items("a", "1", "2")
		rows[1].Payload = nil
		add(t, d, nil, rows)
		k.advance(300 * time.Millisecond)
		k.set(func() { k.answer = always(sink.Delivered) })
		k.advance(time.Second)
		for i, want := range []bool{false, true, false, false} { // of 1 and 2, then of 1, then of 2
			k.expect(t, "payload wanted", k.rows[i].WantPayload, want)
		}
		for i, want := range []string{"{}", "read again", "{}", "{}", "read again"} {
			k.expect(t, "payload", string(k.messages[i].Payload), want)
		}
		k.expect(t, "bytes", d.Stats().Bytes, 0)
	})
}

func TestRetryCountOfTableIsUsed(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() {
			k.answer = always(sink.Rejected)
			k.grant = func(*store.ClaimRow) store.ClaimAnswer {
				return store.ClaimAnswer{Result: store.Claimed, RetryCount: 3}
			}
		})
		add(t, d, nil, items("a", "1"))
		k.advance(time.Minute)
		k.expect(t, "outcomes", k.settles, "[[1 FAILED]]")
		k.expect(t, "count", k.outcomes[0].RetryCount, 3)
	})
}

func TestRowFailsWithoutRetryCountColumn(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.answer = always(sink.Rejected) })
		add(t, d, nil, items("a", "1"))
		k.advance(time.Minute)
		k.expect(t, "outcomes", k.settles, "[[1 PENDING] [1 PENDING] [1 PENDING] [1 FAILED]]")
	})
}

// Many outcomes are written by two statements at once, those of a lane by one of them. One statement follows the
// other while there are few.
func TestManyOutcomesAreWrittenAtOnce(t *testing.T) {
	for _, each := range []int{3, 60} {
		drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
			k.set(func() { k.settleLatency = time.Second })
			for group := range 20 {
				var ids []string
				for i := range each {
					ids = append(ids, fmt.Sprintf("%d of %d", i, group))
				}
				add(t, d, nil, items(fmt.Sprint(group), ids...))
			}
			k.advance(30 * time.Second)
			together := false
			for i := 1; i < len(k.settles); i++ {
				if k.settleTimes[i]-k.settleTimes[i-1] >= time.Second {
					continue
				}
				together = true
				groups := map[string]bool{}
				for _, o := range k.settles[i-1] {
					groups[strings.Fields(o)[2]] = true
				}
				for _, o := range k.settles[i] {
					if groups[strings.Fields(o)[2]] {
						t.Errorf("%s is written beside another outcome of its group", o)
					}
				}
			}
			k.expect(t, "statements at once", together, each == 60)
			k.expect(t, "outcomes", len(k.outcomes), 20*each)
		})
	}
}

func TestOutcomesAreObservedWhenWritten(t *testing.T) {
	tests := map[string]struct {
		found store.SettleResult
		lose  bool // the answer to the first try
		want  string
		gone  string
	}{
		"written":                            {found: store.Written, want: "[1 COMPLETED]", gone: "[]"},
		"settled by another session":         {found: store.WasSettled, want: "[]", gone: "[]"},
		"deleted":                            {found: store.WasGone, want: "[]", gone: "[1]"},
		"settled by a try whose answer lost": {found: store.WasSettled, lose: true, want: "[1 COMPLETED]", gone: "[]"},
		"deleted by a try whose answer lost": {found: store.WasGone, lose: true, want: "[1 COMPLETED]", gone: "[]"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
				k.set(func() {
					k.settleResult = tt.found
					k.answer = func(ids []string) sink.Result {
						if tt.lose {
							k.set(func() { k.lostErr = errors.New("connection reset") })
						}
						return always(sink.Delivered)(ids)
					}
				})
				var c counter
				add(t, d, &c, items("a", "1"))
				k.advance(10 * time.Millisecond)
				k.set(func() { k.lostErr = nil })
				k.advance(time.Second)
				k.expect(t, "rows done", c.n, 1)
				k.expect(t, "observed", k.observed, tt.want)
				k.expect(t, "vanished", k.vanished, tt.gone)
			})
		})
	}
}

// Rows that a claim does not find are done, and the observer learns which they were.
func TestVanishedRowsAreReported(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() {
			k.grant = func(r *store.ClaimRow) store.ClaimAnswer {
				if r.ID == "2" || r.ID == "4" {
					return store.ClaimAnswer{Result: store.Gone}
				}
				return store.ClaimAnswer{Result: store.Claimed}
			}
		})
		d.Freeze(true)
		add(t, d, nil, items("a", "1", "2", "3"))
		add(t, d, nil, items("b", "4", "5"))
		d.Freeze(false)
		k.advance(time.Second)
		slices.Sort(k.vanished)
		k.expect(t, "vanished", k.vanished, "[2 4]")
		k.expect(t, "observed", len(k.observed), 3)
	})
}

func TestOutcomeRefusedAfterOutageIsNotReported(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() {
			k.answer = func(ids []string) sink.Result {
				k.set(func() { k.err = errors.New("connection refused") })
				return always(sink.Delivered)(ids)
			}
		})
		add(t, d, nil, items("a", "1"))
		k.advance(10 * time.Millisecond)
		k.set(func() { k.err, k.refusedIDs = nil, map[string]bool{"1": true} })
		k.advance(time.Second)
		k.expect(t, "observed", k.observed, "[]")
	})
}

func TestStoreOutageIsRetriedWithBackoff(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.latency, k.err = 0, errors.New("connection refused") })
		add(t, d, nil, items("a", "1"))
		k.advance(time.Minute)
		for i, want := range []time.Duration{20, 40, 80, 160, 320, 640, 1280, 2000, 2000} {
			k.expect(t, "wait", k.statementTimes[i+1]-k.statementTimes[i], want*time.Millisecond)
		}
		k.expect(t, "tries in a minute", len(k.statementTimes), 36)
		k.expect(t, "failures observed", len(k.failures), 36)
		k.expect(t, "requests", k.requests, "[]")
		k.set(func() { k.err = nil })
	})
}

// addEach appends rows "0" to "n-1", each in its own group, so that one statement claims
// all.
func addEach(t *testing.T, d *Dispatcher, c Ticket, n int) {
	d.Freeze(true)
	for _, it := range numberedRows("", n) {
		it.Group = store.GroupOf(it.ID)
		add(t, d, c, []store.Item{it})
	}
	d.Freeze(false)
}

func TestRefusedClaimStopsNoOther(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxConcurrentGroups = 64
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.latency, k.refusedIDs = 0, map[string]bool{"11": true} })
		var c counter
		addEach(t, d, &c, 64)
		k.advance(0)
		if tries := len(k.claimTimes); c.n != 63 || tries > 15 { // 64, then 2 for each halving, and once more
			t.Errorf("%d rows done by %d claims", c.n, tries)
		}
		k.expect(t, "failures", k.failures[0], "claim of row 11 of events")
		k.reset()
		k.advance(10 * time.Second)
		n := len(k.statementTimes)
		for i, want := range []time.Duration{2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 1000} {
			wantWait(t, k.statementTimes[i+1]-k.statementTimes[i], want*time.Millisecond)
		}
		if n > 20 {
			t.Errorf("%d claims of a refused row in 10 s", n)
		}
		k.set(func() { k.refusedIDs = nil })
		k.advance(time.Second)
		k.expect(t, "rows done", c.n, 64)
	})
}

func TestRefusedOutcomeStopsNoOther(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() {
			k.latency = 0
			k.answer = func(ids []string) sink.Result {
				<-time.After(10 * time.Millisecond) // all answers come at once
				k.set(func() { k.refusedIDs = map[string]bool{"3": true} })
				return always(sink.Delivered)(ids)
			}
		})
		var c counter
		addEach(t, d, &c, 8)
		k.advance(20 * time.Millisecond)
		k.expect(t, "rows done", c.n, 7)
		k.expect(t, "held", d.Held("events"), "[3]")
		k.expect(t, "failures", k.failures, "[COMPLETED of row 3 of events]")
		if slices.Contains(k.observed, "3 COMPLETED") {
			t.Errorf("an outcome that was not written is observed: %v", k.observed)
		}
		k.reset()
		k.advance(4 * time.Minute)
		for i, want := range []time.Duration{2, 4, 8, 16, 32, 60, 60} {
			k.expect(t, "wait", k.statementTimes[i+1]-k.statementTimes[i], want*time.Second)
		}
		k.set(func() { k.refusedIDs = nil })
		k.advance(time.Minute)
		k.expect(t, "rows done", c.n, 8)
		k.expect(t, "requests", len(k.requests), 8)
	})
}
