package sluicebox

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/checkpoint"
	"github.com/sluicebox/sluicebox/store"
)

// reportedRelay returns a leader with two sinks and a running session.
func reportedRelay(t *testing.T) (r *Relay, tracker *checkpoint.Tracker) {
	t.Helper()
	r, _, _ = operatedRelay(t)
	tracker = checkpoint.NewTracker(store.Checkpoint{Position: "start"})
	r.progress.startSession(sessionStats{mode: ModeStream, sourceDetail: "reading the log", tracker: tracker, saved: store.Checkpoint{Position: "start", Seq: 7}})
	return r, tracker
}

func TestStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, tracker := reportedRelay(t)
		put(t, r, "near", "orders", "a", 2)
		put(t, r, "far", "bills", "b", 3)
		sourceObserver{r, func() {}}.Connected()
		(&pressure{Relay: r}).reportRetained(capture.RetainedLog{Bytes: 4096})
		tracker.Begin("there", 9, 1)
		time.Sleep(2 * time.Second)
		checkpointObserver{r}.Saved(store.Checkpoint{Position: "saved", Seq: 8})
		s := r.Status()
		if s.Mode != ModeStream || s.SourceDetail != "reading the log" || !s.Source.Connected || s.Source.Position != "there" || s.Holder != HolderName() ||
			time.Since(*s.Source.LastReceivedAt) != 2*time.Second || *s.Source.RetainedBytes != 4096 || *s.Source.RetainedLimitBytes != 1<<30 ||
			s.Checkpoint.Position != "saved" || s.Checkpoint.Seq != 8 || !s.Checkpoint.SavedAt.Equal(time.Now()) {
			t.Errorf("%+v", s)
		}
		if len(s.Sinks) != 2 || s.Sinks["far"].Waiting != 3 || s.Sinks["near"].Lanes["ready"] != 1 {
			t.Errorf("%+v", s.Sinks)
		}
	})
}

// The status separates the current replay from the waiting ones.
func TestStatusOfReplays(t *testing.T) {
	r, _ := reportedRelay(t)
	watch := &replayObserver{Relay: r}
	if s := r.Status(); s.Replays.Current != nil {
		t.Errorf("before the controller has read the jobs: %+v", s.Replays)
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
		s := r.Status().Replays
		if s.Waiting != c.waiting || s.Paused != c.paused || (s.Current == nil) != (c.current == "") ||
			s.Current != nil && (s.Current.ID != c.current || s.Current.Total != 7 || s.Current.Sent != 3) {
			t.Errorf("%+v, want %s, %d waiting, %d paused", s, c.current, c.waiting, c.paused)
		}
	}
}

// A standby reports the leader while the database names it.
func TestStatusOfStandby(t *testing.T) {
	r, _ := reportedRelay(t)
	r.currentDispatchers.Store(nil)
	r.progress = progress{}
	(&standby{Relay: r}).Standby("host process 7")
	s := r.Status()
	if s.Leads || s.Leader != "host process 7" || s.Mode != "" || s.Sinks != nil || s.Source.LastReceivedAt != nil {
		t.Errorf("%+v", s)
	}
	if !r.Working() {
		t.Errorf("a standby does not work: %+v", r.Checks())
	}
	(&standby{Relay: r}).LockFailed(errors.New("no way"))
	if s := r.Status(); s.Leader != "" {
		t.Errorf("it says that %q leads", s.Leader)
	}
}

// A sink that fails and a row that cannot be spilled do not keep the relay from working,
// because a service manager would restart it. A database that fails does.
func TestChecksOfASinkDoNotStopWork(t *testing.T) {
	r, end := beginSession(sessionStats{mode: ModeStream, sourceDetail: "reading the log", expectedInterval: time.Minute, paused: func() bool { return false }})
	defer end()
	r.health.fail("sink platform", "circuit breaker open")
	r.health.fail(spillCheckPrefix+"platform", "row 1 of outbox cannot be spilled")
	if !r.Working() {
		t.Errorf("got not working with the checks %+v", r.health.Checks())
	}
	r.health.fail("database", "unreachable")
	if r.Working() {
		t.Error("got working without the database")
	}
}
