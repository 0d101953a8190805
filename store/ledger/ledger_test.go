package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
	"github.com/sluicebox/sluicebox/store/ledger/memory"
)

// rig is a ledger in memory whose backend leads.
type rig struct {
	*ledger.Ledger
	backend *twice
	epoch   store.Epoch
	failed  map[string]bool // ids of FAILED rows
}

// twice runs each transaction twice, as after a conflict. It is undone the first time.
type twice struct {
	*memory.Backend
	updates int
	before  func(nth int) error // runs before an update
}

var errConflict = errors.New("conflict")

// Update implements ledger.Backend.
func (b *twice) Update(ctx context.Context, epoch store.Epoch, d ledger.Durability, do func(context.Context, ledger.Tx) error) error {
	b.updates++
	if b.before != nil {
		if err := b.before(b.updates); err != nil {
			return err
		}
	}
	err := b.Backend.Update(ctx, epoch, d, func(ctx context.Context, tx ledger.Tx) error { return errors.Join(errConflict, do(ctx, tx)) })
	if !errors.Is(err, errConflict) {
		return err
	}
	return b.Backend.Update(ctx, epoch, d, do)
}

// Request implements ledger.Backend.
func (b *twice) Request(ctx context.Context, do func(context.Context, ledger.Tx, int64) error) error {
	_ = b.Backend.Request(ctx, func(ctx context.Context, tx ledger.Tx, nth int64) error {
		return errors.Join(errConflict, do(ctx, tx, nth))
	})
	return b.Backend.Request(ctx, do)
}

// View implements ledger.Backend.
func (b *twice) View(ctx context.Context, do func(context.Context, ledger.Reader) error) error {
	if err := b.Backend.View(ctx, do); err != nil {
		return err
	}
	return b.Backend.View(ctx, do)
}

func newRig(t *testing.T) *rig {
	r := &rig{backend: &twice{Backend: memory.New().Backend("rig")}, failed: map[string]bool{}}
	var err error
	if r.epoch, err = r.backend.AcquireLeadership(t.Context()); err != nil {
		t.Fatal(err)
	}
	plain := store.Outbox{Name: "plain", Table: "plain", Layout: store.FlowCatalyst()}
	plain.Layout.State = store.StateNone
	r.Ledger = ledger.New(ledger.Config{
		Outboxes: []store.Outbox{{Name: "a", Table: "a", Layout: store.FlowCatalyst()}, plain},
		Records:  r.backend, Spill: r.backend, Replay: r.backend, AreFailed: r.areFailed, BatchRows: 10, BatchBytes: 1000,
	})
	return r
}

func (r *rig) areFailed(_ context.Context, rows []store.Ref) ([]bool, error) {
	failed := make([]bool, len(rows))
	for i := range rows {
		failed[i] = r.failed[rows[i].ID]
	}
	return failed, nil
}

// update runs do once in a transaction of the leader.
func (r *rig) update(t *testing.T, do func(context.Context, ledger.Tx) error) {
	t.Helper()
	if err := r.backend.Backend.Update(t.Context(), r.epoch, ledger.Full, do); err != nil {
		t.Fatal(err)
	}
}

