package app

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/checkpoint"
	"github.com/sluicebox/sluicebox/store"
)

// counted is a store that counts FAILED rows.
type counted struct {
	store.Store
	rows  map[string]int
	err   error
	takes time.Duration
	asked int
}

func (c *counted) CountFailed(ctx context.Context, f store.DeadLetterFilter) (int, error) {
	c.asked++
	select {
	case <-time.After(c.takes):
		return c.rows[f.Outbox], c.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// reportedRelay returns a leader with two sinks and a running session.
func reportedRelay(t *testing.T) (r *relay, db *counted, tracker *checkpoint.Tracker) {
	t.Helper()
	r, _, _ = operatedRelay(t)
	_, r.metrics = newTestMetrics(t)
	db = &counted{rows: map[string]int{"orders": 3}}
	r.health, r.version, r.startedAt, r.db = newHealth(), "1.2.3", time.Now(), &database{store: db}
	tracker = checkpoint.NewTracker(store.Checkpoint{Position: "start"})
	r.progress.startSession(sessionStats{mode: "stream", sourceDetail: "reading the log", tracker: tracker, saved: store.Checkpoint{Position: "start", Seq: 7}})
	return r, db, tracker
}

func TestReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, tracker := reportedRelay(t)
		put(t, r, "near", "orders", "a", 2)
		put(t, r, "far", "bills", "b", 3)
		r.metrics.Captured("orders", 20)
		r.metrics.Sink("near").Settled(&store.Item{}, &store.Outcome{Status: store.Completed})
		r.metrics.Sink("near").Settled(&store.Item{}, &store.Outcome{Status: store.Failed})
		r.metrics.Sink("far").Settled(&store.Item{}, &store.Outcome{Status: store.Pending, Error: "no"})
		sourceObserver{r}.Connected()
		(&pressure{relay: r}).reportRetained(capture.RetainedLog{Bytes: 4096})
		tracker.Begin("there", 9, 1)
		time.Sleep(2 * time.Second)
		checkpointObserver{r}.Saved(store.Checkpoint{Position: "saved", Seq: 8})
		s := r.Report(t.Context(), false)
		if s.Version != "1.2.3" || s.Uptime != 2 || s.Mode != "stream" || s.SourceDetail != "reading the log" || s.Failed != nil ||
			!s.Source.Connected || s.Source.Position != "there" || *s.Source.RetainedBytes != 4096 || *s.Source.RetainedLimitBytes != 1<<30 ||
			s.Checkpoint.Position != "saved" || s.Checkpoint.Seq != 8 || !s.Checkpoint.SavedAt.Equal(time.Now()) ||
			s.Lag.Rows != 5 || s.Captured.TenSeconds != 10 {
			t.Errorf("%+v", s)
		}
		if len(s.Sinks) != 2 || s.Sinks[0].Name != "far" || s.Sinks[0].Waiting != 3 || s.Sinks[0].Retried.TenSeconds != .5 ||
			s.Sinks[1].Delivered.Minute != .5 || s.Sinks[1].Failed.Minute != .5 || s.Sinks[1].Lanes["ready"] != 1 {
			t.Errorf("%+v", s.Sinks)
		}
		if text, err := json.Marshal(s); err != nil || strings.Contains(string(text), `"sinks":null`) || strings.Contains(string(text), `"lanes":null`) {
			t.Errorf("%s %v", text, err)
		}
	})
}

// Held lanes are reported, moving lanes are not.
func TestReportOfLanes(t *testing.T) {
	r, _, _ := reportedRelay(t)
	put(t, r, "near", "orders", "moves", 2)
	put(t, r, "far", "bills", "stands", 3)
	if err := (laneController{r}).Pause(t.Context(), name("bills", "stands"), "stock-taking"); err != nil {
		t.Fatal(err)
	}
	s := r.Report(t.Context(), false)
	if s.LanesTotal != 1 || len(s.Lanes) != 1 || *s.Lanes[0].Group != "stands" || s.Lanes[0].Reason != "stock-taking" {
		t.Errorf("%+v", s.Lanes)
	}
}

