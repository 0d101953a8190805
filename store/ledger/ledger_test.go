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
	backend *memory.Backend
	epoch   store.Epoch
	failed  map[string]bool // ids of FAILED rows
}

func newRig(t *testing.T) *rig {
	r := &rig{backend: memory.New().Backend("rig"), failed: map[string]bool{}}
	var err error
	if r.epoch, err = r.backend.AcquireLeadership(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.Ledger = ledger.New(ledger.Config{
		Outboxes: []store.Outbox{{Name: "a", Table: "a", Layout: store.FlowCatalyst()}},
		Records:  r.backend, Spill: r.backend, Replay: r.backend, Statuses: r, BatchRows: 10,
	})
	return r
}

// ReadStatuses implements ledger.StatusReader.
func (r *rig) ReadStatuses(_ context.Context, rows []store.ClaimRow) ([]store.RowStatus, error) {
	states := make([]store.RowStatus, len(rows))
	for i := range rows {
		if r.failed[rows[i].ID] {
			states[i].State = store.RowFailed
		}
	}
	return states, nil
}

// count returns the number of records of a kind.
func (r *rig) count(t *testing.T, kind string) (n int) {
	t.Helper()
	err := r.backend.View(t.Context(), func(ctx context.Context, v ledger.Reader) error {
		list, err := v.List(ctx, kind, "", 0)
		n = len(list)
		return err
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
	update := func(do func(context.Context, ledger.Tx) error) {
		t.Helper()
		if err := r.backend.Update(t.Context(), r.epoch, ledger.Full, do); err != nil {
			t.Fatal(err)
		}
	}
	block := func(id, group string) {
		t.Helper()
		update(func(ctx context.Context, tx ledger.Tx) error { return ledger.Block(ctx, tx, blocked(id, group)) })
	}
	unblock := func(id string) {
		t.Helper()
		update(func(ctx context.Context, tx ledger.Tx) error {
			return ledger.Unblock(ctx, tx, store.Ref{Outbox: "a", ID: id})
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
		if n, err := r.DeleteSpilledAfter(t.Context(), r.epoch, c.after); n != c.want || err != nil {
			t.Errorf("after %d: %d rows, %v; want %d", c.after, n, err, c.want)
		}
	}
}