// count returns the number of records of a kind.
func (r *rig) count(t *testing.T, kind string) (n int) {
	t.Helper()
	err := r.backend.View(t.Context(), func(ctx context.Context, v ledger.Reader) error {
		n = 0
		return v.List(ctx, kind, "", 0, func(ledger.Record) error { n++; return nil })
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func blocked(id, group string) store.Hold {
	return store.Hold{Lane: store.LaneKey{Outbox: "a", Kind: "EVENT", Group: store.GroupOf(group)}, Kind: store.Blocked, ID: id}
}

// TestBlocksLeaveNothing: a lane has one blocking row and a row blocks one lane, whatever the
// order of blocks. What is unblocked leaves no record.
func TestBlocksLeaveNothing(t *testing.T) {
	r := newRig(t)
	block := func(id, group string) {
		t.Helper()
		h := blocked(id, group)
		o := store.Outcome{Ref: store.Ref{Outbox: "a", ID: id}, Status: store.Failed, Block: &h}
		r.update(t, func(ctx context.Context, tx ledger.Tx) error {
			return r.AfterSettle(ctx, tx, []store.Outcome{o}, []store.SettleResult{store.Written}, r.areFailed)
		})
	}
	unblock := func(id string) {
		t.Helper()
		r.update(t, func(ctx context.Context, tx ledger.Tx) error {
			return r.AfterResolve(ctx, tx, store.Ref{Outbox: "a", ID: id})
		})
	}
	want := func(what string, want ...string) {
		t.Helper()
		holds, err := r.LoadHolds(t.Context())
		var got []string
		for _, h := range holds {
			got = append(got, h.ID+" "+h.Lane.Group.Name)
		}
		slices.Sort(got)
		if err != nil || !slices.Equal(got, want) || r.count(t, "hold") != len(want) || r.count(t, "block") != len(want) {
			t.Errorf("%s: %q of %d holds and %d blocks, %v; want %q", what, got, r.count(t, "hold"), r.count(t, "block"), err, want)
		}
	}

	r.failed = map[string]bool{"1": true, "2": true, "3": true}
	block("1", "g")
	block("1", "g")
	want("repeated", "1 g")
	block("2", "g")
	want("another row of the lane", "2 g")
	unblock("1")
	want("the row that blocked before", "2 g")
	block("2", "h")
	want("the row in another lane", "2 h")
	block("1", "g")
	block("3", "i")
	block("2", "g")
	want("both changed", "2 g", "3 i")
	unblock("2")
	unblock("2")
	unblock("never")
	want("unblocked", "3 i")
	if err := r.Hold(t.Context(), r.epoch, blocked("1", "i")); err != nil {
		t.Fatal(err)
	}
	want("held by a call", "1 i")
	for range 2 {
		if err := r.Release(t.Context(), r.epoch, blocked("1", "i").Lane, store.Blocked); err != nil {
			t.Fatal(err)
		}
	}
	want("released")
}

// TestManyErrorsAreDeleted: the errors of an old job need several transactions.
func TestManyErrorsAreDeleted(t *testing.T) {
	r, key := newRig(t), blocked("", "g").Lane
	const rows = 2300
	end := func(id string) {
		t.Helper()
		if err := r.SaveJob(t.Context(), r.epoch, store.Job{ID: id, State: store.JobDone}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range store.MaxEndedJobs + 1 {
		id := fmt.Sprint("job ", i)
		if err := r.RequestReplay(t.Context(), id, "{}"); err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			end(id)
			continue
		}
		var copied []store.ReplayRow
		var done []store.FinishedRow
		for n := range int64(rows) {
			copied = append(copied, store.ReplayRow{N: n + 1, Item: store.Item{Ref: store.Ref{Outbox: "a", ID: fmt.Sprint(n)}, Kind: key.Kind, Group: key.Group}})
			done = append(done, store.FinishedRow{N: n + 1, Lane: key, Result: store.ReplayRefused})
		}
		err := errors.Join(r.CopyRows(t.Context(), r.epoch, id, copied, store.ReplayCursor{}), r.FinishRows(t.Context(), r.epoch, id, done))
		if errs, listErr := r.JobErrors(t.Context(), id, rows+1); len(errs) != rows || err != nil || listErr != nil {
			t.Fatalf("%d errors, %v, %v", len(errs), err, listErr)
		}
		end(id)
		if n := r.count(t, "job-error"); n != rows {
			t.Errorf("%d errors are left of a job that is kept", n)
		}
	}
	if errs, jobs, specs := r.count(t, "job-error"), r.count(t, "job"), r.count(t, "job-spec"); errs != 0 || jobs != store.MaxEndedJobs || specs != jobs {
		t.Errorf("%d errors, %d jobs and %d specs are left", errs, jobs, specs)
	}
}

// TestJobChangesAreExact: concurrent calls of the leader and requests lose no change.
func TestJobChangesAreExact(t *testing.T) {
	r, key := newRig(t), blocked("", "g").Lane
	if err := r.RequestReplay(t.Context(), "job", strings.Repeat("{}", 1000)); err != nil {
		t.Fatal(err)
	}
	const workers, each = 4, 50
	var work sync.WaitGroup
	call := func(err error) {
		if err != nil {
			t.Error(err)
		}
	}
	for w := range int64(workers) {
		work.Go(func() {
			for i := range int64(each) {
				n := w*each + i + 1
				row := store.ReplayRow{N: n, Item: store.Item{Ref: store.Ref{Outbox: "a", ID: "x"}, Kind: key.Kind, Group: key.Group}}
				call(r.CopyRows(t.Context(), r.epoch, "job", []store.ReplayRow{row}, store.ReplayCursor{Skip: 1}))
				call(r.FinishRows(t.Context(), r.epoch, "job", []store.FinishedRow{{N: n, Lane: key, Result: store.ReplayResult(n % 3)}}))
				call(r.SaveJob(t.Context(), r.epoch, store.Job{ID: "job", State: store.JobPlaying}))
				call(r.RequestJobState(t.Context(), "job", store.DesiredPause))
			}
		})
	}
	work.Wait()
	jobs, err := r.Jobs(t.Context())
	if err != nil || len(jobs) != 1 {
		t.Fatalf("%d jobs, %v", len(jobs), err)
	}
	j := jobs[0]
	if j.Total != workers*each || j.Sent != 66 || j.Skipped != 67 || j.Refused != 67 || j.State != store.JobPlaying || j.Desired != store.DesiredPause || j.Cursor.Skip != 1 {
		t.Errorf("the replay is %.300s", fmt.Sprintf("%+v", j))
	}
}

// TestSpillInBatches: calls with more rows than a transaction takes handle all of them.
func TestSpillInBatches(t *testing.T) {
	r, key := newRig(t), blocked("", "g").Lane
	var items []store.Item
	for n := range store.Seq(35) {
		items = append(items, store.Item{Ref: store.Ref{Outbox: "a", ID: fmt.Sprint(n)}, Kind: key.Kind, Group: key.Group, Seq: n + 1, Payload: []byte("x")})
	}
	if err := r.Spill(t.Context(), r.epoch, items); err != nil {
		t.Fatal(err)
	}
	lanes, err := r.ReadSpilled(t.Context(), []store.SpilledRange{{Outbox: "a", Lane: key.Hash()}}, 100)
	if err != nil || len(lanes[0]) != 35 || lanes[0][34].Seq != 35 || lanes[0][0].Payload != nil || items[0].Payload == nil {
		t.Errorf("%d lanes, %v", len(lanes), err)
	}
	for _, c := range []struct {
		after store.Seq
		want  int
	}{{34, 1}, {34, 0}, {14, 20}, {0, 14}} {
		if n, err := r.DeleteSpilledAfter(t.Context(), r.epoch, store.Checkpoint{Seq: c.after}); n != c.want || err != nil {
			t.Errorf("after %d: %d rows, %v; want %d", c.after, n, err, c.want)
		}
	}
}

// TestStrayPointer: a row whose record names the hold of another row does not release it.
func TestStrayPointer(t *testing.T) {
	r := newRig(t)
	r.failed["1"], r.failed["2"] = true, true
	for i, id := range []string{"1", "2"} {
		if err := r.Hold(t.Context(), r.epoch, blocked(id, fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	r.update(t, func(ctx context.Context, tx ledger.Tx) error { // row 2 names the hold of row 1
		var pointers []ledger.Record
		err := tx.List(ctx, "block", "", 0, func(rec ledger.Record) error { pointers = append(pointers, rec); return nil })
		if err == nil && len(pointers) == 2 {
			err = tx.Put(ctx, "block", ledger.Record{Key: pointers[0].Key, Body: pointers[1].Body})
		}
		return err
	})
	r.update(t, func(ctx context.Context, tx ledger.Tx) error {
		return r.AfterResolve(ctx, tx, store.Ref{Outbox: "a", ID: "1"}, store.Ref{Outbox: "a", ID: "2"})
	})
	if blocks, holds := r.count(t, "block"), r.count(t, "hold"); blocks != 0 || holds != 1 {
		t.Errorf("%d records of rows and %d holds are left, want none and the hold that no record names", blocks, holds)
	}
}

// TestAfterSettle settles many rows in a call: later outcomes win, and outcomes that were
// not written change nothing.
func TestAfterSettle(t *testing.T) {
	r := newRig(t)
	var outcomes []store.Outcome
	var results []store.SettleResult
	add := func(id, group string, status store.Status, result store.SettleResult) {
		o := store.Outcome{Ref: store.Ref{Outbox: "a", ID: id}, Status: status, SpilledSeq: store.Seq(len(outcomes) + 1)}
		if group != "" {
			h := blocked("", group)
			o.Block = &h
		}
		outcomes, results = append(outcomes, o), append(results, result)
	}
	add("done", "", store.Completed, store.Written)
	add("gone", "", store.Completed, store.WasGone)
	add("retry", "", store.Pending, store.Written)
	add("locked", "g", store.Failed, store.WasLocked)
	add("first", "g", store.Failed, store.Written)
	add("second", "g", store.Failed, store.WasSettled)
	add("completed", "g", store.Failed, store.WasSettled)
	add("moves", "h", store.Failed, store.Written)
	add("moves", "i", store.Failed, store.WasSettled)
	r.failed = map[string]bool{"locked": true, "first": true, "second": true, "moves": true}
	var rows []store.Item
	for i, o := range outcomes {
		rows = append(rows, store.Item{Ref: o.Ref, Kind: "EVENT", Seq: store.Seq(i + 1)})
	}
	if err := r.Spill(t.Context(), r.epoch, rows); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		var left []string
		r.update(t, func(ctx context.Context, tx ledger.Tx) error {
			err := r.AfterSettle(ctx, tx, outcomes, results, r.areFailed)
			rows, scanErr := tx.Scan(ctx, ledger.Scan{Limit: 99})
			for _, it := range rows {
				left = append(left, it.ID)
			}
			return errors.Join(err, scanErr)
		})
		if !slices.Equal(left, []string{"retry", "locked"}) {
			t.Errorf("spilled rows %q are left", left)
		}
		holds, err := r.LoadHolds(t.Context())
		var got []string
		for _, h := range holds {
			got = append(got, h.ID+" "+h.Lane.Group.Name)
		}
		if slices.Sort(got); !slices.Equal(got, []string{"moves i", "second g"}) || err != nil || r.count(t, "block") != 2 || r.count(t, "hold") != 2 {
			t.Errorf("blocks %q, %v", got, err)
		}
	}
}

// TestManyHolds: blocks are checked in parts, and pauses are kept. An unknown answer is an error.
func TestManyHolds(t *testing.T) {
	r := newRig(t)
	want := 0
	for i := range 4100 {
		h := blocked(fmt.Sprint(i), fmt.Sprint(i))
		r.failed[h.ID] = i%3 == 0
		if i%5 == 0 {
			h.Kind = store.Paused
		}
		if r.failed[h.ID] || h.Kind == store.Paused {
			want++
		}
		if err := r.Hold(t.Context(), r.epoch, h); err != nil {
			t.Fatal(err)
		}
	}
	holds, err := r.LoadHolds(t.Context())
	if err != nil || len(holds) != want {
		t.Errorf("%d holds, %v; want %d", len(holds), err, want)
	}
	for _, h := range holds {
		if h.ID != h.Lane.Group.Name || h.Kind == store.Blocked && !r.failed[h.ID] {
			t.Errorf("hold %+v", h)
		}
	}
	unsure := ledger.New(ledger.Config{
		Outboxes: []store.Outbox{{Name: "a", Table: "a", Layout: store.FlowCatalyst()}}, Records: r.backend,
		AreFailed: func(context.Context, []store.Ref) ([]bool, error) { return nil, errConflict },
	})
	if _, err := unsure.LoadHolds(t.Context()); !errors.Is(err, errConflict) {
		t.Errorf("unknown states: got %v", err)
	}
}

// TestReplayWithoutID: a replay without an id has a queue of its own.
func TestReplayWithoutID(t *testing.T) {
	r, key := newRig(t), blocked("", "g").Lane
	row := store.Item{Ref: store.Ref{Outbox: "a", ID: "1"}, Kind: key.Kind, Group: key.Group, Seq: 1}
	copied := store.ReplayRow{N: 2, Item: row}
	copied.Seq = 0
	err := errors.Join(r.Spill(t.Context(), r.epoch, []store.Item{row}), r.RequestReplay(t.Context(), "", "{}"),
		r.CopyRows(t.Context(), r.epoch, "", []store.ReplayRow{copied}, store.ReplayCursor{}))
	if n, clearErr := r.ClearRows(t.Context(), r.epoch, "", 10); n != 1 || err != nil || clearErr != nil {
		t.Errorf("%d rows were deleted, %v, %v", n, err, clearErr)
	}
	lanes, err := r.ReadSpilled(t.Context(), []store.SpilledRange{{Outbox: "a", Lane: key.Hash()}}, 9)
	if err != nil || len(lanes[0]) != 1 {
		t.Errorf("%d lists of spilled rows, %v", len(lanes), err)
	}
}

// TestSpillBatchBytes: a transaction spills rows of a bounded size, or one row.
func TestSpillBatchBytes(t *testing.T) {
	r := newRig(t)
	var items []store.Item
	for n, size := range []int{300, 300, 300, 300, 5000, 5000, 10, 10} {
		items = append(items, store.Item{Ref: store.Ref{Outbox: "plain", ID: fmt.Sprint(n)}, Seq: store.Seq(n + 1), Payload: make([]byte, size)})
	}
	before := r.backend.updates
	if err := r.Spill(t.Context(), r.epoch, items); err != nil {
		t.Fatal(err)
	}
	lanes, err := r.ReadSpilled(t.Context(), []store.SpilledRange{{Outbox: "plain", Lane: items[0].Lane().Hash()}}, 99)
	if n := r.backend.updates - before; n != 5 || err != nil || len(lanes[0]) != len(items) {
		t.Errorf("%d transactions, %v; want 5", n, err)
	}
}

// TestOrphanedSavepoint: a request does not take over what the leader made of an earlier one.
func TestOrphanedSavepoint(t *testing.T) {
	r := newRig(t)
	if err := r.RequestSavepoint(t.Context(), "here", false); err != nil {
		t.Fatal(err)
	}
	if err := r.SaveSavepoint(t.Context(), r.epoch, store.Savepoint{Name: "here", State: store.SavepointMade}); err != nil {
		t.Fatal(err)
	}
	r.update(t, func(ctx context.Context, tx ledger.Tx) error { return tx.Delete(ctx, "savepoint-spec", "here") })
	if err := r.RequestSavepoint(t.Context(), "here", false); err != nil {
		t.Fatal(err)
	}
	if all, err := r.Savepoints(t.Context()); err != nil || len(all) != 1 || all[0].State != store.SavepointRequested {
		t.Errorf("%+v, %v", all, err)
	}
}

// TestOldJobs: a saved job is reported as saved even if old ones cannot be deleted, and a job
// that took the id of an old one is kept.
func TestOldJobs(t *testing.T) {
	r := newRig(t)
	end := func(id string) {
		t.Helper()
		if err := errors.Join(r.RequestReplay(t.Context(), id, "{}"), r.SaveJob(t.Context(), r.epoch, store.Job{ID: id, State: store.JobDone})); err != nil {
			t.Fatal(err)
		}
	}
	for i := range store.MaxEndedJobs {
		end(fmt.Sprint("job-", i))
	}
	start := r.backend.updates
	r.backend.before = func(nth int) error {
		if nth == start+2 {
			return errConflict
		}
		return nil
	}
	end("one-more")
	if n := r.count(t, "job"); n != store.MaxEndedJobs+1 {
		t.Errorf("%d jobs", n)
	}
	start = r.backend.updates
	r.backend.before = func(nth int) error {
		if nth != start+2 {
			return nil
		}
		r.update(t, func(ctx context.Context, tx ledger.Tx) error {
			return errors.Join(tx.Delete(ctx, "job", "job-0", "job-1"), tx.Delete(ctx, "job-spec", "job-0", "job-1"))
		})
		return errors.Join(r.RequestReplay(t.Context(), "job-0", "{}"), r.RequestReplay(t.Context(), "job-1", "{}"))
	}
	end("two-more")
	if n := r.count(t, "job"); n != store.MaxEndedJobs+2 {
		t.Errorf("%d jobs, want also the two that were requested again", n)
	}
}
