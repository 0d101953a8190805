package dispatch

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	lanes "github.com/sluicebox/sluicebox/dispatch/internal/lane"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// driveLate is drive for a dispatcher that may send fresh rows before they are claimed.
func driveLate(t *testing.T, cfg Config, test func(k *fakeBackend, d *Dispatcher, end func(error) error)) {
	driveWith(t, cfg, func(_ *fakeBackend, opt *Options) { opt.Late = func() bool { return true } }, test)
}

// addFresh appends rows that the log has just brought. Their transaction is 7, and their seqs
// follow their ids.
func addFresh(d *Dispatcher, c Ticket, rows []store.Item) {
	d.AppendFresh(logged(rows), c, time.Now().Add(time.Second))
}

// addOld appends rows of the log that waited for long.
func addOld(d *Dispatcher, c Ticket, rows []store.Item) { d.Append(logged(rows), c) }

func logged(rows []store.Item) []store.Item {
	for i := range rows {
		n, _ := strconv.Atoi(rows[i].ID)
		rows[i].Txn, rows[i].Seq = 7, store.NewSeq(1, int64(n)+1)
	}
	return rows
}

// answerAfter answers each request with a class after some time.
func answerAfter(d time.Duration, class sink.Class) func([]string) sink.Result {
	return func(ids []string) sink.Result { <-time.After(d); return always(class)(ids) }
}

// failsFirst fails the first request.
func failsFirst(k *fakeBackend) func([]string) sink.Result {
	return func(ids []string) sink.Result {
		if len(k.requests) == 1 {
			return always(sink.Unavailable)(ids)
		}
		return always(sink.Delivered)(ids)
	}
}

// expectClaimedFirst expects the last request to have a row that was claimed before.
func (d *fakeBackend) expectClaimedFirst(t *testing.T, id string) {
	t.Helper()
	if claims := slices.Concat(d.claims...); !slices.Contains(claims, id) {
		t.Errorf("claims: got %v, want row %s in them", claims, id)
	}
	d.expect(t, "last request", d.requests[len(d.requests)-1], "["+id+"]")
	if claimed, sent := d.claimedAt(id), d.requestTimes[len(d.requestTimes)-1]; claimed > sent {
		t.Errorf("row %s was claimed at %s and sent at %s", id, claimed, sent)
	}
}

// expectClaimedLate expects a row that is sent at once to be claimed after lanes.ClaimAfter.
func (d *fakeBackend) expectClaimedLate(t *testing.T, id string) {
	t.Helper()
	if at := d.claimedAt(id); at > lanes.ClaimAfter+5*time.Millisecond {
		t.Errorf("claimed after %s, want %s", at, lanes.ClaimAfter)
	}
}

func TestFreshRowIsSentUnclaimed(t *testing.T) {
	driveLate(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		var c counter
		addFresh(d, &c, items("a", "1", "2"))
		k.advance(time.Second)
		k.expect(t, "requests", k.requests, "[[1 2]]")
		k.expect(t, "claims", k.claims, "[]")
		k.expect(t, "outcomes", k.settles, "[[1 COMPLETED 2 COMPLETED]]")
		k.expect(t, "its transaction", k.outcomes[0].Txn, store.Txn(7))
		k.expect(t, "rows done", c.n, 2)
	})
}

