package replay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/checkpoint/replay"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/sqlite"
	"github.com/sluicebox/sluicebox/store/storetest/ddl"
	"github.com/sluicebox/sluicebox/store/storetest/raced"
)

var errCrash = errors.New("the process has crashed")

// crashStore is a store whose process crashes at a call: before the call, or after
// it, so that only its result is lost.
type crashStore struct {
	*sqlite.Store
	die func()

	mu     sync.Mutex
	left   int // calls before the crash
	behind bool
	dead   bool
}

func (d *crashStore) call(do func() error) error {
	d.mu.Lock()
	d.left--
	last, dead := d.left == 0, d.dead
	d.dead = d.dead || last
	d.mu.Unlock()
	if dead || last && !d.behind {
		d.die()
		return errCrash
	}

	err := do()
	if last {
		d.die()
		return errCrash
	}
	return err
}

func (d *crashStore) Savepoints(ctx context.Context) (list []store.Savepoint, err error) {
	return list, d.call(func() error { list, err = d.Store.Savepoints(ctx); return err })
}

func (d *crashStore) Jobs(ctx context.Context) (list []store.Job, err error) {
	return list, d.call(func() error { list, err = d.Store.Jobs(ctx); return err })
}

func (d *crashStore) SaveJob(ctx context.Context, e store.Epoch, j store.Job) error {
	return d.call(func() error { return d.Store.SaveJob(ctx, e, j) })
}

func (d *crashStore) CopyRows(ctx context.Context, e store.Epoch, id string, rows []store.ReplayRow, at store.ReplayCursor) error {
	return d.call(func() error { return d.Store.CopyRows(ctx, e, id, rows, at) })
}

func (d *crashStore) ClearRows(ctx context.Context, e store.Epoch, id string, limit int) (n int, err error) {
	return n, d.call(func() error { n, err = d.Store.ClearRows(ctx, e, id, limit); return err })
}

func (d *crashStore) FinishRows(ctx context.Context, e store.Epoch, id string, done []store.FinishedRow) error {
	return d.call(func() error { return d.Store.FinishRows(ctx, e, id, done) })
}

func (d *crashStore) ReplayLanes(ctx context.Context, id string, after int64, limit int) (list []store.ReplayLane, err error) {
	return list, d.call(func() error { list, err = d.Store.ReplayLanes(ctx, id, after, limit); return err })
}

func (d *crashStore) ReplayRows(ctx context.Context, id string, from []store.ReplayRange, each int) (list [][]store.ReplayRow, err error) {
	return list, d.call(func() error { list, err = d.Store.ReplayRows(ctx, id, from, each); return err })
}

func (d *crashStore) ReadStatuses(ctx context.Context, rows []store.ClaimRow) (list []store.RowStatus, err error) {
	return list, d.call(func() error { list, err = d.Store.ReadStatuses(ctx, rows); return err })
}

func (d *crashStore) View(ctx context.Context, snapshot string) (v store.View, err error) {
	return v, d.call(func() error { v, err = d.Store.View(ctx, snapshot); return err })
}

// fakeLog is a fake log that is complete. Its markers come back at once, at its end.
type fakeLog struct {
	batches []capture.Batch
	marked  func(token string, at store.Position, seq store.Seq)
	lost    error
}

func (s *fakeLog) end() store.Position { return store.Position(fmt.Sprintf("%03d", len(s.batches))) }

func (s *fakeLog) Mark(_ context.Context, token string) error {
	s.marked(token, s.end(), 1)
	return nil
}

func (s *fakeLog) Compare(a, b store.Position) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func (s *fakeLog) Retained(context.Context) (capture.RetainedLog, error) {
	return capture.RetainedLog{}, nil
}
func (s *fakeLog) CheckReachable(context.Context, capture.StartPoint) error { return s.lost }
func (s *fakeLog) Close()                                                   {}

