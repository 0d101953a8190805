package replay_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"github.com/sluicebox/sluicebox/capture"
	capturepg "github.com/sluicebox/sluicebox/capture/postgres"
	"github.com/sluicebox/sluicebox/checkpoint"
	"github.com/sluicebox/sluicebox/checkpoint/replay"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
	"github.com/sluicebox/sluicebox/store/storetest"
	"github.com/sluicebox/sluicebox/store/storetest/ddl"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

func TestMain(m *testing.M) {
	if err := servers.Crowd(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// testTimeout bounds every wait of a test.
const testTimeout = 60 * time.Second

// source is the relay's source, which also reads the log again.
type source interface {
	capture.Resumer
	capture.HistoryReader
	Close()
}

// testDB is a database on a server.
type testDB struct {
	exec      func(t *testing.T, statements ...string)
	insert    func(t *testing.T, group string, ids ...string)
	remove    func(t *testing.T, id string)
	store     func(t *testing.T) storetest.Store
	source    func() (source, error)
	retainer  func() (replay.SlotRetainer, error)
	retention func() (replay.RetentionChecker, error)
}

func eventsBox() store.Outbox {
	return store.Outbox{Name: "events", Table: "outbox_events", Kind: "EVENT", Layout: store.FlowCatalyst()}
}

// postgres returns a database of its own on a shared server of one of the versions.
func postgres(t *testing.T) testDB {
	return postgresAt(t, servers.Database(t, postgresVersion(t)))
}

func postgresVersion(t *testing.T) int {
	versions := servers.Spread(t, servers.Versions())
	if len(versions) == 0 {
		t.Skip("no PostgreSQL is asked for")
	}
	return versions[0]
}

func postgresAt(t *testing.T, url string) testDB {
	name, boxes := fmt.Sprintf("r%d", time.Now().UnixNano()), []store.Outbox{eventsBox()}
	servers.Exec(t, url, ddl.Postgres().FlowCatalyst("outbox_events"))
	open := func() (*capturepg.Source, error) {
		return capturepg.New(capturepg.Config{URL: url, StreamURL: url, Name: name, Outboxes: boxes, MayCreate: true, TakeOver: true,
			SlotTimeout: testTimeout}) // transactions of other tests
	}
	return testDB{
		exec: func(t *testing.T, statements ...string) { t.Helper(); servers.Exec(t, url, statements...) },
		store: func(t *testing.T) storetest.Store {
			st, err := pgstore.New(pgstore.Config{URL: url, Name: name, Outboxes: boxes})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(st.Close)
			return st
		},
		source:   func() (source, error) { return open() },
		retainer: func() (replay.SlotRetainer, error) { return open() },
	}
}

// insert returns a statement that inserts rows of a group. Their payload is their id.
func insert(group string, ids ...string) string {
	var rows []string
	for _, id := range ids {
		rows = append(rows, fmt.Sprintf("('%s', '%s', '\"%s\"')", id, group, id))
	}
	return "INSERT INTO outbox_events (id, message_group, payload) VALUES " + strings.Join(rows, ", ")
}

// arrival is a row that the receiver got.
type arrival struct{ id, group, job, payload string }

// receiver accepts rows, unless refuse rejects them.
type receiver struct {
	mu       sync.Mutex
	arrivals []arrival
	grown    chan struct{}
	refuse   func(id string) bool
	before   func(job string) // called before each response
}

func newReceiver() *receiver { return &receiver{grown: make(chan struct{})} }

func (r *receiver) Limits(string) sink.Limits {
	return sink.Limits{Mode: sink.Ordered, MaxItems: 100, MaxBytes: 1 << 20}
}

func (r *receiver) Deliver(_ context.Context, msgs []sink.Message) sink.Result {
	r.mu.Lock()
	before, refuse := r.before, r.refuse
	r.mu.Unlock()
	if before != nil {
		before(msgs[0].Replay)
	}

	r.mu.Lock()
	defer r.mu.Unlock()

	var res sink.Result
	res.Class = sink.Delivered
	for i := range msgs {
		m := &msgs[i]
		if refuse != nil && refuse(m.ID) {
			res.Items = make([]sink.Outcome, len(msgs))
			for k := range msgs {
				switch {
				case k < i:
					res.Items[k].Class = sink.Delivered
				case k == i:
					res.Items[k] = sink.Outcome{Class: sink.Rejected, Detail: "no"}
				default:
					res.Items[k].Class = sink.NotSent
				}
			}
			break
		}
		r.arrivals = append(r.arrivals, arrival{m.ID, m.Group.String(), m.Replay, string(m.Payload)})
	}

	close(r.grown)
	r.grown = make(chan struct{})
	return res
}

// await waits until a check of the arrivals returns "". The check returns a
// description of the missing rows.
func (r *receiver) await(t *testing.T, missing func(came []arrival) string) {
	t.Helper()
	limit := time.After(testTimeout)
	for {
		r.mu.Lock()
		what, grown := missing(r.arrivals), r.grown
		r.mu.Unlock()
		if what == "" {
			return
		}
		select {
		case <-grown:
		case <-limit:
			t.Fatalf("missing: %s", what)
		}
	}
}

// of returns the ids of a group in order of arrival, either those of a job or the
// live ones.
func (r *receiver) of(group string, replayed bool) (ids []string) {
	r.mu.Lock()
	defer r.mu.Unlock()

	for _, a := range r.arrivals {
		if a.group == group && (a.job != "") == replayed {
			ids = append(ids, a.id)
		}
	}
	return ids
}

// between returns the live rows of a group that arrived between two replayed ones.
func (r *receiver) between(group string) (ids []string) {
	r.mu.Lock()
	defer r.mu.Unlock()

	var since []string
	began := false
	for _, a := range r.arrivals {
		switch {
		case a.group != group:
		case a.job != "":
			ids, since, began = append(ids, since...), nil, true
		case began:
			since = append(since, a.id)
		}
	}
	return ids
}

// waitForLive waits until n live rows have arrived.
func (r *receiver) waitForLive(t *testing.T, n int) {
	t.Helper()
	r.await(t, func(came []arrival) string {
		got := 0
		for _, a := range came {
			if a.job == "" {
				got++
			}
		}
		if got < n {
			return fmt.Sprintf("%d live rows of %d", n-got, n)
		}
		return ""
	})
}

// logObserver is an observer of all events of a relay. It logs failures for a test, if
// there is one.
type logObserver struct{ t *testing.T }

func (q logObserver) log(what string, err error) {
	if q.t != nil {
		q.t.Logf("%s: %v", what, err)
	}
}

func (logObserver) Claimed(store.ClaimResult, int)                              {}
func (logObserver) Requested(dispatch.RequestInfo, *sink.Result, time.Duration) {}
func (logObserver) BreakersChanged([]dispatch.OpenBreaker)                      {}
func (logObserver) Stalled(*dispatch.LaneInfo)                                  {}
func (logObserver) Settled(*store.Item, *store.Outcome)                         {}
func (logObserver) Vanished([]*store.Item)                                      {}
func (logObserver) RowsSpilled(int)                                             {}
func (q logObserver) RowUnspillable(it *store.Item, err error)                  { q.log(it.ID, err) }
func (logObserver) UnspillableCleared()                                         {}
func (q logObserver) Refused(row store.Ref, what string, err error)             { q.log(what+" of "+row.ID, err) }
func (q logObserver) StoreFailed(op string, err error)                          { q.log(op, err) }
func (logObserver) Saved(store.Checkpoint)                                      {}
func (logObserver) SaveFailed(error)                                            {}
func (logObserver) Connected()                                                  {}
func (q logObserver) Disconnected(err error, _ time.Duration)                   { q.log("source", err) }
func (logObserver) SavepointChanged(*store.Savepoint)                           {}
func (logObserver) LogsRetained([]capture.RetainedSlot)                         {}
func (logObserver) Job(*store.Job)                                              {}
func (logObserver) Jobs([]store.Job)                                            {}
func (logObserver) Skipped(string, int)                                         {}
func (q logObserver) ControllerFailed(err error)                                { q.log("controller", err) }

// testRelay is a running relay.
type testRelay struct {
	t        *testing.T
	store    storetest.Store
	lanes    *dispatch.Dispatcher
	requests chan struct{}
	end      func()
}

// startRelay runs a relay until the test ends or end is called. The configure may
// change its Controller.
func startRelay(t *testing.T, h testDB, to *receiver, configure ...func(*replay.Controller)) *testRelay {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*testTimeout)
	st := h.store(t)
	src, err := h.source()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(st.Install(ctx), st.Check(ctx)); err != nil {
		t.Fatal(err)
	}

	box := eventsBox()
	begin, err := checkpoint.Start(ctx, src, st, []store.Outbox{box}, store.ReadLimit{Rows: 1000}, nil)
	if err != nil {
		t.Fatal(err)
	}

	cfg := dispatch.DefaultConfig()
	d := dispatch.New(cfg, dispatch.Options{Store: st, Sink: to, Observer: logObserver{t}, Epoch: begin.Epoch, DrainTimeout: 5 * time.Second, Replays: st})
	tracker := checkpoint.NewTracker(begin.Watermark)
	in := intake{tracker: tracker, lanes: d, last: store.NewSeq(begin.Epoch, begin.Spilled)}
	if begin.SnapshotReason != "" {
		in.take(&capture.Batch{Position: begin.From, Items: begin.Backlog})
	}

	l := &testRelay{t: t, store: st, lanes: d, requests: make(chan struct{}, 1)}
	controller := replay.New(replay.Options{
		Store: st, Epoch: begin.Epoch, Outboxes: []store.Outbox{box}, Routes: map[string]string{box.Name: "sink"},
		Sinks:        map[string]replay.Sink{"sink": {Lanes: d, Config: cfg}},
		Log:          &replay.Log{LiveSource: src, Origin: begin.Watermark.Origin, OpenHistory: func() (replay.HistoryReader, error) { return h.source() }, OpenRetention: h.retention},
		OpenRetainer: h.retainer, RequestsChanged: l.requests, Observer: logObserver{t},
	})

	for _, change := range configure {
		change(controller)
	}

	in.onMarker = controller.OnMarker
	saver := &checkpoint.Saver{
		Config: checkpoint.DefaultSaverConfig(), Tracker: tracker, Store: st, Source: src, Epoch: begin.Epoch, Observer: logObserver{t},
	}

	batches := make(chan capture.Batch)
	work, ctx := errgroup.WithContext(ctx)
	for _, run := range []func(context.Context) error{
		func(ctx context.Context) error { return capture.Follow(ctx, src, begin.From, batches, logObserver{t}) },
		func(ctx context.Context) error { return in.run(ctx, batches) },
		d.Run, saver.Run, controller.Run,
	} {
		work.Go(func() error {
			err := run(ctx)
			if ctx.Err() == nil {
				t.Errorf("a task of the relay ended: %v", err)
			}
			return err
		})
	}

	l.end = sync.OnceFunc(func() { cancel(); _ = work.Wait(); src.Close() })
	t.Cleanup(l.end)
	return l
}

// intake numbers rows and appends them to their lanes. The buffer has room for all rows of a
// test.
type intake struct {
	tracker  *checkpoint.Tracker
	lanes    *dispatch.Dispatcher
	last     store.Seq
	onMarker func(token string, at store.Position, seq store.Seq)
}

func (f *intake) run(ctx context.Context, batches <-chan capture.Batch) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case b := <-batches:
			f.take(&b)
		}
	}
}

