package replay_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/checkpoint/replay"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// deliveredFixture is a scene of a checkpoint with a retained log and later rows of two
// groups, which were delivered.
func deliveredFixture(t *testing.T, configure ...func(*replay.Controller)) (h testDB, to *receiver, l *testRelay) {
	t.Helper()
	h = postgres(t)
	to, l = h.delivered(t, configure...)
	return h, to, l
}

// delivered starts a relay that has delivered 600 rows after the checkpoint "here".
func (h testDB) delivered(t *testing.T, configure ...func(*replay.Controller)) (to *receiver, l *testRelay) {
	t.Helper()
	to = newReceiver()
	l = startRelay(t, h, to, configure...)
	if n := l.createCheckpoint("here", true); n.State != store.SavepointRetained {
		t.Fatalf("got checkpoint %+v", n)
	}

	h.exec(t, insert("a", ids("a", 0, 300)...), insert("b", ids("b", 0, 300)...))
	to.waitForLive(t, 600)
	eventually(t, func() string { return l.wantOpen(0) })
	return to, l
}

// TestPauseAndCancel: a paused job lets live rows pass and continues at its cursor. A
// cancelled job leaves nothing.
func TestPauseAndCancel(t *testing.T) {
	t.Parallel()
	h, to, l := deliveredFixture(t)
	l.replay("job", replay.Spec{From: "here", Rate: 60})
	again := func() int { return len(to.of("a", true)) + len(to.of("b", true)) }
	eventually(t, func() string {
		if again() < 20 {
			return "rows that are sent again"
		}
		return ""
	})

	l.setDesired("job", store.DesiredPause)
	if j := l.waitForState("job", store.JobPaused); j.Sent == 0 || j.Sent >= 600 {
		t.Errorf("got job %+v", j)
	}

	came := again()
	h.exec(t, insert("a", "live"))
	to.waitForLive(t, 601)
	if now := again(); now != came {
		t.Errorf("%d rows arrived while the job was paused", now-came)
	}

	l.setDesired("job", store.DesiredRun)
	l.waitForState("job", store.JobPlaying)
	eventually(t, func() string {
		if again() < came+20 {
			return "more rows"
		}
		return ""
	})

	l.setDesired("job", store.DesiredCancel)
	j := l.waitForState("job", store.JobCancelled)
	eventually(t, func() string {
		if j = l.job("job"); j.Total != j.Sent {
			return "the rest is not cleared"
		}
		return ""
	})

	for _, g := range []string{"a", "b"} {
		if got := to.of(g, true); !slices.Equal(got, ids(g, 0, len(got))) {
			t.Errorf("group %s: got %v", g, got)
		}
	}

	lanes, err := l.store.ReplayLanes(l.ctx(), "job", 0, 10)
	if err != nil || len(lanes) > 0 {
		t.Errorf("%d lanes are left, %v", len(lanes), err)
	}

	// A job that has not started can be cancelled too, and the next one runs.
	l.replay("second", replay.Spec{From: "here", Groups: []string{"b"}, IDs: ids("b", 7, 9)})
	if j := l.waitForState("second", store.JobDone); j.Sent != 2 {
		t.Errorf("got job %+v", j)
	}
}

// TestRefusedRows: a row that the receiver refuses is an error of the job and does
// not change the table.
func TestRefusedRows(t *testing.T) {
	t.Parallel()
	_, to, l := deliveredFixture(t)
	to.mu.Lock()
	to.refuse = func(id string) bool { return strings.HasSuffix(id, "77") }
	to.mu.Unlock()
	l.replay("job", replay.Spec{From: "here", Groups: []string{"a"}})
	j := l.waitForState("job", store.JobDone)
	if j.Sent != 297 || j.Refused != 3 || j.Total != 300 {
		t.Errorf("got job %+v", j)
	}

	errs, err := l.store.JobErrors(l.ctx(), "job", 100)
	if err != nil || len(errs) != 3 || errs[0].ID != "a-077" || errs[0].Reason == "" {
		t.Errorf("%d errors, %v: %+v", len(errs), err, errs)
	}
	if what := l.wantOpen(0); what != "" {
		t.Error(what)
	}
}

// TestDryRun: a dry run counts the rows that a replay would send, and sends none.
func TestDryRun(t *testing.T) {
	t.Parallel()
	h, to, l := deliveredFixture(t)
	h.exec(t, "UPDATE outbox_events SET status = 'FAILED' WHERE id < 'a-010'", "DELETE FROM outbox_events WHERE id = 'b-001'")
	spec := replay.Spec{From: "here", DryRun: true}
	l.replay("dry", spec)
	dry := l.waitForState("dry", store.JobDone)
	if dry.Total != 600 || dry.Skipped != 10 || dry.Sent != 0 || len(to.of("a", true)) > 0 {
		t.Errorf("got dry run %+v", dry)
	}

	spec.Read = replay.SourceTable
	l.replay("dry table", spec)
	if j := l.waitForState("dry table", store.JobDone); j.Total != 589 || j.Skipped != 0 || j.Source != "table" {
		t.Errorf("got dry run %+v", j)
	}

	spec.DryRun = false
	l.replay("table", spec)
	if j := l.waitForState("table", store.JobDone); j.Total != 589 || j.Sent != 589 || !strings.Contains(j.Reason, "from the table") {
		t.Errorf("got job %+v", j)
	}

	want := slices.DeleteFunc(ids("b", 0, 300), func(id string) bool { return id == "b-001" })
	if got := to.of("b", true); !slices.Equal(got, want) {
		t.Errorf("group b: got %v", got)
	}
}

