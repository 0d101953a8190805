package replay_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluicebox/sluicebox/checkpoint/replay"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest"
)

// downReceiver is a receiver that does not respond.
type downReceiver struct{ *receiver }

func (downReceiver) Deliver(context.Context, []sink.Message) (res sink.Result) {
	res.Class, res.Detail = sink.Unavailable, "down"
	return res
}

// insertEach returns a statement that inserts a row into each of some groups.
func insertEach(groups int, name string) string {
	var rows []string
	for g := range groups {
		rows = append(rows, fmt.Sprintf("('g%d-%s', 'g%d', '\"x\"')", g, name, g))
	}
	return "INSERT INTO outbox_events (id, message_group, payload) VALUES " + strings.Join(rows, ", ")
}

// TestSinkThatIsDownHoldsNoLiveRows: if the rows go to another sink that is down,
// the live rows of their groups are delivered, however many groups there are.
func TestSinkThatIsDownHoldsNoLiveRows(t *testing.T) {
	t.Parallel()
	const groups = 700
	h, to := postgres(t), newReceiver()
	ctx, cancel := context.WithCancel(context.Background())
	var work errgroup.Group
	l := startRelay(t, h, to, func(d *replay.Controller) {
		cfg := dispatch.DefaultConfig()
		other := dispatch.New(cfg, dispatch.Options{
			Store: d.Store.(storetest.Store), Sink: downReceiver{to}, Observer: logObserver{nil}, Epoch: d.Epoch, DrainTimeout: time.Second, Replays: d.Store,
		})
		work.Go(func() error { return other.Run(ctx) })
		d.Sinks["other"] = replay.Sink{Lanes: other, Config: cfg}
	})

	defer func() { cancel(); _ = work.Wait() }()
	l.createCheckpoint("here", true)
	h.exec(t, insertEach(groups, "1"), insertEach(groups, "2"))
	to.waitForLive(t, 2*groups)
	eventually(t, func() string { return l.wantOpen(0) })
	l.replay("job", replay.Spec{From: "here", Sink: "other"})
	l.waitForState("job", store.JobPlaying)
	h.exec(t, insertEach(groups, "live"))
	to.waitForLive(t, 3*groups)
	eventually(t, func() string { return l.wantOpen(0) })
	h.exec(t, insertEach(groups, "late"))
	to.waitForLive(t, 4*groups)
	l.setDesired("job", store.DesiredCancel)
	l.waitForState("job", store.JobCancelled)
}

// TestReplayFailsIfSinkIsRemoved: a job whose sink is removed from the configuration
// fails and names the sink.
func TestReplayFailsIfSinkIsRemoved(t *testing.T) {
	t.Parallel()
	h, to := postgres(t), newReceiver()
	l := startRelay(t, h, to, func(d *replay.Controller) { d.Sinks["other"] = d.Sinks["sink"] })
	l.createCheckpoint("here", true)
	h.exec(t, insert("a", ids("a", 0, 300)...))
	to.waitForLive(t, 300)
	l.replay("job", replay.Spec{From: "here", Sink: "other", Rate: 20})
	eventually(t, func() string {
		if len(to.of("a", true)) == 0 {
			return "nothing is sent again"
		}
		return ""
	})

	l.end()
	l = startRelay(t, h, to)
	if j := l.waitForState("job", store.JobFailed); !strings.Contains(j.Reason, `"other"`) {
		t.Errorf("got job %+v", j)
	}
}

// busyLanes are lanes with endless live rows. It counts the lanes on hold, and the pages that have rows of
// the group "many".
type busyLanes struct {
	replay.Lanes
	waiting                          bool // live rows of each lane wait
	finished, holds, maxHolds, pages atomic.Int64
}

func (c *busyLanes) Replay(job string, rows []store.ReplayRow) {
	if slices.ContainsFunc(rows, func(r store.ReplayRow) bool { return r.Group == store.GroupOf("many") }) {
		c.pages.Add(1)
	}
	c.Lanes.Replay(job, rows)
}