// These rows are claimed before they are sent, although the log has just brought them.
func TestFreshRowsThatAreClaimedFirst(t *testing.T) {
	tight := DefaultConfig()
	tight.BufferBytes = 1
	paced := DefaultConfig()
	paced.RateLimit = 100
	for name, c := range map[string]struct {
		cfg Config
		run func(k *fakeBackend, d *Dispatcher)
	}{
		"it waited behind a request": {DefaultConfig(), func(k *fakeBackend, d *Dispatcher) {
			k.set(func() {
				k.answer = func(ids []string) sink.Result {
					if ids[0] == "8" {
						<-time.After(1200 * time.Millisecond)
					}
					return always(sink.Delivered)(ids)
				}
			})
			add(t, d, nil, items("a", "8"))
			k.advance(10 * time.Millisecond)
			addFresh(d, nil, items("a", "1"))
		}},
		"it was tried": {DefaultConfig(), func(k *fakeBackend, d *Dispatcher) {
			k.set(func() { k.answer = failsFirst(k) })
			addFresh(d, nil, items("a", "1"))
		}},
		"its lane was paused": {DefaultConfig(), func(k *fakeBackend, d *Dispatcher) {
			lane := LaneName{LaneKey: group("a")}
			d.change(func(c *core) { c.pause(lane, store.Hold{Lane: lane.LaneKey, Kind: store.Paused}) })
			addFresh(d, nil, items("a", "1"))
			k.advance(10 * time.Millisecond)
			d.change(func(c *core) { c.resume(c.laneOf(lane), time.Now()) })
		}},
		"its payload was dropped": {tight, func(_ *fakeBackend, d *Dispatcher) { addFresh(d, nil, items("a", "1")) }},
		"the sink has a limit":    {paced, func(_ *fakeBackend, d *Dispatcher) { addFresh(d, nil, items("a", "1")) }},
		"it was spilled": {DefaultConfig(), func(k *fakeBackend, d *Dispatcher) {
			d.Freeze(true)
			addFresh(d, nil, items("a", "1"))
			d.Spill(true)
			k.advance(10 * time.Millisecond)
			d.Freeze(false)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			driveLate(t, c.cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
				c.run(k, d)
				k.advance(time.Minute)
				k.expectClaimedFirst(t, "1")
			})
		})
	}
}

// A run ends before the first row that is not fresh, and the rest is claimed.
func TestRunEndsBeforeARowThatIsNotFresh(t *testing.T) {
	driveLate(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		d.Freeze(true)
		addFresh(d, nil, items("a", "1", "2"))
		add(t, d, nil, items("a", "3"))
		d.Freeze(false)
		k.advance(time.Second)
		k.expect(t, "requests", k.requests, "[[1 2] [3]]")
		k.expect(t, "claims", k.claims, "[[3]]")
	})
}

// Without permission every row is claimed first, and permission is asked for each time.
func TestLatePermissionMayChange(t *testing.T) {
	allowed := false
	driveWith(t, DefaultConfig(), func(k *fakeBackend, opt *Options) {
		opt.Late = func() bool { var may bool; k.set(func() { may = allowed }); return may }
	}, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		for i, now := range []bool{false, true, false} {
			k.set(func() { allowed = now })
			addFresh(d, nil, items("a", fmt.Sprint(i)))
			k.advance(time.Second)
		}
		k.expect(t, "requests", k.requests, "[[0] [1] [2]]")
		k.expect(t, "claims", k.claims, "[[0] [2]]")
	})
}

// A row whose request hangs is claimed after lanes.ClaimAfter, once, and its outcome follows.
func TestHangingRequestIsClaimedLate(t *testing.T) {
	driveLate(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.answer = answerAfter(time.Second, sink.Delivered) })
		addFresh(d, nil, items("a", "1", "2"))
		addFresh(d, nil, items("b", "3"))
		k.advance(10 * time.Second)
		k.expect(t, "requests", len(k.requests), 2)
		k.expect(t, "claims", k.claims, "[[1 2 3]]")
		k.expectClaimedLate(t, "1")
		k.expect(t, "outcomes", slices.Sorted(slices.Values(slices.Concat(k.settles...))), "[1 COMPLETED 2 COMPLETED 3 COMPLETED]")
	})
}

// Claims that write nothing are not made late.
func TestUnwrittenClaimsAreNotMadeLate(t *testing.T) {
	driveWith(t, DefaultConfig(), func(_ *fakeBackend, opt *Options) {
		opt.Late, opt.Unwritten = func() bool { return true }, map[string]bool{"events": true}
	}, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.answer = answerAfter(time.Second, sink.Delivered) })
		addFresh(d, nil, items("a", "1"))
		k.advance(10 * time.Second)
		k.expect(t, "claims", k.claims, "[]")
		k.expect(t, "outcomes", k.settles, "[[1 COMPLETED]]")
	})
}

