package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

func (b *bench) done(t *testing.T, id string, done ...store.FinishedRow) {
	t.Helper()
	if err := b.store.FinishRows(b.ctx(t), b.epoch, id, done); err != nil {
		t.Fatal(err)
	}
}

// wantCounts compares the copied, sent, skipped and refused counts of a replay.
func (b *bench) wantCounts(t *testing.T, what, id string, want ...int64) {
	t.Helper()
	j := b.jobOf(t, b.store, id)
	if got := []int64{j.Total, j.Sent, j.Skipped, j.Refused}; !slices.Equal(got, want) {
		t.Errorf("%s: the counts are %d, want %d", what, got, want)
	}
}

// testDoneRows: a finished row is counted once, even if it is reported again, and refused
// rows leave their errors.
func (s *suite) testDoneRows(t *testing.T) {
	b := s.start(t, 0)
	r := b.store
	b.job(t, "job")
	keys := []store.LaneKey{
		lane("a", "EVENT", store.GroupOf("g")), lane("a", "EVENT", store.Group{}), lane("b", "event ☃", store.GroupOf("")), lane("b", "EVENT", store.GroupOf("ünï ☃")),
	}
	var rows []store.ReplayRow
	for i := range 12 {
		rows = append(rows, replayRow(keys[i%4], fmt.Sprintf("row %d ☃", i), int64(i+1)))
	}

	b.copyRows(t, "job", store.ReplayCursor{}, rows...)
	of := func(i int, result store.ReplayResult, text string) store.FinishedRow {
		return store.FinishedRow{N: rows[i].N, Lane: rows[i].Lane(), ID: rows[i].ID, Result: result, Error: text}
	}
	long := strings.Repeat("lóng ", 1000)
	call := []store.FinishedRow{
		of(0, store.ReplaySent, ""), of(7, store.ReplayRefused, "422: 'no' \"\\"), of(1, store.ReplaySkipped, "not kept"),
		of(6, store.ReplayRefused, "a\x00b \xff "+long), of(4, store.ReplaySent, ""), of(5, store.ReplayRefused, ""),
		{N: 99, Lane: keys[0], ID: "never copied"}, {N: 9, Lane: keys[1], ID: "of another lane", Result: store.ReplayRefused},
	}
	var errs []store.ReplayError
	for range 2 { // as after a lost answer
		b.done(t, "job", call...)
		b.wantCounts(t, "done", "job", 12, 2, 1, 3)
		var err error
		if errs, err = r.JobErrors(b.ctx(t), "job", 100); err != nil || len(errs) != 3 {
			t.Fatalf("%d errors, %v", len(errs), err)
		}
	}

	for i, k := range []int{5, 6, 7} {
		e, w := errs[i], rows[k]
		if e.N != w.N || e.Ref != w.Ref || e.Kind != w.Kind || e.Group != w.Group || time.Since(e.At).Abs() > time.Minute {
			t.Errorf("error %d is %.300s of row %.300s", i, fmt.Sprintf("%+v", e), fmt.Sprintf("%+v", w))
		}
	}

	if errs[0].Reason != "" || errs[2].Reason != "422: 'no' \"\\" || !strings.HasPrefix(errs[1].Reason, "ab ") || len([]rune(errs[1].Reason)) != 2000 {
		t.Errorf("the reasons are %q, %q and one of %d characters", errs[0].Reason, errs[2].Reason, len([]rune(errs[1].Reason)))
	}
	if some, err := r.JobErrors(b.ctx(t), "job", 2); err != nil || !slices.Equal(some, errs[:2]) {
		t.Errorf("two errors: %d, %v", len(some), err)
	}
	if none, err := r.JobErrors(b.ctx(t), "another", 2); err != nil || len(none) != 0 {
		t.Errorf("errors of another replay: %d, %v", len(none), err)
	}

	b.wantReplayRows(t, "left", "job", keys[0], rows[8])
	b.wantReplayRows(t, "left", "job", keys[1], rows[9])
	b.wantReplayRows(t, "left", "job", keys[2], rows[2], rows[10])
	b.wantReplayRows(t, "left", "job", keys[3], rows[3], rows[11])
	twice := []store.FinishedRow{of(2, store.ReplaySent, ""), of(2, store.ReplaySent, ""), of(3, store.ReplaySkipped, ""), of(3, store.ReplaySkipped, "")}
	b.done(t, "job", twice...)
	b.wantCounts(t, "each twice", "job", 12, 3, 2, 3)
}

