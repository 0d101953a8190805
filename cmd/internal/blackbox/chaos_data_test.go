package blackbox

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"
)

// dataKinds are rows that are hard, and transactions that are.
func dataKinds() []chaosKind {
	const short, long = 300 * time.Millisecond, 3 * time.Second
	return []chaosKind{
		oddKind("big rows", 50, func(r *chaosRow, _ *rand.Rand) { r.fill(strings.Repeat("x", 900<<10)) }),
		oddKind("rows beyond the limit", 50, func(r *chaosRow, _ *rand.Rand) {
			r.mayFail = true
			r.fill(strings.Repeat("x", 1<<20)) // FlowCatalyst takes requests below 1 MiB
		}),
		oddKind("poison rows", 20, func(r *chaosRow, _ *rand.Rand) {
			r.mayFail = true
			r.fill(poisonMark)
		}),
		oddKind("bad JSON", 20, func(r *chaosRow, _ *rand.Rand) {
			r.mayFail = true
			r.payload = `{"id": "` + r.id + `", broken`
		}),
		oddKind("rows without a group", 5, func(r *chaosRow, _ *rand.Rand) { r.group, r.noOrder = "", true }),
		{name: "a transaction of many rows", least: short, most: long, inject: func(c *chaos, r *rand.Rand) func() {
			return c.writes(c.rowsOf(1000+r.IntN(20), 3000))
		}},
		{name: "transactions rolled back", least: short, most: long, inject: func(c *chaos, r *rand.Rand) func() {
			for range 5 {
				ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
				end, err := c.store.begin(ctx, c.rowsOf(2000+r.IntN(20), 20))
				if err == nil {
					err = end(false)
				}
				cancel()
				if err != nil {
					c.t.Logf("rolled back: %v", err) // the database may be away
				}
			}
			return func() {}
		}},
		{name: "a transaction open for long", least: 3 * time.Second, most: 8 * time.Second, inject: func(c *chaos, r *rand.Rand) func() {
			rows := c.rowsOf(3000+r.IntN(20), 20)
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second) // a locked table waits for it
			within, done := context.WithTimeout(ctx, 2*time.Second)
			stop := context.AfterFunc(within, cancel)
			end, err := c.store.begin(ctx, rows)
			stop()
			return func() {
				if err == nil {
					err = end(true)
				}
				cancel()
				done()
				if err == nil {
					c.commit(rows)
				} else {
					c.writes(rows)()
				}
			}
		}},
	}
}

// oddKind changes one of so many rows.
func oddKind(name string, of int, change func(r *chaosRow, rnd *rand.Rand)) chaosKind {
	const short, long = 300 * time.Millisecond, 3 * time.Second
	return chaosKind{name: name, family: "odd", least: short, most: long, counted: true, inject: func(c *chaos, _ *rand.Rand) func() {
		some := func(r *chaosRow, rnd *rand.Rand) {
			if rnd.IntN(of) == 0 {
				change(r, rnd)
				c.effects.add(name)
			}
		}
		c.odd.Store(&some)
		return func() { c.odd.CompareAndSwap(&some, nil) }
	}}
}

// clockKinds are services whose clocks are wrong. Rows of such a time may be out of order after a snapshot,
// which is sorted by it. The clocks of relays and servers are that of the machine, because Linux gives a
// process none of its own.
func clockKinds() []chaosKind {
	shift := func(most time.Duration) func(r *chaosRow, rnd *rand.Rand) {
		return func(r *chaosRow, rnd *rand.Rand) {
			r.at, r.noOrder = r.at.Add(time.Duration(rnd.Float64()*float64(most))).Truncate(time.Millisecond), true
		}
	}
	return []chaosKind{
		oddKind("clocks of services ahead", 5, shift(time.Hour)),
		oddKind("clocks of services behind", 5, shift(-2*time.Minute)), // the oracle reads all rows since the first one
	}
}

// rowsOf makes rows of a group that no writer has.
func (c *chaos) rowsOf(group, n int) (rows []*chaosRow) {
	for range n {
		rows = append(rows, c.row(group, false))
	}
	return rows
}

