package storetest

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

func (b *bench) saveJob(t *testing.T, j store.Job) {
	t.Helper()
	if err := b.store.SaveJob(b.ctx(t), b.epoch, j); err != nil {
		t.Fatal(err)
	}
}

// wantJob compares a replay with the expected one and checks which of its times are set.
func (b *bench) wantJob(t *testing.T, what string, r Store, want store.Job, began, finished bool) store.Job {
	t.Helper()
	got := b.jobOf(t, r, want.ID)
	bare := got
	bare.RequestedAt, bare.StartedAt, bare.FinishedAt = time.Time{}, time.Time{}, time.Time{}
	if !reflect.DeepEqual(bare, want) {
		t.Errorf("%s: the replay is\n%.600s, want\n%.600s", what, fmt.Sprintf("%+v", bare), fmt.Sprintf("%+v", want))
	}

	for of, at := range map[string]struct {
		time.Time
		there bool
	}{"asked": {got.RequestedAt, true}, "began": {got.StartedAt, began}, "finished": {got.FinishedAt, finished}} {
		if at.IsZero() == at.there || at.there && time.Since(at.Time).Abs() > time.Minute {
			t.Errorf("%s: %s at %s, is that there: %t", what, of, at.Time, at.there)
		}
	}

	return got
}

// testJobs requests replays and their desired states from a store that never led.
func (s *suite) testJobs(t *testing.T) {
	b := s.start(t, 0)
	leader, other := b.store, b.open(t, 0)
	if jobs, err := other.Jobs(b.ctx(t)); err != nil || len(jobs) != 0 {
		t.Fatalf("at first: %+v, %v", jobs, err)
	}

	spec := `{"groups": ["ünï ☃ '\\\""], "more": "` + strings.Repeat("x", 100_000) + `"}`
	for _, id := range []string{"zzz", "aaaaaaaaaaaaa", "mmm"} {
		if err := other.RequestReplay(b.ctx(t), id, spec); err != nil {
			t.Fatal(err)
		}
	}

	if err := other.RequestReplay(b.ctx(t), "mmm", "{}"); !errors.Is(err, store.ErrJobExists) {
		t.Errorf("used id: got %v, want ErrJobExists", err)
	}

	jobs, err := leader.Jobs(b.ctx(t))
	if err != nil || len(jobs) != 3 || jobs[0].ID != "mmm" || jobs[1].ID != "aaaaaaaaaaaaa" || jobs[2].ID != "zzz" {
		t.Fatalf("%d replays, %v", len(jobs), err)
	}

	want := store.Job{ID: "zzz", Desired: store.DesiredRun, Spec: spec, State: store.JobWaiting}
	b.wantJob(t, "asked for", leader, want, false, false)
	want.Desired = store.DesiredPause
	for range 2 {
		if err := other.RequestJobState(b.ctx(t), "zzz", store.DesiredPause); err != nil {
			t.Fatal(err)
		}
	}

	b.wantJob(t, "to be paused", leader, want, false, false)
	if err := other.RequestJobState(b.ctx(t), "none", store.DesiredRun); !errors.Is(err, store.ErrNoJob) {
		t.Errorf("request for an unknown replay: got %v, want ErrNoJob", err)
	}
	if err := other.RequestJobState(b.ctx(t), "zzz", "stop"); err == nil {
		t.Error("desired state \"stop\" accepted")
	}
	if _, err := leader.JobErrors(b.ctx(t), "zzz", 0); err == nil {
		t.Error("limit 0 accepted")
	}
}

// testJobsMany requests more replays than are kept after their end: all are listed, because
// the leader finds them in the list.
func (s *suite) testJobsMany(t *testing.T) {
	b := s.start(t, 0)
	r := b.store
	var want []string
	for i := range store.MaxEndedJobs + 5 {
		id := fmt.Sprint("job ", i)
		if err := r.RequestReplay(b.ctx(t), id, "{}"); err != nil {
			t.Fatal(err)
		}
		want = slices.Insert(want, 0, id)
	}

	jobs, err := r.Jobs(b.ctx(t))
	var got []string
	for i := range jobs {
		got = append(got, jobs[i].ID)
	}

	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("%d replays are %q, %v", len(got), got, err)
	}

	first := store.Job{ID: want[len(want)-1], Desired: store.DesiredPause, Spec: "{}", State: store.JobPaused}
	if err := r.RequestJobState(b.ctx(t), first.ID, store.DesiredPause); err != nil {
		t.Fatal(err)
	}

	b.saveJob(t, store.Job{ID: first.ID, State: store.JobPaused})
	b.wantJob(t, "paused behind the others", r, first, false, false)
}