// testDoneDuringRequests: the counts stay exact during concurrent requests.
func (s *suite) testDoneDuringRequests(t *testing.T) {
	b := s.start(t, 0)
	b.job(t, "job")
	key, ctx, other := lane("a", "EVENT", store.GroupOf("g")), b.ctx(t), b.open(t, 0)
	rounds, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		var err error
		for range rounds {
			for _, state := range []store.DesiredState{store.DesiredPause, store.DesiredRun} {
				err = errors.Join(err, other.RequestJobState(ctx, "job", state))
			}
		}
		ended <- err
	}()

	stop := sync.OnceFunc(func() { close(rounds) })
	defer stop()
	const turns, each = 20, 5
	for i := range turns {
		rounds <- struct{}{} // concurrent with the writes below
		var rows []store.ReplayRow
		var done []store.FinishedRow
		for k := range each {
			n := int64(i*each + k + 1)
			rows = append(rows, replayRow(key, fmt.Sprint(n), n))
			done = append(done, store.FinishedRow{N: n, Lane: key, ID: fmt.Sprint(n), Result: store.ReplayResult(k % 3), Error: "x"})
		}
		b.copyRows(t, "job", store.ReplayCursor{Skip: i}, rows...)
		b.done(t, "job", done...)
		b.saveJob(t, store.Job{ID: "job", State: store.JobPlaying})
	}

	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}

	b.wantCounts(t, "all", "job", turns*each, 2*turns, 2*turns, turns)
	if j := b.jobOf(t, other, "job"); j.Desired != store.DesiredRun || j.State != store.JobPlaying || j.Cursor.Skip != turns-1 {
		t.Errorf("the replay is %+v", j)
	}
	if errs, err := other.JobErrors(b.ctx(t), "job", 1000); err != nil || len(errs) != turns {
		t.Errorf("%d errors, %v", len(errs), err)
	}
}

// testErrorsKept: errors above store.MaxJobErrors are counted but not stored.
func (s *suite) testErrorsKept(t *testing.T) {
	b := s.start(t, 0)
	b.job(t, "job")
	const before = store.MaxJobErrors - 3
	b.db.SetRefused(t, "job", before)
	key := lane("a", "EVENT", store.GroupOf("g"))
	var rows []store.ReplayRow
	var done []store.FinishedRow
	for n := range int64(9) {
		rows = append(rows, replayRow(key, fmt.Sprint(n+1), n+1))
		result := []store.ReplayResult{store.ReplaySent, store.ReplayRefused}[n%2]
		done = append(done, store.FinishedRow{N: n + 1, Lane: key, ID: rows[n].ID, Result: result, Error: "no"})
	}

	b.copyRows(t, "job", store.ReplayCursor{}, rows...)
	for _, some := range [][]store.FinishedRow{done[:4], done[4:], done} {
		b.done(t, "job", some...)
	}

	b.wantCounts(t, "all", "job", 9, 5, 0, before+4)
	errs, err := b.store.JobErrors(b.ctx(t), "job", 9)
	if err != nil || len(errs) != 3 || errs[0].N != 2 || errs[2].N != 6 {
		t.Errorf("the errors are %+v, %v", errs, err)
	}
}