// operatorKinds are what operators do.
func operatorKinds() []chaosKind {
	const short, long = 300 * time.Millisecond, 3 * time.Second
	return []chaosKind{
		{name: "lanes paused and resumed", least: short, most: long, counted: true, inject: func(c *chaos, r *rand.Rand) func() {
			group := fmt.Sprint("group-", r.IntN(chaosHot))
			c.operate("lanes paused and resumed", "lanes/pause", `{"outbox": "outbox_events", "kind": "EVENT", "group": %q, "reason": "a look at it"}`, group)
			return func() {
				c.operate("", "lanes/resume", `{"outbox": "outbox_events", "kind": "EVENT", "group": %q, "reason": "seen"}`, group)
			}
		}},
		{name: "a lane skipped", least: short, most: long, inject: func(c *chaos, r *rand.Rand) func() {
			// A poisoned row at the head is what operators skip. A lane without one refuses.
			rows := c.rowsOf(4000+r.IntN(20), 3)
			rows[0].mayFail = true
			rows[0].fill(poisonMark)
			written := c.writes(rows)
			return func() {
				written()
				c.try("lanes/skip", `{"outbox": "outbox_events", "kind": "EVENT", "group": %q, "reason": "known bad"}`, rows[0].group)
			}
		}},
		{name: "FAILED rows requeued", least: short, most: long, inject: func(c *chaos, r *rand.Rand) func() {
			rows := c.rowsOf(5000+r.IntN(20), 5)
			for _, row := range rows[:2] {
				row.mayFail, row.noOrder = true, true
				row.fill(poisonMark)
			}
			written := c.writes(rows)
			return func() {
				written()
				c.to.forgiven.Store(true)
				c.try("deadletters/requeue", `{"outbox": "outbox_events", "ids": [%q, %q]}`, rows[0].id, rows[1].id)
				c.sleep(500 * time.Millisecond)
				c.to.forgiven.Store(false)
			}
		}},
		{name: "breakers and lanes retried now", least: short, most: short, inject: func(c *chaos, r *rand.Rand) func() {
			c.try("lanes/retry-now", `{"outbox": "outbox_events", "kind": "EVENT", "group": %q}`, fmt.Sprint("group-", r.IntN(chaosHot)))
			return func() {}
		}},
		{name: aReplay, least: short, most: long, counted: true, inject: func(c *chaos, _ *rand.Rand) func() {
			c.sleep(time.Second) // so that rows are settled that it can send again
			since := time.Now().Add(-3 * time.Second).UTC().Format(time.RFC3339)
			request := func() {
				c.operate("", "replays", `{"since": %q, "outboxes": ["outbox_events", "outbox_dispatch_jobs/platform"]}`, since)
			}
			if !c.someRelayIsWanted() {
				return request // another fault keeps them down until it ends
			}
			request()
			return func() {}
		}},
	}
}

// try asks the leader's API, which may be away.
func (c *chaos) try(path, format string, args ...any) (status int, text string) {
	return c.leader().try(http.MethodPost, "/api/v1/"+path, fmt.Sprintf(format, args...))
}

// operate asks the leader until it does so, or logs why it does not. It is an effect of a kind, unless that
// is empty.
func (c *chaos) operate(kind, path, format string, args ...any) {
	end := time.Now().Add(10 * time.Second)
	for {
		status, text := c.try(path, format, args...)
		if status/100 == 2 {
			c.effects.add(kind)
			return
		}
		if status/100 == 4 || time.Now().After(end) {
			c.t.Logf("%s: %d %s", path, status, text)
			return
		}
		c.sleep(200 * time.Millisecond)
	}
}

// writes commits rows beside the test, because the database may be away. The returned function
// waits for it.
func (c *chaos) writes(rows []*chaosRow) (wait func()) {
	done := make(chan struct{})
	c.work.Go(func() {
		defer close(done)
		c.write(context.Background(), rows)
	})
	return func() { <-done }
}
