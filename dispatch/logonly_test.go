package dispatch

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// logOnlyCore returns a core for rows that only the log has.
func logOnlyCore(cfg Config) *core {
	c := newTestCore(cfg, func(string) sink.Limits { return sink.Limits{Mode: sink.Atomic, MaxItems: 100, MaxBytes: 1 << 30} }, func() float64 { return 0 })
	c.lanes.Memory.LogOnly = map[string]bool{"events": true}
	return c
}

// logRows returns rows of a group with a payload each, numbered from the given seq.
func logRows(group string, seq, n, size int) []store.Item {
	var ids []string
	for i := range n {
		ids = append(ids, fmt.Sprint(seq+i))
	}
	rows := items(group, ids...)
	for i := range rows {
		rows[i].Seq = store.Seq(seq + i)
		rows[i].Payload = make([]byte, size)
		rows[i].PayloadSize = size
	}
	return rows
}

// TestLogOnlyRowsKeepContent: past buffer-bytes the rows count as full, and are spilled with
// their payloads. No claim asks for one.
func TestLogOnlyRowsKeepContent(t *testing.T) {
	cfg := DefaultConfig()
	cfg.BufferRows, cfg.BufferBytes = 100, 1<<20
	c, now := logOnlyCore(cfg), time.Unix(1e9, 0)
	c.append(logRows("a", 1, 30, 64<<10), nil)
	if used := c.bufferedRows(); used < 2*cfg.BufferRows*9/10 || c.heldBytes() != 30*64<<10 {
		t.Errorf("rows of twice the buffer's bytes use %d of %d and hold %d bytes", used, cfg.BufferRows, c.heldBytes())
	}
	for _, l := range c.live() {
		for _, rw := range l.Rows {
			if rw.Payload == nil {
				t.Fatalf("row %s lost its payload", rw.ID)
			}
		}
	}
	reqs := c.nextClaims(100, now)
	n := reqs[0].Size()
	answers := make([]store.ClaimAnswer, n)
	for i := range answers {
		answers[i] = store.ClaimAnswer{Result: store.Claimed, Unwritten: true}
	}
	c.claimed(reqs[0], answers, now, now)
	c.answered(c.nextRequest(now), &sink.Result{Outcome: sink.Outcome{Class: sink.Unavailable}}, now)
	c.spillExcess(true)
	spilled := c.nextSpills(1000)
	if len(spilled) != 30 {
		t.Fatalf("%d rows are spilled, want 30", len(spilled))
	}
	for _, it := range spilled {
		if len(it.Payload) != 64<<10 {
			t.Fatalf("row %s is spilled with %d bytes of payload", it.ID, len(it.Payload))
		}
	}
	c.spillsWritten(make([]bool, len(spilled)))
	if c.heldBytes() > 2*64<<10 { // a waiting lane keeps its first rows
		for _, l := range c.live() {
			t.Logf("lane %s: %d rows", l.Name, len(l.Rows))
		}
		t.Errorf("%d bytes are held after the lane was spilled", c.heldBytes())
	}

	// What is read back is as large as what was spilled.
	if from, each := c.nextReloads(now.Add(time.Hour)); len(from) > 0 && len(from)*each*64<<10 > int(cfg.BufferBytes) {
		t.Errorf("a reload of %d lanes reads %d rows each", len(from), each)
	}
}

// TestDeliveredRowIsSpilledWhole: the log is freed before the outcome of a delivered row is written. After a crash
// the row is sent again, so its copy has the content.
func TestDeliveredRowIsSpilledWhole(t *testing.T) {
	c, now := logOnlyCore(DefaultConfig()), time.Unix(1e9, 0)
	c.enableSpill()
	c.append(logRows("a", 1, 1, 10), nil)
	reqs := c.nextClaims(1, now)
	c.claimed(reqs[0], []store.ClaimAnswer{{Result: store.Claimed, Unwritten: true}}, now, now)
	c.answered(c.nextRequest(now), &sink.Result{Outcome: sink.Outcome{Class: sink.Delivered}}, now)
	c.nextOutcomes(1)
	c.written([]store.SettleResult{store.TooEarly}, now)
	c.spillForLog(true)
	spilled := c.nextSpills(1)
	if len(spilled) != 1 || len(spilled[0].Payload) != 10 {
		t.Errorf("spilled %+v, want the row with its payload", spilled)
	}
}

// TestOvertakenRowsAreSpilled: within a second of the first later row that is delivered, whether
// their request is answered or not. A lane whose rows are delivered in time is not spilled.
func TestOvertakenRowsAreSpilled(t *testing.T) {
	for _, hangs := range []bool{true, false} {
		t.Run(fmt.Sprintf("hangs=%t", hangs), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newFakeBackend()
				opt := k.options(1)
				opt.LogOnly = map[string]bool{"events": true}
				dead := func(ids []string) sink.Result {
					if ids[0][0] != '9' {
						return always(sink.Delivered)(ids)
					}
					if hangs {
						<-time.After(time.Minute)
					}
					return always(sink.Unavailable)(ids)
				}
				k.set(func() { k.answer = dead })
				d := New(DefaultConfig(), opt)
				ctx, cancel := context.WithCancel(context.Background())
				done := make(chan error, 1)
				go func() { done <- d.Run(ctx) }()
				defer func() { cancel(); waitEnded(t, done) }()

				var moves, stands counter
				add(t, d, &stands, logRows("dead", 90, 3, 2))
				for i := range 20 { // one row each 100 ms
					add(t, d, &moves, logRows("alive", 100+i, 1, 2))
					k.advance(100 * time.Millisecond)
					if after := time.Duration(i+1) * 100 * time.Millisecond; stands.n == 0 && after > 1100*time.Millisecond {
						t.Fatalf("the dead lane holds the checkpoint after %s", after)
					}
				}
				if moves.n != 20 || stands.n != 3 {
					t.Errorf("the checkpoint may pass %d and %d rows, want 20 and 3", moves.n, stands.n)
				}
				k.set(func() { k.expect(t, "spilled", k.rowsSpilled, 3) })
				add(t, d, &stands, logRows("dead", 93, 1, 2))
				for i := range 11 {
					add(t, d, &moves, logRows("alive", 120+i, 1, 2))
					k.advance(100 * time.Millisecond)
				}
				if stands.n != 4 {
					t.Errorf("a later row of the dead lane holds the checkpoint: %d of 4", stands.n)
				}

				k.set(func() { k.answer = always(sink.Delivered) })
				k.advance(5 * time.Minute)
				if left := len(k.items); left != 0 {
					t.Errorf("%d spilled rows are left after all were delivered", left)
				}
				k.set(func() {
					for _, r := range k.rows {
						if r.WantPayload {
							t.Errorf("a claim asked for the payload of row %s", r.ID)
						}
					}
				})
			})
		})
	}
}

