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
	"github.com/sluicebox/sluicebox/store/backoff"
)

// fakeBackend is a store, a sink and an observer. Its statements and requests take as much
// fake time as the test sets.
type fakeBackend struct {
	mu    sync.Mutex
	began time.Time

	spilledTable

	// Behavior.
	latency    time.Duration // per statement
	answer     func(ids []string) sink.Result
	hang       bool            // requests end with their context
	hangClaims bool            // claims do
	err        error           // returned by statements while it is set
	lostErr    error           // like err, but the statement was carried out
	refusedIDs map[string]bool // ids that the table refuses
	// refusesOutcome selects the outcomes that the table refuses.
	refusesOutcome func(*store.Outcome) bool
	grant          func(r *store.ClaimRow) store.ClaimAnswer
	untried        func(id string) bool // tells of a row that is read instead of claimed; may be nil
	untriedErr     error
	settleLatency  time.Duration // of a write of outcomes, beside latency
	settleResult   store.SettleResult
	lockedTables   map[string]bool // outboxes whose table is locked
	lockedRows     map[string]bool // ids of rows that are locked when an outcome is written

	// Recorded calls.
	statementTimes  []time.Duration // of each statement, since the start of the test
	claims          [][]string      // ids of each claim statement
	checks          [][]string      // ids of each statement that reads rows instead of claiming them
	claimEnds       []time.Duration // of each of claims, since the start of the test
	rows            []store.ClaimRow
	claimTimes      []time.Time     // written by the claims
	settles         [][]string      // "id status" of each outcome statement
	settleTimes     []time.Duration // of each of settles, since the start of the test
	outcomes        []store.Outcome
	requests        [][]string
	messages        []sink.Message
	requestTimes    []time.Duration // of each request, since the start of the test
	requestInfos    []RequestInfo   // as observed
	breakerReports  []string
	stalled         []string // heads of lanes
	operated        operatorState
	observed        []string // "id status"
	vanished        []string // ids
	failures        []string // of the store, as observed
	rowsSpilled     int      // as observed
	rowsUnspillable []string // as observed
	replayLog       replayRecords
	tableWaits      []time.Duration // of each AwaitTable call, since the start of the test
}

func newFakeBackend() *fakeBackend {
	return &fakeBackend{
		began: time.Now(), latency: time.Millisecond, answer: always(sink.Delivered),
		grant:        func(*store.ClaimRow) store.ClaimAnswer { return store.ClaimAnswer{Result: store.Claimed} },
		settleResult: store.Written,
	}
}

// always answers every request with a class.
func always(c sink.Class) func([]string) sink.Result {
	return func([]string) sink.Result {
		return sink.Result{Outcome: sink.Outcome{Class: c, Detail: c.String()}}
	}
}

// poisoned answers like a receiver that rejects every request with the row in it.
func poisoned(id string) func([]string) sink.Result {
	return func(ids []string) sink.Result {
		if slices.Contains(ids, id) {
			return always(sink.Rejected)(ids)
		}
		return always(sink.Delivered)(ids)
	}
}

// statement waits for the duration of a statement about rows. The caller holds the lock
// when it returns.
func (d *fakeBackend) statement(ctx context.Context, ids []string) error {
	err := backoff.Sleep(ctx, d.latency)
	d.mu.Lock()
	d.statementTimes = append(d.statementTimes, time.Since(d.began))
	for _, id := range ids {
		if d.refusedIDs[id] && err == nil {
			err = &store.RefusedError{Err: errors.New("a trigger objects to " + id)}
		}
	}
	if err == nil {
		err = d.err
	}
	return err
}

func (d *fakeBackend) Claim(ctx context.Context, _ store.Epoch, at time.Time, rows []store.ClaimRow) ([]store.ClaimAnswer, error) {
	ids, hangs := make([]string, len(rows)), false
	if d.set(func() { hangs = d.hangClaims }); hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	for i := range rows {
		locked := false
		if d.set(func() { locked = d.lockedTables[rows[i].Outbox] }); locked {
			<-time.After(500 * time.Millisecond) // as long as a real store waits
			break
		}
	}
	for i := range rows {
		ids[i] = rows[i].ID
	}
	err := d.statement(ctx, ids)
	defer d.mu.Unlock()
	d.rows, d.claimTimes = append(d.rows, rows...), append(d.claimTimes, at)
	if err != nil {
		return nil, err
	}
	d.claims, d.claimEnds = append(d.claims, ids), append(d.claimEnds, time.Since(d.began))
	answers := make([]store.ClaimAnswer, len(rows))
	for i := range rows {
		if answers[i] = d.grant(&rows[i]); d.lockedTables[rows[i].Outbox] {
			answers[i] = store.ClaimAnswer{Result: store.TableLocked}
		}
	}
	return answers, d.lostErr
}

