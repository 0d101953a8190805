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

// inOutbox moves rows to another outbox.
func inOutbox(outbox string, rows []store.Item) []store.Item {
	for i := range rows {
		rows[i].Outbox, rows[i].ID = outbox, outbox+" "+rows[i].ID
	}
	return rows
}

// claimsOf counts the claim statements with a row of an outbox named by inOutbox, or of
// "events" for "".
func (d *fakeBackend) claimsOf(outbox string) (n int) {
	for _, ids := range d.claims {
		if slices.ContainsFunc(ids, func(id string) bool {
			before, _, other := strings.Cut(id, " ")
			return other && before == outbox || !other && outbox == ""
		}) {
			n++
		}
	}
	return n
}

// Rows of another outbox are delivered within a second, however much waits for the locked
// table. Everything goes on once the table is free.
func TestLockedTableDelaysNoOtherOutbox(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.lockedTables = map[string]bool{"events": true} })
		var locked, free counter
		addEach(t, d, &locked, 500)
		for i := range 40 {
			add(t, d, &free, inOutbox("other", items("g", fmt.Sprint(i))))
			k.advance(time.Second)
			if free.n != i+1 {
				t.Fatalf("%d of %d rows of the free table were delivered within a second", free.n, i+1)
			}
		}
		k.expect(t, "claims of the locked table", k.claimsOf(""), 1)
		k.expect(t, "lanes that wait for it", d.Stats().Lanes["waiting"], 500)
		if n := len(k.tableWaits); n < 35 || n > 45 {
			t.Errorf("the table was asked for %d times in 40 s", n)
		}
		k.set(func() { k.lockedTables = nil })
		k.advance(100 * time.Millisecond)
		k.expect(t, "rows delivered once it is free", locked.n, 500)
	})
}

// Outcomes of another outbox, FAILED included, are written at once.
func TestOutcomesOfLockedTableDelayNoOther(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, end func(error) error) {
		k.set(func() {
			k.answer = func(ids []string) sink.Result {
				<-time.After(time.Second)
				if strings.HasPrefix(ids[0], "bad") {
					return always(sink.Rejected)(ids)
				}
				return always(sink.Delivered)(ids)
			}
		})
		var locked, free counter
		addEach(t, d, &locked, 5)
		k.advance(500 * time.Millisecond)
		k.set(func() { k.lockedTables = map[string]bool{"events": true} })
		cfg := DefaultConfig()
		add(t, d, &free, inOutbox("bad", items("g", "1", "2")))
		k.advance(4 * time.Duration(cfg.MaxRetries+1) * time.Second)
		k.expect(t, "rows of the free table", free.n, 2)
		k.expect(t, "rows of the locked one", locked.n, 0)
		k.expect(t, "held", len(d.Held("events")), 5)
		k.expect(t, "rows in memory", d.Stats().Rows, 5)
		k.set(func() { k.lockedTables = nil })
		k.advance(100 * time.Millisecond)
		k.expect(t, "once it is free", locked.n, 5)
		k.set(func() { k.lockedTables = map[string]bool{"events": true} })
		add(t, d, &locked, items("g", "late"))
		k.advance(2 * time.Second)
		began := time.Now()
		if err := end(nil); err != nil || time.Since(began) > 100*time.Millisecond {
			t.Errorf("the end took %s: %v", time.Since(began), err)
		}
	})
}

// A table that is free whenever the store waits for it, and locked at each claim, is
// claimed once per maxTableLockWait.
func TestRepeatedlyLockedTable(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() {
			k.grant = func(*store.ClaimRow) store.ClaimAnswer { return store.ClaimAnswer{Result: store.TableLocked} }
		})
		var c counter
		addEach(t, d, &c, 20)
		k.advance(10 * time.Second)
		k.reset()
		k.advance(20 * time.Second)
		if n := len(k.claims); n < 9 || n > 11 {
			t.Errorf("%d claims in 20 s", n)
		}
		k.set(func() {
			k.grant = func(*store.ClaimRow) store.ClaimAnswer { return store.ClaimAnswer{Result: store.Claimed} }
		})
		k.advance(maxTableLockWait + 100*time.Millisecond)
		k.expect(t, "rows done", c.n, 20)
	})
}