func (f *intake) take(b *capture.Batch) {
	for i := range b.Items {
		f.last++
		b.Items[i].Seq = f.last
	}
	f.lanes.Append(b.Items, f.tracker.Begin(b.Position, f.last, len(b.Items)))
	for _, token := range b.Marks {
		f.onMarker(token, b.Position, f.last)
	}
}

func (l *testRelay) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	l.t.Cleanup(cancel)
	return ctx
}

// notify signals new requests.
func (l *testRelay) notify() {
	select {
	case l.requests <- struct{}{}:
	default:
	}
}

// createCheckpoint requests a checkpoint and waits for it.
func (l *testRelay) createCheckpoint(name string, keep bool) store.Savepoint {
	l.t.Helper()
	if err := l.store.RequestSavepoint(l.ctx(), name, keep); err != nil {
		l.t.Fatal(err)
	}

	l.notify()
	var got store.Savepoint
	eventually(l.t, func() string {
		list, err := l.store.Savepoints(l.ctx())
		if err != nil {
			l.t.Fatal(err)
		}
		i := slices.IndexFunc(list, func(n store.Savepoint) bool { return n.Name == name })
		if got = list[i]; got.State == store.SavepointRequested {
			return "checkpoint " + name
		}
		return ""
	})
	return got
}