// ReadUntried reports what untried says; nothing is known without it.
func (d *fakeBackend) ReadUntried(ctx context.Context, rows []store.ClaimRow) ([]bool, error) {
	ids, untried := make([]string, len(rows)), make([]bool, len(rows))
	for i := range rows {
		ids[i] = rows[i].ID
	}
	err := d.statement(ctx, nil)
	defer d.mu.Unlock()
	if err = errors.Join(err, d.untriedErr); err != nil {
		return nil, err
	}
	d.checks = append(d.checks, ids)
	for i, id := range ids {
		untried[i] = d.untried != nil && d.untried(id)
	}
	return untried, nil
}

func (d *fakeBackend) Settle(ctx context.Context, _ store.Epoch, outcomes []store.Outcome) ([]store.SettleResult, error) {
	ids, lines := make([]string, len(outcomes)), make([]string, len(outcomes))
	results := make([]store.SettleResult, len(outcomes))
	for i, o := range outcomes {
		ids[i], lines[i] = o.ID, o.ID+" "+o.Status.String()
	}
	var wait time.Duration
	d.set(func() { wait = d.settleLatency })
	err := errors.Join(backoff.Sleep(context.WithoutCancel(ctx), wait), d.statement(ctx, ids))
	defer d.mu.Unlock()
	for i := range outcomes {
		if err == nil && d.refusesOutcome != nil && d.refusesOutcome(&outcomes[i]) {
			err = &store.RefusedError{Err: errors.New("a trigger objects to " + outcomes[i].ID)}
		}
	}
	if err != nil {
		return nil, err
	}
	var spilled []store.SpilledRef
	for i := range results {
		o := &outcomes[i]
		switch results[i] = d.settleResult; {
		case d.lockedTables[o.Outbox]:
			results[i] = store.TableWasLocked
		case d.lockedRows[o.ID]:
			results[i] = store.WasLocked
		}
		if !results[i].NeedsRetry() && o.SpilledSeq != 0 && o.Status.Settled() {
			spilled = append(spilled, store.SpilledRef{Ref: o.Ref, Seq: o.SpilledSeq})
		}
	}
	d.delete(spilled...)
	d.settles, d.outcomes = append(d.settles, lines), append(d.outcomes, outcomes...)
	d.settleTimes = append(d.settleTimes, time.Since(d.began))
	return results, d.lostErr
}

// claimedAt is when the first claim of a row was answered, since the start of the test.
func (d *fakeBackend) claimedAt(id string) time.Duration {
	for i, ids := range d.claims {
		if slices.Contains(ids, id) {
			return d.claimEnds[i]
		}
	}
	return time.Hour
}