// The report separates the current replay from the waiting ones.
func TestReportOfReplays(t *testing.T) {
	r, _, _ := reportedRelay(t)
	watch := &replayObserver{relay: r}
	if s := r.Report(t.Context(), false); s.Replays.Current != nil {
		t.Errorf("before the desk looked: %+v", s.Replays)
	}
	job := func(id string, state store.JobState, desired store.DesiredState) store.Job {
		return store.Job{ID: id, State: state, Desired: desired, Total: 7, Sent: 3}
	}
	done := job("done", store.JobDone, store.DesiredRun)
	newer, older := job("newer", store.JobWaiting, store.DesiredRun), job("older", store.JobWaiting, store.DesiredRun)
	begun := job("begun", store.JobPlaying, store.DesiredRun)
	paused, resumed := job("paused", store.JobPaused, store.DesiredPause), job("resumed", store.JobPaused, store.DesiredRun)
	for _, c := range []struct {
		jobs            []store.Job // latest first
		current         string
		waiting, paused int
	}{
		{nil, "", 0, 0},
		{[]store.Job{done, paused}, "", 0, 1},
		{[]store.Job{newer, older, done}, "older", 1, 0},
		{[]store.Job{newer, begun, older, paused}, "begun", 2, 1},
		{[]store.Job{begun, resumed}, "begun", 1, 0},
		{[]store.Job{resumed}, "resumed", 0, 0},
	} {
		watch.Jobs(c.jobs)
		s := r.Report(t.Context(), false).Replays
		if s.Waiting != c.waiting || s.Paused != c.paused || (s.Current == nil) != (c.current == "") ||
			s.Current != nil && (s.Current.ID != c.current || s.Current.Rows != 7 || s.Current.Sent != 3) {
			t.Errorf("%+v, want %s, %d waiting, %d paused", s, c.current, c.waiting, c.paused)
		}
	}
}

// A standby reports the leader while the database names it.
func TestReportOfStandby(t *testing.T) {
	r, _, _ := reportedRelay(t)
	r.currentDispatchers.Store(nil)
	r.progress = progress{}
	(&standby{relay: r}).Standby("host process 7")
	s := r.Report(t.Context(), true)
	if s.IsLeader || s.Leader != "host process 7" || s.Mode != "" || s.Failed != nil || len(s.Sinks) != 0 || s.Source.LastReceivedAt != nil {
		t.Errorf("%+v", s)
	}
	(&standby{relay: r}).LockFailed(errors.New("no way"))
	if s := r.Report(t.Context(), true); s.Leader != "" {
		t.Errorf("it says that %q leads", s.Leader)
	}
}

// One count of FAILED rows serves all callers that ask soon after. The longer a count
// takes, the longer it is cached. A failed count reports its error.
func TestCountOfFailedRowsIsCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, db, _ := reportedRelay(t)
		count := func(asked int) {
			t.Helper()
			got := r.Report(t.Context(), true).Failed
			if len(got) != 2 || got[1].Outbox != "orders" || db.asked != asked {
				t.Errorf("%+v after %d counts, want %d", got, db.asked, asked)
			}
		}
		db.takes = 100 * time.Millisecond
		count(2)
		count(2)
		time.Sleep(11 * time.Second)
		db.takes = time.Second // for each of two outboxes
		count(4)
		time.Sleep(39 * time.Second)
		count(4)
		time.Sleep(2 * time.Second)
		count(6)
		got := r.Report(t.Context(), true).Failed
		if *got[0].Rows != 0 || *got[1].Rows != 3 {
			t.Errorf("%+v", got)
		}
		time.Sleep(time.Hour)
		db.takes = time.Minute
		began := time.Now()
		got = r.Report(t.Context(), true).Failed
		if took := time.Since(began); took != countTimeout || got[0].Rows != nil || !strings.Contains(got[0].Error, "timeout after 5s") {
			t.Errorf("after %s: %+v", took, got)
		}
		time.Sleep(time.Hour)
		db.takes, db.err = 0, errors.New("permission denied")
		if got := r.Report(t.Context(), true).Failed; got[1].Rows != nil || got[1].Error != "permission denied" {
			t.Errorf("%+v", got)
		}
	})
}
