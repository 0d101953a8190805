package dispatch

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	lanes "github.com/sluicebox/sluicebox/dispatch/internal/lane"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// driveChecks is driveLate for a table that shows all rows untried.
func driveChecks(t *testing.T, cfg Config, test func(k *fakeBackend, d *Dispatcher, end func(error) error)) {
	driveLate(t, cfg, func(k *fakeBackend, d *Dispatcher, end func(error) error) {
		k.set(func() { k.untried = func(string) bool { return true } })
		test(k, d, end)
	})
}

// Rows of a backlog are read, and then sent without a claim.
func TestUntriedRowsAreReadAndSent(t *testing.T) {
	driveChecks(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		var c counter
		addOld(d, &c, items("a", "1", "2"))
		k.advance(time.Second)
		k.expect(t, "reads", k.checks, "[[1 2]]")
		k.expect(t, "requests", k.requests, "[[1 2]]")
		k.expect(t, "claims", k.claims, "[]")
		k.expect(t, "outcomes", k.settles, "[[1 COMPLETED 2 COMPLETED]]")
		k.expect(t, "rows done", c.n, 2)
	})
}

// Rows that their table does not show untried are claimed, and so are those of the same request.
func TestRowsAreClaimedIfNotFoundUntried(t *testing.T) {
	for name, c := range map[string]struct {
		set      func(k *fakeBackend)
		failures string
	}{
		"one was tried":     {func(k *fakeBackend) { k.untried = func(id string) bool { return id != "2" } }, "[]"},
		"they are unknown":  {func(k *fakeBackend) { k.untried = nil }, "[]"},
		"they are not read": {func(k *fakeBackend) { k.untriedErr = errors.New("no answer") }, "[read]"},
	} {
		t.Run(name, func(t *testing.T) {
			driveChecks(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
				k.set(func() { c.set(k) })
				addOld(d, nil, items("a", "1", "2"))
				k.advance(time.Second)
				k.expect(t, "claims", k.claims, "[[1 2]]")
				k.expect(t, "requests", k.requests, "[[1 2]]")
				k.expect(t, "failures", k.failures, c.failures)
			})
		})
	}
}

// These rows are claimed although their table would show them untried.
func TestRowsThatAreNotReadInstead(t *testing.T) {
	paced := DefaultConfig()
	paced.RateLimit = 100
	for name, c := range map[string]struct {
		cfg Config
		run func(k *fakeBackend, d *Dispatcher)
	}{
		"it was tried": {DefaultConfig(), func(k *fakeBackend, d *Dispatcher) {
			k.set(func() { k.answer = failsFirst(k) })
			addOld(d, nil, items("a", "1"))
		}},
		"its payload was dropped": {DefaultConfig(), func(_ *fakeBackend, d *Dispatcher) {
			rows := items("a", "1")
			rows[0].Payload = nil
			addOld(d, nil, rows)
		}},
		"the sink has a limit": {paced, func(_ *fakeBackend, d *Dispatcher) { addOld(d, nil, items("a", "1")) }},
		"requests take longer than a claim waits": {DefaultConfig(), func(k *fakeBackend, d *Dispatcher) {
			k.set(func() { k.answer = answerAfter(2*lanes.ClaimAfter, sink.Delivered) })
			addOld(d, nil, items("b", "8"))
			k.advance(time.Second)
			addOld(d, nil, items("a", "1"))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			driveChecks(t, c.cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
				c.run(k, d)
				k.advance(time.Minute)
				k.expectClaimedFirst(t, "1")
			})
		})
	}
}

// A row that was read and then waits for a sender for longer than a second is claimed.
func TestReadRowThatWaitsIsClaimed(t *testing.T) {
	cfg := senders(1)
	cfg.APIBatchSize = 1
	driveChecks(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() {
			k.answer = func(ids []string) sink.Result {
				if ids[0] == "1" {
					<-time.After(1500 * time.Millisecond)
				}
				return always(sink.Delivered)(ids)
			}
		})
		addOld(d, nil, items("a", "1"))
		addOld(d, nil, items("b", "2"))
		k.advance(50 * time.Millisecond)
		k.expect(t, "reads", fmt.Sprint(slices.Concat(k.checks...)), "[1 2]")
		k.advance(time.Minute)
		k.expect(t, "reads", fmt.Sprint(slices.Concat(k.checks...)), "[1 2]")
		k.expect(t, "requests", k.requests, "[[1] [2]]")
		k.expect(t, "claims", k.claims, "[[1] [2]]") // the first is late
	})
}