// TestSlowLaneDoesNotHoldCheckpoint: a lane with a long backlog moves, one row each 100 ms. The
// checkpoint passes the rows that are delivered behind it, within about a second.
func TestSlowLaneDoesNotHoldCheckpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, d, stop := runLogOnly(t, func(id string) bool { return len(id) == 6 })
		var slow, fast counter
		add(t, d, &slow, logRows("slow", 100000, 200, 2))
		for i := range 5 {
			for j := range 10 {
				add(t, d, &fast, logRows(fmt.Sprint("fast", j), 1000000+10*i+j, 1, 2))
			}
			k.advance(time.Second)
		}
		if slow.n < 200 || fast.n != 50 {
			t.Errorf("the checkpoint may pass %d of 200 slow rows and %d of 50 others", slow.n, fast.n)
		}
		k.advance(30 * time.Second)
		k.set(func() {
			if len(k.items) != 0 || len(k.messages) != 250 {
				t.Errorf("%d spilled rows are left, %d rows were sent, want 0 and 250", len(k.items), len(k.messages))
			}
		})
		stop()
	})
}

// TestBacklogAloneIsNotSpilled: nothing is delivered behind it, so nothing would be repeated.
func TestBacklogAloneIsNotSpilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, d, stop := runLogOnly(t, func(string) bool { return true })
		for i := range 200 {
			add(t, d, nil, logRows("slow", 100000+i, 1, 2))
		}
		k.advance(10 * time.Second)
		k.set(func() { k.expect(t, "spilled", k.rowsSpilled, 0) })
		stop()
	})
}

// TestCleanStopPassesDeliveredRows: rows that only the log has are spilled by a clean stop if
// they are not delivered, so the checkpoint passes the rows delivered behind them.
func TestCleanStopPassesDeliveredRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, d, stop := runLogOnly(t, func(id string) bool { return len(id) == 6 })
		var slow, fast counter
		add(t, d, &slow, logRows("slow", 100000, 200, 2))
		add(t, d, &fast, logRows("fast", 1000000, 10, 2))
		k.advance(300 * time.Millisecond)
		k.set(func() { k.expect(t, "spilled before the stop", k.rowsSpilled, 0) })
		stop()
		if slow.n != 200 || fast.n != 10 {
			t.Errorf("the checkpoint may pass %d of 200 slow rows and %d of 10 others", slow.n, fast.n)
		}
		if sent := len(k.messages); len(k.items) != 210-sent {
			t.Errorf("%d rows are spilled and %d delivered, want 210 in total", len(k.items), sent)
		}
	})
}

// runLogOnly runs a dispatcher of rows that only the log has. It sends one row per request,
// and a slow row takes 100 ms. stop is a clean stop.
func runLogOnly(t *testing.T, slow func(id string) bool) (k *fakeBackend, d *Dispatcher, stop func()) {
	t.Helper()
	k = newFakeBackend()
	opt := k.options(1)
	opt.LogOnly = map[string]bool{"events": true}
	k.set(func() {
		k.answer = func(ids []string) sink.Result {
			if slow(ids[0]) {
				<-time.After(100 * time.Millisecond)
			}
			return always(sink.Delivered)(ids)
		}
	})
	cfg := DefaultConfig()
	cfg.APIBatchSize = 1
	d = New(cfg, opt)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	return k, d, func() { cancel(); waitEnded(t, done) }
}

// The store has moved a FAILED row to the spilled rows. Before the core hears of it, a reload
// of the lane brings the row.
func TestReloadBeforeRequeueAnswer(t *testing.T) {
	c, now := logOnlyCore(DefaultConfig()), time.Unix(1e9, 0)
	later, failed := logRows("a", 10, 3, 2), logRows("a", 5, 1, 2)
	key := later[0].Lane()
	c.addSpilledLanes([]store.SpilledLane{{Outbox: "events", Kind: key.Kind, Hash: key.Hash(), Rows: 3}})
	from, each := c.nextReloads(now)
	if len(from) != 1 {
		t.Fatal(from)
	}
	c.addReloaded([][]store.Item{append(failed[:1:1], later...)}, each)
	c.operator.requeue(failed)
	for _, l := range c.live() {
		var seqs []store.Seq
		for _, rw := range l.Rows {
			seqs = append(seqs, rw.Seq)
		}
		if !slices.Equal(seqs, []store.Seq{5, 10, 11, 12}) {
			t.Errorf("the lane has rows %d", seqs)
		}
	}
}