// testJobStates saves the states of a replay as its leader.
func (s *suite) testJobStates(t *testing.T) {
	b := s.start(t, 0)
	other := b.open(t, 0)
	want := store.Job{ID: "zzz", Desired: store.DesiredPause, Spec: "{}"}
	b.job(t, "zzz")
	if err := other.RequestJobState(b.ctx(t), "zzz", store.DesiredPause); err != nil {
		t.Fatal(err)
	}

	want.State, want.Reason = store.JobPaused, "not yet"
	b.saveJob(t, store.Job{ID: "zzz", State: want.State, Reason: want.Reason})
	b.wantJob(t, "paused before it began", other, want, false, false)
	want.State, want.Reason, want.Source, want.UntilAt = store.JobCopying, "from ☃", "log", now()
	want.WaitsFor, want.Undated = "1 paused group ☃", 3
	want.Until = store.Checkpoint{Origin: "o ünï", Position: "p '\"\\", Seq: 1<<62 + 1}
	saved := want
	saved.Desired, saved.Spec, saved.Total, saved.Sent = store.DesiredCancel, "another", 7, 7 // these fields must not be saved
	b.saveJob(t, saved)
	first := b.wantJob(t, "begun", other, want, true, false)
	want.State, want.Reason, want.Until, want.UntilAt, want.Source = store.JobFailed, "", store.Checkpoint{}, time.Time{}, ""
	want.WaitsFor, want.Undated = "", 0
	b.saveJob(t, want)
	ended := b.wantJob(t, "ended", other, want, true, true)
	if err := other.RequestJobState(b.ctx(t), "zzz", store.DesiredCancel); err != nil {
		t.Errorf("a request for a replay that has ended: %v", err)
	}

	b.saveJob(t, want)
	if again := b.wantJob(t, "ended again", other, want, true, true); again.StartedAt != first.StartedAt || again.FinishedAt != ended.FinishedAt || again.RequestedAt != first.RequestedAt {
		t.Errorf("the times were %+v and are %+v", ended, again)
	}
	if err := b.store.SaveJob(b.ctx(t), b.epoch, store.Job{ID: "none", State: store.JobCopying}); !errors.Is(err, store.ErrNoJob) {
		t.Errorf("save of an unknown replay: got %v, want ErrNoJob", err)
	}

	b.saveJob(t, store.Job{ID: "zzz", State: store.JobRefused, Reason: "a\x00b \xff " + strings.Repeat("lóng ", 1000)})
	if why := b.jobOf(t, other, "zzz").Reason; !strings.HasPrefix(why, "ab ") || len(why) < 100 || len(why) > 4000 {
		t.Errorf("a hostile reason has %d bytes", len(why))
	}
}

// testJobsKept: the end of a replay deletes earlier ended replays above store.MaxEndedJobs,
// with their errors, unless they have rows. The order of the ends counts, not that of the
// requests.
func (s *suite) testJobsKept(t *testing.T) {
	b := s.start(t, 0)
	r, key := b.store, lane("a", "EVENT", store.GroupOf("g"))
	const open, late, rows, bare = "0 open", "1 ended late", "2 with a row", "3 bare"
	list := []string{open, late, rows, bare}
	for i := range store.MaxEndedJobs {
		list = append(list, fmt.Sprint(len(list), " of ", i))
	}

	for i, id := range list {
		if err := r.RequestReplay(b.ctx(t), id, "{}"); err != nil {
			t.Fatal(err)
		}
		if i > 4 {
			continue
		}
		b.copyRows(t, id, store.ReplayCursor{}, replayRow(key, "1", 1), replayRow(key, "2", 2))
		done := []store.FinishedRow{{N: 1, Lane: key, ID: "1", Result: store.ReplayRefused, Error: "no"}, {N: 2, Lane: key, ID: "2"}}
		if id == rows {
			done = done[:1]
		}
		if err := r.FinishRows(b.ctx(t), b.epoch, id, done); err != nil {
			t.Fatal(err)
		}
	}

	kept := func(what string, ids ...string) { t.Helper(); b.wantKept(t, what, list[:5], ids) }
	end := func(ids ...string) {
		t.Helper()
		for _, id := range ids {
			b.saveJob(t, store.Job{ID: id, State: store.JobCancelled})
		}
	}

	rest := list[4:]
	end(rows, bare)
	end(rest[:store.MaxEndedJobs-2]...)
	kept("as many have ended as are kept", open, late, rows, bare, rest[0])
	end(late)
	kept("the first of more has a row", open, late, rows, bare, rest[0])
	end(rest[store.MaxEndedJobs-2])
	kept("two more have ended", open, late, rows, rest[0])
	if jobs, err := r.Jobs(b.ctx(t)); err != nil || len(jobs) != len(list)-1 || jobs[0].ID != list[len(list)-1] || jobs[len(jobs)-1].ID != open {
		t.Errorf("%d replays are shown, %v", len(jobs), err)
	}
	if n, err := r.ClearRows(b.ctx(t), b.epoch, rows, 5); err != nil || n != 1 {
		t.Errorf("%d rows were cleared, %v", n, err)
	}

	end(rest[store.MaxEndedJobs-1])
	kept("its rows are cleared", open, late)
}

// wantKept checks which replays still exist, each with its error.
func (b *bench) wantKept(t *testing.T, what string, of, want []string) {
	t.Helper()
	for _, id := range of {
		there := slices.Contains(want, id)
		errs, err := b.store.JobErrors(b.ctx(t), id, 5)
		if err != nil || (len(errs) == 1) != there {
			t.Errorf("%s: replay %q has the errors %+v, %v", what, id, errs, err)
		}
		if err := b.store.RequestJobState(b.ctx(t), id, store.DesiredRun); err == nil != there || !there && !errors.Is(err, store.ErrNoJob) {
			t.Errorf("%s: replay %q: %v", what, id, err)
		}
	}
}