// A row that was read is claimed late like a fresh one.
func TestReadRowIsClaimedLate(t *testing.T) {
	driveChecks(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.answer = answerAfter(time.Second, sink.Delivered) })
		addOld(d, nil, items("a", "1"))
		k.advance(10 * time.Second)
		k.expect(t, "claims", k.claims, "[[1]]")
		k.expectClaimedLate(t, "1")
		k.expect(t, "outcomes", k.settles, "[[1 COMPLETED]]")
	})
}

// Outcomes that the table refuses are tried one by one. Other rows do not wait for them.
func TestRowsDoNotWaitForRefusedOutcomes(t *testing.T) {
	cfg := senders(2)
	cfg.APIBatchSize = 1
	driveChecks(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() {
			k.latency = 5 * time.Millisecond
			k.refusesOutcome = func(o *store.Outcome) bool { return o.ID < "5" }
		})
		for n := range 300 {
			addOld(d, nil, items(fmt.Sprintf("g%d", n), fmt.Sprint(1000+n)))
		}
		k.advance(time.Minute)
		before, began := len(k.requests), time.Since(k.began)
		for n := range 50 {
			addOld(d, nil, items(fmt.Sprintf("h%d", n), fmt.Sprint(5000+n)))
		}
		k.advance(time.Minute)
		k.expect(t, "rows sent", len(k.requests)-before, 50)
		if took := k.requestTimes[len(k.requestTimes)-1] - began; took > 2*time.Second {
			t.Errorf("they were sent within %s", took)
		}
	})
}

// While outcomes are being written and too many wait, rows are not claimed: they wait, too. If the write is slow, they
// are claimed.
func TestRowsWaitForOutcomes(t *testing.T) {
	cfg := senders(2)
	cfg.APIBatchSize = 1
	driveChecks(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.settleLatency = lanes.ClaimAfter / 2 })
		for n := range 60 {
			addOld(d, nil, items(fmt.Sprintf("g%d", n), fmt.Sprint(n)))
		}
		k.advance(10 * time.Second)
		k.expect(t, "rows sent", len(k.requests), 60)
		k.expect(t, "claims", k.claims, "[]")
		for _, batch := range k.settles {
			if len(batch) > 8 { // that wait, and the requests in flight
				t.Errorf("%d outcomes are written at once: %s", len(batch), strings.Join(batch, ", "))
			}
		}

		k.set(func() { k.settleLatency = time.Minute })
		for n := range 20 {
			addOld(d, nil, items(fmt.Sprintf("g%d", n), fmt.Sprint(100+n)))
		}
		k.advance(time.Second)
		if claims := slices.Concat(k.claims...); len(claims) < 10 {
			t.Errorf("claims while a write takes a minute: %v", claims)
		}
	})
}

// Rows are claimed while one write of outcomes is slow, also if others beside it are quick.
func TestASlowWriteBesideAQuickOne(t *testing.T) {
	now := time.Unix(1e9, 0)
	c := newTestCore(DefaultConfig(), func(string) sink.Limits { return sink.Limits{Mode: sink.Atomic, MaxItems: 100, MaxBytes: 1 << 20} }, func() float64 { return 0 })
	c.splitOutcomes(1)
	c.setLate(func() bool { return true })
	allowed := func(now time.Time) bool { c.late.decide(now); return c.lanes.Requests.Fresh.Allowed }
	for i := range 8 {
		c.append(items(fmt.Sprint("group ", i), fmt.Sprint(i)), nil)
	}
	for _, req := range c.nextClaims(100, now) {
		c.claimed(req, slices.Repeat([]store.ClaimAnswer{{Result: store.Claimed}}, req.Size()), now, now)
	}
	for req := c.nextRequest(now); req != nil; req = c.nextRequest(now) {
		c.answered(req, &sink.Result{Outcome: sink.Outcome{Class: sink.Delivered}}, now)
	}
	slow, quick := c.late.nextOutcomes(0, 100, now), c.late.nextOutcomes(1, 100, now)
	if len(slow) == 0 || len(quick) == 0 {
		t.Fatalf("batches of %d and %d outcomes", len(slow), len(quick))
	}
	c.wrote(1, slices.Repeat([]store.SettleResult{store.Written}, len(quick)), now.Add(50*time.Millisecond))
	if !allowed(now.Add(60*time.Millisecond)) || allowed(now.Add(150*time.Millisecond)) {
		t.Error("want unclaimed rows until a write has lasted for 100 ms, and none then")
	}
	c.wrote(0, slices.Repeat([]store.SettleResult{store.Written}, len(slow)), now.Add(200*time.Millisecond))
	if !allowed(now.Add(210 * time.Millisecond)) {
		t.Error("want unclaimed rows after the slow write")
	}
}
