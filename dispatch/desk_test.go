package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// desk is a ledger, a sink and an observer whose time is the test's: statements
// and requests take what they are told to take.
type desk struct {
	mu    sync.Mutex
	began time.Time

	parkedTable

	// How it answers.
	takes  time.Duration // a statement
	answer func(ids []string) sink.Result
	hangs  bool            // requests end with their context
	refuse error           // what statements answer while it is set
	lose   error           // as refuse, but the statement was carried out
	bad    map[string]bool // ids that the table refuses
	// objects are the outcomes that it refuses.
	objects func(*store.Outcome) bool
	grant   func(r *store.ClaimRow) store.ClaimAnswer
	found   store.SettleResult
	locks   map[string]bool // outboxes whose table is locked
	kept    map[string]bool // ids of rows that are locked when an outcome is written

	// What it saw.
	tries      []time.Duration // of each statement, since the test began
	claims     [][]string      // ids of each claim statement
	rows       []store.ClaimRow
	times      []time.Time // that the claims wrote
	settles    [][]string  // "id status" of each outcome statement
	outcomes   []store.Outcome
	requests   [][]string
	messages   []sink.Message
	at         []time.Duration // of each request, since the test began
	seen       []RequestInfo   // as observed
	suspicions []string
	stalled    []string // heads of lanes
	shelf      shelf
	observed   []string // "id status"
	vanished   []string // ids
	failures   []string // of the store, as observed
	parkedRows int      // as observed
	unparkable []string // as observed
	notes      notes
	awaited    []time.Duration // of each question for a locked table, since the test began
}

func newDesk() *desk {
	return &desk{
		began: time.Now(), takes: time.Millisecond, answer: always(sink.Delivered),
		grant: func(*store.ClaimRow) store.ClaimAnswer { return store.ClaimAnswer{Result: store.Claimed} },
		found: store.Written,
	}
}

// always answers every request in one way.
func always(c sink.Class) func([]string) sink.Result {
	return func([]string) sink.Result {
		return sink.Result{Outcome: sink.Outcome{Class: c, Detail: c.String()}}
	}
}

// poisoned answers as a receiver that rejects every request with the row in it.
func poisoned(id string) func([]string) sink.Result {
	return func(ids []string) sink.Result {
		if slices.Contains(ids, id) {
			return always(sink.Rejected)(ids)
		}
		return always(sink.Delivered)(ids)
	}
}

// statement lets a statement about rows take its time; the caller holds the
// lock when it returns.
func (d *desk) statement(ctx context.Context, ids []string) error {
	var err error
	select {
	case <-ctx.Done():
		err = ctx.Err()
	case <-time.After(d.takes):
	}
	d.mu.Lock()
	d.tries = append(d.tries, time.Since(d.began))
	for _, id := range ids {
		if d.bad[id] && err == nil {
			err = &store.RefusedError{Err: errors.New("a trigger objects to " + id)}
		}
	}
	if err == nil {
		err = d.refuse
	}
	return err
}

func (d *desk) Claim(ctx context.Context, _ store.Epoch, at time.Time, rows []store.ClaimRow) ([]store.ClaimAnswer, error) {
	ids := make([]string, len(rows))
	for i := range rows {
		locked := false
		if d.set(func() { locked = d.locks[rows[i].Outbox] }); locked {
			<-time.After(500 * time.Millisecond) // as long as a store waits
			break
		}
	}
	for i := range rows {
		ids[i] = rows[i].ID
	}
	err := d.statement(ctx, ids)
	defer d.mu.Unlock()
	d.rows, d.times = append(d.rows, rows...), append(d.times, at)
	if err != nil {
		return nil, err
	}
	d.claims = append(d.claims, ids)
	answers := make([]store.ClaimAnswer, len(rows))
	for i := range rows {
		if answers[i] = d.grant(&rows[i]); d.locks[rows[i].Outbox] {
			answers[i] = store.ClaimAnswer{Result: store.TableLocked}
		}
	}
	return answers, d.lose
}

func (d *desk) Settle(ctx context.Context, _ store.Epoch, outcomes []store.Outcome) ([]store.SettleResult, error) {
	ids, lines := make([]string, len(outcomes)), make([]string, len(outcomes))
	results := make([]store.SettleResult, len(outcomes))
	for i, o := range outcomes {
		ids[i], lines[i] = o.ID, o.ID+" "+o.Status.String()
	}
	err := d.statement(ctx, ids)
	defer d.mu.Unlock()
	for i := range outcomes {
		if err == nil && d.objects != nil && d.objects(&outcomes[i]) {
			err = &store.RefusedError{Err: errors.New("a trigger objects to " + outcomes[i].ID)}
		}
	}
	if err != nil {
		return nil, err
	}
	var parked []store.SpilledRef
	for i := range results {
		o := &outcomes[i]
		switch results[i] = d.found; {
		case d.locks[o.Outbox]:
			results[i] = store.TableWasLocked
		case d.kept[o.ID]:
			results[i] = store.WasLocked
		}
		if !results[i].NeedsRetry() && o.SpilledSeq != 0 && o.Status.Settled() {
			parked = append(parked, store.SpilledRef{Ref: o.Ref, Seq: o.SpilledSeq})
		}
	}
	d.forget(parked...)
	d.settles, d.outcomes = append(d.settles, lines), append(d.outcomes, outcomes...)
	return results, d.lose
}