// ReadRange splits transactions into parts of three rows.
func (s *fakeLog) ReadRange(ctx context.Context, at capture.StartPoint, until store.Position, out chan<- capture.Batch) error {
	if s.lost != nil {
		return s.lost
	}

	skip := at.Skip
	for _, b := range s.batches {
		if b.Position <= at.Position {
			continue
		}
		items := b.Items[skip:]
		skip = 0
		for len(items) > 0 {
			n := min(3, len(items))
			part := capture.Batch{Items: slices.Clone(items[:n])}
			if items = items[n:]; len(items) == 0 {
				part.Position = b.Position
			}
			select {
			case out <- part:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if b.Position >= until {
			break
		}
	}

	return nil
}

// crashFixture is a table of rows with their status, and the log of their transactions.
type crashFixture struct {
	url    string
	log    fakeLog
	chosen map[string][]string // ids to send, by group
}

// tempDir returns a directory in memory if there is one, because the test does not
// need a disk.
func tempDir(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "sluicebox-replay-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// newCrashFixture fills a table with five transactions, one of them longer than a page.
// Some of the rows are still open, FAILED, or deleted.
func newCrashFixture(t *testing.T) *crashFixture {
	path := filepath.Join(tempDir(t), "shop.db")
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=journal_mode(wal)")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	exec := func(text string, args ...any) {
		if _, err := db.ExecContext(t.Context(), text, args...); err != nil {
			t.Fatal(err)
		}
	}
	exec(ddl.SQLite().FlowCatalyst("outbox_events"))
	th := &crashFixture{url: "sqlite://" + path, chosen: map[string][]string{}}
	n := 0
	for i, size := range []int{2, 11, 1, 4, 5} {
		b := capture.Batch{Position: store.Position(fmt.Sprintf("%03d", i+1))}
		for range size {
			n++
			group, id := string(rune('a'+n%3)), fmt.Sprintf("%03d", n)
			status := map[int]string{5: "PENDING", 9: "FAILED", 14: "PROCESSING"}[n]
			switch {
			case status != "":
			case n == 7:
				th.chosen[group] = append(th.chosen[group], id) // deleted since
			default:
				status = "COMPLETED"
				th.chosen[group] = append(th.chosen[group], id)
			}
			if status != "" {
				exec("INSERT INTO outbox_events (id, message_group, payload, status, created_at) VALUES (?, ?, ?, ?, ?)", id, group, id, status,
					time.Unix(1e9+int64(n), 0).UTC().Format(time.DateTime))
			}
			b.Items = append(b.Items, store.Item{
				Ref: store.Ref{Outbox: "events", ID: id}, Kind: "EVENT", Group: store.GroupOf(group), Payload: []byte(id), PayloadSize: len(id), Committed: time.Unix(1e9+int64(n), 0),
			})
		}
		th.log.batches = append(th.log.batches, b)
	}
	return th
}

func (th *crashFixture) open(t *testing.T) *sqlite.Store {
	t.Helper()
	st, err := sqlite.New(sqlite.Config{URL: th.url, Name: "r", Outboxes: []store.Outbox{eventsBox()}})
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// runLeader runs a leader until it crashes at a call or its job has ended, and returns
// whether it crashed. The log is nil if the table is read.
func (th *crashFixture) runLeader(t *testing.T, to *receiver, calls int, behind bool, log *fakeLog) (died bool) {
	t.Helper()
	st := th.open(t)
	defer st.Close()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	epoch, err := st.AcquireLeadership(ctx)
	if err != nil {
		t.Fatal(err)
	}

	ended := make(chan struct{})
	die := sync.OnceFunc(func() { died = true; cancel() })
	frail := &crashStore{Store: st, die: die, left: calls, behind: behind}
	cfg := dispatch.DefaultConfig()
	cfg.APIBatchSize, cfg.MaxConcurrentGroups = 2, 4
	d := dispatch.New(cfg, dispatch.Options{Store: st, Sink: to, Observer: logObserver{}, Epoch: epoch, Replays: frail})
	controller := replay.New(replay.Options{
		Store: frail, Epoch: epoch, Outboxes: []store.Outbox{eventsBox()}, Routes: map[string]string{"events": "sink"},
		Sinks: map[string]replay.Sink{"sink": {Lanes: d, Config: cfg}}, Observer: &endObserver{ended: ended},
	})

	controller.SetSegmentRows(4, 7)
	if log != nil {
		mine := *log
		mine.marked = controller.OnMarker
		controller.Log = &replay.Log{LiveSource: &mine, Origin: "log", OpenHistory: func() (replay.HistoryReader, error) { return &mine, nil }}
	}

	work, ctx := errgroup.WithContext(ctx)
	work.Go(func() error { return controller.Run(ctx) })
	work.Go(func() error { return d.Run(ctx) })
	select {
	case <-ended:
		cancel()
	case <-ctx.Done():
	}

	_ = work.Wait()
	return died
}

// endObserver closes a channel when a job has ended.
type endObserver struct {
	logObserver
	once  sync.Once
	ended chan struct{}
}

func (u *endObserver) Job(j *store.Job) {
	if j.State.Ended() {
		u.once.Do(func() { close(u.ended) })
	}
}

// request writes the request of a job.
func (th *crashFixture) request(t *testing.T, id string, spec replay.Spec) {
	t.Helper()
	st := th.open(t)
	defer st.Close()
	text, err := spec.Text()
	if err := errors.Join(err, st.Install(t.Context()), st.RequestReplay(t.Context(), id, text)); err != nil {
		t.Fatal(err)
	}
}

// job returns the latest job.
func (th *crashFixture) job(t *testing.T) store.Job {
	t.Helper()
	st := th.open(t)
	defer st.Close()
	jobs, err := st.Jobs(t.Context())
	if err != nil || len(jobs) == 0 {
		t.Fatalf("%d jobs, %v", len(jobs), err)
	}
	return jobs[0]
}

// inMemory is the maximum number of rows in memory of runLeader's Controller.
const inMemory = 4

// check compares the rows that a job sent with the selected rows: all of them, in
// order, and no more duplicates than rows in memory.
func (th *crashFixture) check(t *testing.T, to *receiver, j store.Job, source replay.Source) {
	t.Helper()
	twice, all := 0, 0
	for group, want := range th.chosen {
		all += len(want)
		var first []string
		for _, id := range to.of(group, true) {
			if slices.Contains(first, id) {
				twice++
			} else {
				first = append(first, id)
			}
		}
		if !slices.Equal(first, want) {
			t.Errorf("group %s: got %v, want %v", group, first, want)
		}
	}

	if twice > inMemory {
		t.Errorf("got %d rows twice", twice)
	}
	if j.State != store.JobDone || j.Sent != int64(all) || j.Total != j.Sent+j.Skipped || j.Refused != 0 || j.Source != string(source) {
		t.Errorf("got job %+v", j)
	}
}

// TestReplaySurvivesCrashAtEveryCall: after a crash at any call another process
// finishes the job. It misses no row and sends few twice.
func TestReplaySurvivesCrashAtEveryCall(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		source replay.Source
		behind bool
	}{
		"log":                 {replay.SourceLog, false},
		"log, answers lost":   {replay.SourceLog, true},
		"table, answers lost": {replay.SourceTable, true},
	}

	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			th := newCrashFixture(t)
			log := &th.log
			if tt.source == replay.SourceTable {
				log = nil
				th.chosen["b"] = slices.DeleteFunc(th.chosen["b"], func(id string) bool { return id == "007" })
			}
			step := 1 // calls from one crash to the next
			if raced.Enabled {
				step = 13 // because SQLite is then many times slower
			}
			calls := 1
			for died := true; died; calls += step {
				to := newReceiver()
				th.request(t, fmt.Sprint("job ", calls), replay.Spec{Since: time.Unix(1e9, 0)})
				if died = th.runLeader(t, to, calls, tt.behind, log); died && !th.job(t).State.Ended() {
					th.runLeader(t, to, 0, false, log)
				}
				th.check(t, to, th.job(t), tt.source)
				if t.Failed() {
					t.Fatalf("dead at call %d", calls)
				}
			}
			t.Logf("%d calls", calls-step)
		})
	}
}

// TestPayloadTooLargeForTheRelay: a payload that the relay's tables do not hold is read from
// the outbox's table. If the row was deleted there, it is refused, and not sent empty.
func TestPayloadTooLargeForTheRelay(t *testing.T) {
	t.Parallel()
	th, to := newCrashFixture(t), newReceiver()
	for _, b := range th.log.batches {
		for i := range b.Items {
			b.Items[i].Payload = nil
		}
	}
	th.request(t, "job", replay.Spec{Since: time.Unix(1e9, 0)})
	th.runLeader(t, to, 0, false, &th.log)

	sent := 0
	for _, a := range to.arrivals {
		if sent++; a.payload != a.id {
			t.Errorf("row %s has payload %q", a.id, a.payload)
		}
	}
	if j := th.job(t); j.State != store.JobDone || j.Sent != int64(sent) || sent == 0 || j.Refused != 1 {
		t.Errorf("%d rows arrived, got job %+v", sent, j)
	}
	st := th.open(t)
	defer st.Close()
	if list, err := st.JobErrors(t.Context(), "job", 10); err != nil || len(list) != 1 || list[0].ID != "007" || !strings.Contains(list[0].Reason, "too large") {
		t.Errorf("got errors %+v, %v", list, err)
	}
}