// TestReleasedLogEndsReplay: releasing the log of a checkpoint ends the job that
// reads it. A later job reads the table, if its spec permits that.
func TestReleasedLogEndsReplay(t *testing.T) {
	t.Parallel()
	_, to, l := deliveredFixture(t, func(d *replay.Controller) { d.SetSegmentRows(10, 20) })
	l.replay("job", replay.Spec{From: "here", Rate: 40})
	eventually(t, func() string {
		if len(to.of("a", true)) < 10 {
			return "rows that are sent again"
		}
		return ""
	})

	if err := l.store.RequestSavepointDeletion(l.ctx(), "here"); err != nil {
		t.Fatal(err)
	}

	l.notify()
	var j store.Job
	eventually(t, func() string {
		if j = l.job("job"); !j.State.Ended() {
			return "the end of the job"
		}
		return ""
	})

	if j.State != store.JobFailed || !strings.Contains(j.Reason, "here") {
		t.Errorf("got job %+v", j)
	}

	l.replay("gone", replay.Spec{From: "here"})
	eventually(t, func() string {
		if j = l.job("gone"); !j.State.Ended() {
			return "the end of the job"
		}
		return ""
	})

	if j.State != store.JobRefused || !strings.Contains(j.Reason, "checkpoint here not found") {
		t.Errorf("got job %+v", j)
	}

	l.replay("log", replay.Spec{Since: time.Now().Add(-time.Hour), Read: replay.SourceLog})
	eventually(t, func() string {
		if j = l.job("log"); !j.State.Ended() {
			return "the end of the job"
		}
		return ""
	})

	if j.State != store.JobRefused || !strings.Contains(j.Reason, "as requested, because no log is retained from that time") {
		t.Errorf("got job %+v", j)
	}

	l.replay("since", replay.Spec{Since: time.Now().Add(-time.Hour)})
	if j := l.waitForState("since", store.JobDone); j.Source != "table" || j.Sent != 600 || !strings.HasPrefix(j.Reason, "from the table, because no log is retained from that time (PostgreSQL: `checkpoint create --keep-log`); ") {
		t.Errorf("got job %+v", j)
	}
}

// TestRetainedLogLimit: log above the limit of a checkpoint is released and reported.
func TestRetainedLogLimit(t *testing.T) {
	t.Parallel()
	h := postgresAt(t, servers.Start(t, postgresVersion(t), nil).URL) // without the log of other tests
	_, l := h.delivered(t, func(d *replay.Controller) { d.MaxRetainedBytes = 1 << 20 })
	h.exec(t, "CREATE TABLE unrelated AS SELECT i, repeat('x', 500) FROM generate_series(1, 5000) i")
	l.notify()
	eventually(t, func() string {
		list, err := l.store.Savepoints(l.ctx())
		if err != nil {
			t.Fatal(err)
		}
		if n := list[0]; n.State != store.SavepointLogLost || !strings.Contains(n.Reason, "max-kept") {
			l.notify()
			return "the end of the kept log"
		}
		return ""
	})

	l.replay("job", replay.Spec{From: "here"})
	if j := l.waitForState("job", store.JobDone); j.Source != "table" || j.Sent != 600 || !strings.Contains(j.Reason, "max-kept") {
		t.Errorf("got job %+v", j)
	}
}

// TestPausedGroups: a group that an operator has paused waits with its rows, before
// and during its turn. The job reports that, and other groups continue.
func TestPausedGroups(t *testing.T) {
	t.Parallel()
	_, to, l := deliveredFixture(t)
	lane := func(group string) dispatch.LaneName {
		return dispatch.LaneName{LaneKey: store.LaneKey{Outbox: "events", Kind: "EVENT", Group: store.GroupOf(group)}}
	}
	if err := l.lanes.Pause(l.ctx(), lane("a"), "an incident"); err != nil {
		t.Fatal(err)
	}

	l.replay("job", replay.Spec{From: "here", Rate: 200})
	eventually(t, func() string {
		if len(to.of("b", true)) == 0 {
			return "a row of the group that may go"
		}
		return ""
	})

	if err := l.lanes.Pause(l.ctx(), lane("b"), "another"); err != nil {
		t.Fatal(err)
	}

	eventually(t, func() string {
		if j := l.job("job"); j.State != store.JobPlaying || !strings.Contains(j.WaitsFor, "2 paused groups") {
			return "that it waits: " + j.Note()
		}
		return ""
	})

	if n := len(to.of("a", true)); n > 0 {
		t.Errorf("%d rows of the paused group arrived", n)
	}

	for _, group := range []string{"a", "b"} {
		if err := l.lanes.Resume(l.ctx(), lane(group)); err != nil {
			t.Fatal(err)
		}
	}

	if j := l.waitForState("job", store.JobDone); j.Sent != 600 || j.WaitsFor != "" {
		t.Errorf("got job %+v", j)
	}

	for _, group := range []string{"a", "b"} {
		if got := to.of(group, true); !slices.Equal(got, ids(group, 0, 300)) {
			t.Errorf("group %s: got %v", group, got)
		}
	}
}