// testClearRows: rows are cleared in parts and subtracted from the total.
func (s *suite) testClearRows(t *testing.T) {
	b := s.start(t, 0)
	r := b.store
	keys := []store.LaneKey{lane("a", "EVENT", store.GroupOf("g")), lane("b", "EVENT", store.Group{})}
	var rows []store.ReplayRow
	for i := range 10 {
		rows = append(rows, replayRow(keys[i%2], fmt.Sprint(i), int64(i+1)))
	}

	for _, id := range []string{"job", "another"} {
		b.job(t, id)
		b.copyRows(t, id, store.ReplayCursor{Position: "p"}, rows...)
	}

	b.done(t, "job", store.FinishedRow{N: 1, Lane: keys[0]}, store.FinishedRow{N: 2, Lane: keys[1]})
	for _, want := range []int{3, 3, 2, 0} {
		if n, err := r.ClearRows(b.ctx(t), b.epoch, "job", 3); err != nil || n != want {
			t.Errorf("%d rows were cleared, %v; want %d", n, err, want)
		}
		if want == 2 {
			b.wantCounts(t, "cleared", "job", 2, 2, 0, 0)
		}
	}

	if j := b.jobOf(t, r, "job"); j.Cursor.Position != "p" {
		t.Errorf("the replay is %+v", j)
	}

	for _, key := range keys {
		b.wantReplayRows(t, "cleared", "job", key)
	}

	b.wantReplayRows(t, "of another", "another", keys[0], rows[0], rows[2], rows[4], rows[6], rows[8])
	b.wantCounts(t, "of another", "another", 10, 0, 0, 0)
	if n, err := r.ClearRows(b.ctx(t), b.epoch, "none", 3); err != nil || n != 0 {
		t.Errorf("unknown replay: %d rows cleared, %v", n, err)
	}

	b.copyRows(t, "job", store.ReplayCursor{}, rows...)
	b.wantReplayRows(t, "copied anew", "job", keys[0], rows[0], rows[2], rows[4], rows[6], rows[8])
	b.wantCounts(t, "copied anew", "job", 12, 2, 0, 0)
	refused := store.FinishedRow{N: 3, Lane: keys[0], Result: store.ReplayRefused, Error: "no"}
	b.done(t, "job", refused)
	if n, err := r.ClearRows(b.ctx(t), b.epoch, "job", 100); err != nil || n != 9 {
		t.Errorf("%d rows were cleared, %v", n, err)
	}

	b.copyRows(t, "job", store.ReplayCursor{}, rows...)
	b.done(t, "job", refused) // an error of this N already exists
	b.wantCounts(t, "refused anew", "job", 13, 2, 0, 2)
	if errs, err := r.JobErrors(b.ctx(t), "job", 9); err != nil || len(errs) != 1 {
		t.Errorf("%d errors, %v", len(errs), err)
	}
}

// testCountRows: the latest counts of a replay without copies are stored, and other replays
// are unchanged.
func (s *suite) testCountRows(t *testing.T) {
	b := s.start(t, 0)
	r, key := b.store, lane("a", "EVENT", store.GroupOf("g"))
	for _, id := range []string{"job", "another"} {
		b.job(t, id)
		b.copyRows(t, id, store.ReplayCursor{Position: "p", Skip: 3}, replayRow(key, "1", 1), replayRow(key, "2", 2))
		b.done(t, id, store.FinishedRow{N: 1, Lane: key, Result: store.ReplayRefused})
	}

	for _, want := range [][2]int64{{7, 0}, {1 << 40, 1 << 39}, {1 << 40, 1 << 39}, {0, 0}} {
		if err := r.SetRowCounts(b.ctx(t), b.epoch, "job", want[0], want[1]); err != nil {
			t.Fatal(err)
		}
		b.wantCounts(t, "counted", "job", want[0], 0, want[1], 1)
	}

	b.wantCounts(t, "of another", "another", 2, 0, 0, 1)
	if j := b.jobOf(t, r, "job"); j.Cursor != (store.ReplayCursor{Position: "p", Skip: 3}) || j.State != store.JobWaiting {
		t.Errorf("the replay is %+v", j)
	}
	if err := r.SetRowCounts(b.ctx(t), b.epoch, "none", 1, 1); !errors.Is(err, store.ErrNoJob) {
		t.Errorf("counts of an unknown replay: got %v, want ErrNoJob", err)
	}
}