// The outcome of a row waits for its late claim, which another session writes. Its lane does
// not wait, unless the outcome decides its next step.
func TestOutcomeWaitsForTheLateClaim(t *testing.T) {
	const latency = 300 * time.Millisecond
	for class, want := range map[sink.Class]string{sink.Delivered: "1 COMPLETED", sink.Rejected: "1 PENDING"} {
		t.Run(class.String(), func(t *testing.T) {
			driveLate(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
				k.set(func() {
					k.latency = latency
					k.answer = func(ids []string) sink.Result {
						if ids[0] == "1" {
							return answerAfter(200*time.Millisecond, class)(ids)
						}
						return always(sink.Delivered)(ids)
					}
				})
				addFresh(d, nil, items("a", "1"))
				k.advance(110 * time.Millisecond)
				addFresh(d, nil, items("a", "2"))
				k.advance(140 * time.Millisecond) // the request of row 1 is answered, and its claim is not
				if class == sink.Delivered {
					k.expect(t, "requests during the claim", k.requests, "[[1] [2]]")
				}
				k.expect(t, "held during the claim", slices.Contains(d.Held("events"), "1"), true)
				k.advance(time.Second)
				k.expect(t, "claims", k.claims[0], "[1]")
				if !slices.Contains(slices.Concat(k.settles...), want) {
					t.Errorf("outcomes: got %v, want %s", k.settles, want)
				}
				for i, at := range k.settleTimes {
					if slices.Contains(k.settles[i], want) && at-latency < k.claimedAt("1") {
						t.Errorf("the outcome was written from %s on, the claim until %s", at-latency, k.claimedAt("1"))
					}
				}
			})
		})
	}
}

// The answer of a late claim changes nothing for the lane: the row is delivered, once.
func TestAnswerOfALateClaimChangesNoLane(t *testing.T) {
	for _, result := range []store.ClaimResult{store.AlreadySettled, store.Gone, store.NotYetVisible, store.Held, store.TableLocked} {
		t.Run(result.String(), func(t *testing.T) {
			driveLate(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
				k.set(func() {
					k.answer = answerAfter(time.Second, sink.Delivered)
					k.grant = func(*store.ClaimRow) store.ClaimAnswer { return store.ClaimAnswer{Result: result} }
				})
				var c counter
				addFresh(d, &c, items("a", "1", "2"))
				k.advance(900 * time.Millisecond)
				k.expect(t, "rows done while it hangs", c.n, 0)
				k.expect(t, "held", d.Held("events")[:2], "[1 2]")
				k.expect(t, "vanished", k.vanished, "[]")
				if again := len(k.claims); (again > 1) != (result == store.NotYetVisible || result == store.TableLocked) {
					t.Errorf("%d claims", again)
				}
				k.advance(10 * time.Second)
				k.expect(t, "requests", k.requests, "[[1 2]]")
				k.expect(t, "rows done", c.n, 2)
			})
		})
	}
}

// A row whose late claim the table refuses is delivered. The claim is not repeated.
func TestRefusedLateClaim(t *testing.T) {
	driveLate(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() {
			k.answer, k.refusedIDs = answerAfter(time.Second, sink.Delivered), map[string]bool{"1": true}
		})
		var c counter
		addFresh(d, &c, items("a", "1", "2"))
		k.advance(900 * time.Millisecond)
		k.expect(t, "claims", k.claims, "[[2]]")
		k.expect(t, "failures", k.failures, "[late claim of row 1 of events]")
		k.set(func() { k.refusedIDs = nil })
		k.advance(10 * time.Second)
		k.expect(t, "requests", k.requests, "[[1 2]]")
		k.expect(t, "rows done", c.n, 2)
	})
}

// While the database takes no writes, and the lease still holds, few rows are sent.
func TestReadOnlyDatabaseBoundsUnclaimedRows(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxConcurrentGroups, cfg.APIBatchSize = 2, 5
	for name, rows := range map[string]struct {
		each time.Duration
		most int
	}{
		"quick load": {time.Millisecond, 2*5 + 2}, // outcomes that are unwritten, and the senders
		"slow load":  {20 * time.Millisecond, 7},  // what came within lanes.ClaimAfter
	} {
		t.Run(name, func(t *testing.T) {
			driveLate(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
				addFresh(d, nil, items("g", "0"))
				k.advance(time.Second)
				k.set(func() { k.err = errors.New("cannot execute UPDATE in a read-only transaction"); k.requests = nil })
				for i := 1; i < 200; i++ {
					addFresh(d, nil, items(fmt.Sprint("g", i), fmt.Sprint(i)))
					k.advance(rows.each)
				}
				if n := len(slices.Concat(k.requests...)); n == 0 || n > rows.most {
					t.Errorf("%d rows were sent, want 1 to %d", n, rows.most)
				}
				k.set(func() { k.err = nil })
				k.advance(time.Minute)
				k.expect(t, "rows sent", len(slices.Concat(k.requests...)), 199)
			})
		})
	}
}