// Outcomes of locked rows are retried in one statement about once a second, and delay no
// other outcome.
func TestOutcomesOfLockedRowsAreBatched(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxConcurrentGroups = 140
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() {
			k.lockedRows = map[string]bool{}
			for i := range 140 {
				k.lockedRows[fmt.Sprint(i)] = true
			}
		})
		var locked, free counter
		addEach(t, d, &locked, 140)
		k.advance(5 * time.Second)
		k.reset()
		for i := range 40 {
			add(t, d, &free, inOutbox("other", items("g", fmt.Sprint(i))))
			k.advance(1500 * time.Millisecond)
			k.expect(t, "outcomes of unlocked rows", free.n, i+1)
		}
		if n := len(k.settles); n > 40+60+5 {
			t.Errorf("%d outcome statements in a minute", n)
		}
		k.expect(t, "outcomes of locked rows", locked.n, 0)
		k.set(func() { k.lockedRows = nil })
		k.advance(maxRowLockWait + 100*time.Millisecond)
		k.expect(t, "once they are free", locked.n, 140)
	})
}

// The next row is sent after FAILED is written, not while its row is locked.
func TestLaneWaitsForOutcomeOfLockedRow(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.lockedRows, k.answer = map[string]bool{"1": true}, poisoned("1") })
		var c counter
		add(t, d, &c, items("a", "1", "2"))
		k.advance(10 * time.Second)
		if slices.ContainsFunc(k.requests, func(ids []string) bool { return ids[0] == "2" }) {
			t.Errorf("requests: %v", k.requests)
		}
		k.set(func() { k.lockedRows = nil })
		k.advance(10 * time.Second)
		k.expect(t, "rows done", c.n, 2)
		k.expect(t, "observed", k.observed[len(k.observed)-2:], "[1 FAILED 2 COMPLETED]")
	})
}

// Lanes with a locked head are claimed together about once a second, even if they came at
// different times.
func TestClaimsOfLockedRowsAreBatched(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() {
			k.grant = func(*store.ClaimRow) store.ClaimAnswer { return store.ClaimAnswer{Result: store.NotYetVisible} }
		})
		var c counter
		for i := range 1000 {
			add(t, d, &c, items(fmt.Sprint(i), fmt.Sprint(i)))
			k.advance(7 * time.Millisecond)
		}
		k.advance(20 * time.Second)
		k.reset()
		k.advance(10 * time.Second)
		n := 0
		if k.set(func() { n = len(k.claims) }); n > 200 {
			t.Errorf("%d claims in 10 s", n)
		}
	})
}

// FAILED is written with the block of its lane, the answer is lost, and then the table is
// locked for a while. The lane must be blocked.
func TestBlockSurvivesLockAfterLostAnswer(t *testing.T) {
	cfg := DefaultConfig()
	cfg.OnFailed, cfg.MaxRetries = Block, 0
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.answer, k.latency = poisoned("1"), time.Second })
		var c counter
		add(t, d, &c, items("a", "1"))
		k.advance(1500 * time.Millisecond) // FAILED is being written
		k.set(func() { k.lostErr = errors.New("connection lost") })
		k.advance(time.Second)
		k.set(func() {
			k.lostErr, k.settleResult, k.lockedTables = nil, store.WasSettled, map[string]bool{"events": true}
		})
		k.advance(5 * time.Second)
		k.set(func() { k.lockedTables = nil })
		add(t, d, &c, items("a", "2"))
		k.advance(10 * time.Second)
		k.expect(t, "blocked lanes", d.Stats().Lanes["blocked"], 1)
		k.expect(t, "requests", k.requests, "[[1]]")
		k.expect(t, "observed", k.observed, "[1 FAILED]")
	})
}