// replay requests a job.
func (l *testRelay) replay(id string, spec replay.Spec) {
	l.t.Helper()
	text, err := spec.Text()
	if err != nil {
		l.t.Fatal(err)
	}
	if err := l.store.RequestReplay(l.ctx(), id, text); err != nil {
		l.t.Fatal(err)
	}
	l.notify()
}

func (l *testRelay) setDesired(id string, wish store.DesiredState) {
	l.t.Helper()
	if err := l.store.RequestJobState(l.ctx(), id, wish); err != nil {
		l.t.Fatal(err)
	}
	l.notify()
}

// job returns the current state of a job.
func (l *testRelay) job(id string) store.Job {
	l.t.Helper()
	list, err := l.store.Jobs(l.ctx())
	if err != nil {
		l.t.Fatal(err)
	}

	i := slices.IndexFunc(list, func(j store.Job) bool { return j.ID == id })
	if i < 0 {
		l.t.Fatalf("job %s not found", id)
	}
	return list[i]
}

// waitForState waits until a job has a state.
func (l *testRelay) waitForState(id string, state store.JobState) (j store.Job) {
	l.t.Helper()
	eventually(l.t, func() string {
		if j = l.job(id); j.State == state {
			return ""
		}
		if j.State.Ended() {
			l.t.Fatalf("the job has ended: %+v", j)
		}
		return fmt.Sprintf("job %s is to be %s: %+v", id, state, j)
	})
	return j
}

// eventually polls until missing returns "".
func eventually(t *testing.T, missing func() string) {
	t.Helper()
	limit, tick := time.After(testTimeout), time.NewTicker(20*time.Millisecond)
	defer tick.Stop()
	for {
		what := missing()
		if what == "" {
			return
		}
		select {
		case <-limit:
			t.Fatalf("missing: %s", what)
		case <-tick.C:
		}
	}
}