// A row that waited for the lease longer than it is fresh is claimed before it is sent.
func TestFreshRowThatWaitsForTheLease(t *testing.T) {
	var l fakeLease
	driveWith(t, DefaultConfig(), func(_ *fakeBackend, opt *Options) {
		opt.Late, opt.Lease = func() bool { return true }, &l
	}, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		confirm := l.suspend()
		addFresh(d, nil, items("a", "1"))
		k.advance(1500 * time.Millisecond)
		k.expect(t, "requests without the lease", k.requests, "[]")
		k.reset()
		confirm()
		k.advance(time.Second)
		k.expect(t, "claims", k.claims, "[[1]]")
		k.expect(t, "requests", k.requests, "[[1]]")
		k.expect(t, "attempt", k.messages[0].Attempt, 1)
	})
}

// The halves of a shared request that failed are claimed before they are sent.
func TestHalvesOfAnUnclaimedRequestAreClaimed(t *testing.T) {
	driveLate(t, senders(1), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.answer = poisoned("3") })
		d.Freeze(true)
		for _, row := range rowsInOwnGroups(4) {
			addFresh(d, nil, []store.Item{row})
		}
		d.Freeze(false)
		k.advance(10 * time.Millisecond)
		k.expect(t, "first request", k.requests[0], "[0 1 2 3]")
		k.expect(t, "second request", k.requests[1], "[0 1]")
		claimed := slices.Concat(k.claims...)
		slices.Sort(claimed)
		k.expect(t, "claims", slices.Compact(claimed), "[0 1 2 3]")
		if sent := k.requestTimes[1]; k.claimedAt("0") > sent {
			t.Errorf("row 0 was claimed at %s and sent again at %s", k.claimedAt("0"), sent)
		}
		k.advance(time.Hour)
		k.expect(t, "outcome of the bad row", k.observed[len(k.observed)-1], "3 FAILED")
	})
}

// A clean end leaves no late claim in the table, whenever its answer comes.
func TestShutdownGivesBackLateClaims(t *testing.T) {
	for name, c := range map[string]struct {
		latency, request time.Duration
		class            sink.Class
		want             string
	}{
		"the request fails after the claim":      {time.Millisecond, 400 * time.Millisecond, sink.Unavailable, "[[1 PENDING 2 PENDING]]"},
		"the request fails during the claim":     {200 * time.Millisecond, 250 * time.Millisecond, sink.Unavailable, "[[1 PENDING 2 PENDING]]"},
		"the request fails before it is claimed": {time.Millisecond, 80 * time.Millisecond, sink.Unavailable, "[]"},
		"a failure counts during the claim":      {200 * time.Millisecond, 250 * time.Millisecond, sink.Rejected, "[[1 PENDING]]"},
		"it is delivered during the claim":       {200 * time.Millisecond, 250 * time.Millisecond, sink.Delivered, "[[1 COMPLETED 2 COMPLETED]]"},
	} {
		t.Run(name, func(t *testing.T) {
			driveLate(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, end func(error) error) {
				k.set(func() { k.latency, k.answer = c.latency, answerAfter(c.request, c.class) })
				rows := items("a", "1", "2")
				if c.class == sink.Rejected {
					rows = rows[:1]
				}
				addFresh(d, nil, rows)
				synctest.Wait()
				before := c.request - 50*time.Millisecond
				k.advance(before)
				if err := end(nil); err != nil {
					t.Fatal(err)
				}
				k.expect(t, "requests", len(k.requests), 1)
				for _, line := range k.settles {
					slices.Sort(line)
				}
				k.expect(t, "outcomes", k.settles, c.want)
			})
		})
	}
}