// AwaitTable waits as long as a real store.
func (d *fakeBackend) AwaitTable(ctx context.Context, outbox string) error {
	d.set(func() { d.tableWaits = append(d.tableWaits, time.Since(d.began)) })
	for range 100 {
		locked := false
		if d.set(func() { locked = d.lockedTables[outbox] }); !locked {
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

// Limits gives each kind but EVENT an endpoint of its own.
func (d *fakeBackend) Limits(kind string) sink.Limits {
	limits := sink.Limits{Mode: sink.Atomic, MaxItems: 100, MaxBytes: 1 << 20}
	if kind != "EVENT" {
		limits.Endpoint = kind
	}
	return limits
}

func (d *fakeBackend) Deliver(ctx context.Context, msgs []sink.Message) sink.Result {
	var ids []string
	for _, m := range msgs {
		ids = append(ids, m.ID)
	}
	d.mu.Lock()
	d.requests = append(d.requests, ids)
	d.messages = append(d.messages, msgs...)
	d.requestTimes = append(d.requestTimes, time.Since(d.began))
	answer, hangs := d.answer, d.hang
	d.mu.Unlock()
	if hangs {
		<-ctx.Done()
	}
	return answer(ids)
}

func (d *fakeBackend) Claimed(store.ClaimResult, int) {}

func (d *fakeBackend) Settled(it *store.Item, o *store.Outcome) {
	d.set(func() { d.observed = append(d.observed, it.ID+" "+o.Status.String()) })
}

func (d *fakeBackend) Vanished(rows []*store.Item) {
	d.set(func() {
		for _, it := range rows {
			d.vanished = append(d.vanished, it.ID)
		}
	})
}

func (d *fakeBackend) RowsSpilled(n int) { d.set(func() { d.rowsSpilled += n }) }

func (d *fakeBackend) RowUnspillable(it *store.Item, _ error) {
	d.set(func() { d.rowsUnspillable = append(d.rowsUnspillable, it.ID) })
}
func (d *fakeBackend) UnspillableCleared() {
	d.set(func() { d.rowsUnspillable = append(d.rowsUnspillable, "none") })
}
func (d *fakeBackend) StoreFailed(op string, _ error) {
	d.set(func() { d.failures = append(d.failures, op) })
}

func (d *fakeBackend) Refused(row store.Ref, what string, _ error) {
	d.set(func() { d.failures = append(d.failures, what+" of row "+row.ID+" of "+row.Outbox) })
}

func (d *fakeBackend) set(change func()) { d.mu.Lock(); defer d.mu.Unlock(); change() }

func (d *fakeBackend) expect(t *testing.T, what string, got, want any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// expectBackoffs compares the waits between times with the backoff, which may be shorter by
// up to a fifth. Statements may add a little.
func expectBackoffs(t *testing.T, at []time.Duration, want ...time.Duration) {
	t.Helper()
	if len(at) < len(want)+1 {
		t.Fatalf("tries: got %d, want at least %d", len(at), len(want)+1)
	}
	for i, w := range want {
		if got := at[i+1] - at[i]; got < w*4/5 || got > w+10*time.Millisecond {
			t.Errorf("wait %d: got %s, want %s or up to a fifth less", i+1, got, w)
		}
	}
}

// counter is a ticket that counts.
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

// numberedRows returns rows "0" to "n-1" of one group.
func numberedRows(group string, n int) []store.Item {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprint(i)
	}
	return items(group, ids...)
}

// drive runs a dispatcher in fake time. The function passed to the test ends the dispatcher
// with a cause and returns its error.
func drive(t *testing.T, cfg Config, test func(k *fakeBackend, d *Dispatcher, end func(error) error)) {
	driveLeased(t, cfg, nil, test)
}

// driveLeased is drive with a lease.
func driveLeased(t *testing.T, cfg Config, lease Lease, test func(k *fakeBackend, d *Dispatcher, end func(error) error)) {
	driveSink(t, cfg, lease, func(k *fakeBackend) sink.Sink { return k }, test)
}

// driveSink is drive with a sink built from the backend.
func driveSink(t *testing.T, cfg Config, lease Lease, made func(*fakeBackend) sink.Sink, test func(k *fakeBackend, d *Dispatcher, end func(error) error)) {
	driveWith(t, cfg, func(k *fakeBackend, opt *Options) { opt.Sink, opt.Lease = made(k), lease }, test)
}

// driveWith is drive with options.
func driveWith(t *testing.T, cfg Config, set func(*fakeBackend, *Options), test func(k *fakeBackend, d *Dispatcher, end func(error) error)) {
	synctest.Test(t, func(t *testing.T) {
		k := newFakeBackend()
		opt := k.options(1)
		set(k, &opt)
		d := New(cfg, opt)
		ctx, cancel := context.WithCancelCause(context.Background())
		done := make(chan error, 1)
		go func() { done <- d.Run(ctx) }()
		ended := false
		end := func(cause error) error {
			k.set(func() { ended = true }) // after the test has read, as in advance
			cancel(cause)
			return <-done
		}
		test(k, d, end)
		if !ended {
			if err := end(nil); err != nil {
				t.Error(err)
			}
		}
	})
}

// options are those of a dispatcher of the backend.
func (d *fakeBackend) options(epoch store.Epoch) Options {
	return Options{Store: d, Sink: d, Observer: d, Epoch: epoch, DrainTimeout: time.Second, Replays: d, Replayed: d.replayed}
}

// enableSpill lets rows with a refused outcome be spilled.
func enableSpill(d *Dispatcher) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.core.enableSpill()
}

// advance lets fake time pass and waits until everything due has happened.
func advance(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// advance does the same after the test has read from the backend.
func (d *fakeBackend) advance(t time.Duration) { d.set(func() {}); advance(t) }

func add(t *testing.T, d *Dispatcher, c Ticket, rows []store.Item) {
	t.Helper()
	d.Append(rows, c)
}