// AwaitTable waits as long as a store does.
func (d *desk) AwaitTable(ctx context.Context, outbox string) error {
	d.set(func() { d.awaited = append(d.awaited, time.Since(d.began)) })
	for range 100 {
		locked := false
		if d.set(func() { locked = d.locks[outbox] }); !locked {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
	return &store.OutboxLockedError{Outbox: outbox}
}

// Limits gives each kind but EVENT an endpoint of its name.
func (d *desk) Limits(kind string) sink.Limits {
	limits := sink.Limits{Mode: sink.Atomic, MaxItems: 100, MaxBytes: 1 << 20}
	if kind != "EVENT" {
		limits.Endpoint = kind
	}
	return limits
}

func (d *desk) Deliver(ctx context.Context, msgs []sink.Message) sink.Result {
	var ids []string
	for _, m := range msgs {
		ids = append(ids, m.ID)
	}
	d.mu.Lock()
	d.requests = append(d.requests, ids)
	d.messages = append(d.messages, msgs...)
	d.at = append(d.at, time.Since(d.began))
	answer, hangs := d.answer, d.hangs
	d.mu.Unlock()
	if hangs {
		<-ctx.Done()
	}
	return answer(ids)
}

func (d *desk) Claimed(store.ClaimResult, int) {}

func (d *desk) Settled(it *store.Item, o *store.Outcome) {
	d.set(func() { d.observed = append(d.observed, it.ID+" "+o.Status.String()) })
}

func (d *desk) Vanished(rows []*store.Item) {
	d.set(func() {
		for _, it := range rows {
			d.vanished = append(d.vanished, it.ID)
		}
	})
}

func (d *desk) RowsSpilled(n int) { d.set(func() { d.parkedRows += n }) }

func (d *desk) RowUnspillable(it *store.Item, _ error) {
	d.set(func() { d.unparkable = append(d.unparkable, it.ID) })
}
func (d *desk) UnspillableCleared() { d.set(func() { d.unparkable = append(d.unparkable, "none") }) }
func (d *desk) StoreFailed(op string, _ error) {
	d.set(func() { d.failures = append(d.failures, op) })
}

func (d *desk) Refused(row store.Ref, what string, _ error) {
	d.set(func() { d.failures = append(d.failures, what+" of row "+row.ID+" of "+row.Outbox) })
}

func (d *desk) set(change func()) { d.mu.Lock(); defer d.mu.Unlock(); change() }

func (d *desk) expect(t *testing.T, what string, got, want any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// near checks the waits between times against what the back-off is to be before
// it is shortened by up to a fifth; statements take a little.
func near(t *testing.T, at []time.Duration, want ...time.Duration) {
	t.Helper()
	if len(at) < len(want)+1 {
		t.Fatalf("%d tries, want at least %d", len(at), len(want)+1)
	}
	for i, w := range want {
		if got := at[i+1] - at[i]; got < w*4/5 || got > w+10*time.Millisecond {
			t.Errorf("wait %d was %s, want %s or up to a fifth less", i+1, got, w)
		}
	}
}

// counter is a ticket.
type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) Done(n int) { c.mu.Lock(); defer c.mu.Unlock(); c.n += n }

func items(group string, ids ...string) []store.Item {
	var out []store.Item
	for _, id := range ids {
		out = append(out, store.Item{
			Ref: store.Ref{Outbox: "events", ID: id}, Kind: "EVENT", Group: store.GroupOf(group),
			Payload: []byte("{}"), PayloadSize: 2,
		})
	}
	return out
}

// numbered returns rows "0" to "n-1" of one group.
func numbered(group string, n int) []store.Item {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprint(i)
	}
	return items(group, ids...)
}

// drive runs a dispatcher in fake time. The function it passes to the test ends
// the dispatcher for a reason and returns its error.
func drive(t *testing.T, cfg Config, test func(k *desk, d *Dispatcher, end func(error) error)) {
	driveLeased(t, cfg, nil, test)
}

// driveLeased drives a dispatcher under a lease.
func driveLeased(t *testing.T, cfg Config, lease Lease, test func(k *desk, d *Dispatcher, end func(error) error)) {
	driveSink(t, cfg, lease, func(k *desk) sink.Sink { return k }, test)
}

// driveSink drives a dispatcher of a sink that is made of a desk.
func driveSink(t *testing.T, cfg Config, lease Lease, made func(*desk) sink.Sink, test func(k *desk, d *Dispatcher, end func(error) error)) {
	synctest.Test(t, func(t *testing.T) {
		k := newDesk()
		d := New(cfg, k, made(k), 1, k, time.Second)
		d.Lease, d.Replays, d.Replayed = lease, k, k.replayed
		ctx, cancel := context.WithCancelCause(context.Background())
		done := make(chan error, 1)
		go func() { done <- d.Run(ctx) }()
		ended := false
		end := func(cause error) error { cancel(cause); ended = true; return <-done }
		test(k, d, end)
		if !ended {
			if err := end(nil); err != nil {
				t.Error(err)
			}
		}
	})
}

// pass lets fake time go by and everything that is due happen.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// pass lets time go by after what the test has read of the desk.
func (d *desk) pass(t time.Duration) { d.set(func() {}); pass(t) }

func add(t *testing.T, d *Dispatcher, c Ticket, rows []store.Item) {
	t.Helper()
	d.Append(rows, c)
}