func (c *busyLanes) HeldLane(lane store.LaneKey) dispatch.HeldLane {
	held := c.Lanes.HeldLane(lane)
	held.Waiting = c.waiting
	return held
}

func (c *busyLanes) DoneCount() int64 { return c.finished.Add(1) }

func (c *busyLanes) HoldForReplay(job string, lane store.LaneKey) {
	c.maxHolds.Store(max(c.maxHolds.Load(), c.holds.Add(1)))
	c.Lanes.HoldForReplay(job, lane)
}

func (c *busyLanes) ReleaseReplayHold(job string, lane store.LaneKey) {
	c.holds.Add(-1)
	c.Lanes.ReleaseReplayHold(job, lane)
}

// TestFewLanesOnHoldBesideLiveRows: while live rows flow, no more lanes are on hold
// than a small page has rows.
func TestFewLanesOnHoldBesideLiveRows(t *testing.T) {
	t.Parallel()
	const groups = 120
	h, to, lanes := postgres(t), newReceiver(), &busyLanes{}
	l := startRelay(t, h, to, func(d *replay.Controller) {
		lanes.Lanes = d.Sinks["sink"].Lanes
		d.Sinks["sink"] = replay.Sink{Lanes: lanes, Config: d.Sinks["sink"].Config}
	})

	l.createCheckpoint("here", true)
	h.exec(t, insertEach(groups, "1"), insertEach(groups, "2"))
	to.waitForLive(t, 2*groups)
	eventually(t, func() string { return l.wantOpen(0) })
	l.replay("job", replay.Spec{From: "here"})
	if j := l.waitForState("job", store.JobDone); j.Sent != 2*groups {
		t.Errorf("got job %+v", j)
	}
	if most, left := lanes.maxHolds.Load(), lanes.holds.Load(); most == 0 || most > replay.SmallPage || left != 0 {
		t.Errorf("%d lanes on hold at once, %d left", most, left)
	}
}

// TestSlowJobFinishesALane: beside live rows, a lane with many rows does not wait for a turn of each other
// lane between two of its pages, and its pages are large if, and only if, its own live rows wait for its last.
func TestSlowJobFinishesALane(t *testing.T) {
	t.Parallel()
	t.Run("live rows of the lane wait", func(t *testing.T) { finishesALane(t, true) })
	t.Run("live rows of other lanes flow", func(t *testing.T) { finishesALane(t, false) })
}

func finishesALane(t *testing.T, waiting bool) {
	t.Helper()
	t.Parallel()
	const groups, many = 120, 300
	h, to, lanes := postgres(t), newReceiver(), &busyLanes{waiting: waiting}
	l := startRelay(t, h, to, func(d *replay.Controller) {
		lanes.Lanes = d.Sinks["sink"].Lanes
		d.Sinks["sink"] = replay.Sink{Lanes: lanes, Config: d.Sinks["sink"].Config}
	})
	l.createCheckpoint("here", true)
	h.exec(t, insert("many", ids("many", 0, many)...), insertEach(groups, "1"), insertEach(groups, "2"))
	to.waitForLive(t, many+2*groups)
	eventually(t, func() string { return l.wantOpen(0) })
	l.replay("job", replay.Spec{From: "here"})
	l.waitForState("job", store.JobDone)

	to.mu.Lock()
	defer to.mu.Unlock()
	left, others := many, 0
	for _, a := range to.arrivals {
		switch {
		case a.job == "" || left == 0:
		case a.group == "many":
			left--
		default:
			others++
		}
	}
	if left != 0 || others > groups {
		t.Errorf("%d rows of the lane are left, and %d of %d other rows came before its last", left, others, 2*groups)
	}
	if n := lanes.pages.Load(); waiting != (n <= 6) || !waiting && n < many/replay.SmallPage {
		t.Errorf("the %d rows of the lane came in %d pages, and its own live rows wait: %t", many, n, waiting)
	}
}
