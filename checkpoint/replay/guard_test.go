package replay_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluicebox/sluicebox/checkpoint/replay"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// down is a receiver that does not respond.
type down struct{ *receiver }

func (down) Deliver(context.Context, []sink.Message) (res sink.Result) {
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

// TestASinkThatIsDownHoldsNoLiveRows: if the rows go to another sink that is down,
// the live rows of their groups are delivered, however many groups there are.
func TestASinkThatIsDownHoldsNoLiveRows(t *testing.T) {
	t.Parallel()
	const groups = 700
	h, to := postgres(t), newReceiver()
	ctx, cancel := context.WithCancel(context.Background())
	var work errgroup.Group
	l := lead(t, h, to, func(d *replay.Controller) {
		cfg := dispatch.DefaultConfig()
		other := dispatch.New(cfg, d.Store.(store.Store), down{to}, d.Epoch, quiet{nil}, time.Second)
		other.Replays = d.Store
		work.Go(func() error { return other.Run(ctx) })
		d.Sinks["other"] = replay.Sink{Lanes: other, Config: cfg}
	})

	defer func() { cancel(); _ = work.Wait() }()
	l.named("here", true)
	h.exec(t, insertEach(groups, "1"), insertEach(groups, "2"))
	to.live(t, 2*groups)
	until(t, func() string { return l.open(0) })
	l.replay("job", replay.Spec{From: "here", Sink: "other"})
	l.becomes("job", store.JobPlaying)
	h.exec(t, insertEach(groups, "live"))
	to.live(t, 3*groups)
	until(t, func() string { return l.open(0) })
	h.exec(t, insertEach(groups, "late"))
	to.live(t, 4*groups)
	l.wish("job", store.DesiredCancel)
	l.becomes("job", store.JobCancelled)
}

// TestTheSinkOfAReplayGoes: a job whose sink is removed from the configuration fails
// and names the sink.
func TestTheSinkOfAReplayGoes(t *testing.T) {
	t.Parallel()
	h, to := postgres(t), newReceiver()
	l := lead(t, h, to, func(d *replay.Controller) { d.Sinks["other"] = d.Sinks["sink"] })
	l.named("here", true)
	h.exec(t, insert("a", ids("a", 0, 300)...))
	to.live(t, 300)
	l.replay("job", replay.Spec{From: "here", Sink: "other", Rate: 20})
	until(t, func() string {
		if len(to.of("a", true)) == 0 {
			return "nothing is sent again"
		}
		return ""
	})

	l.end()
	l = lead(t, h, to)
	if j := l.becomes("job", store.JobFailed); !strings.Contains(j.Reason, `"other"`) {
		t.Errorf("the job is %+v", j)
	}
}

// crowded are lanes with endless live rows. It counts the lanes on hold.
type crowded struct {
	replay.Lanes
	gone, stand, most atomic.Int64
}

func (c *crowded) DoneCount() int64 { return c.gone.Add(1) }

func (c *crowded) HoldForReplay(job string, lane store.LaneKey) {
	c.most.Store(max(c.most.Load(), c.stand.Add(1)))
	c.Lanes.HoldForReplay(job, lane)
}

func (c *crowded) ReleaseReplayHold(job string, lane store.LaneKey) {
	c.stand.Add(-1)
	c.Lanes.ReleaseReplayHold(job, lane)
}

// TestFewLanesStandBesideLiveRows: while live rows flow, no more lanes are on hold
// than a small page has rows.
func TestFewLanesStandBesideLiveRows(t *testing.T) {
	t.Parallel()
	const groups = 120
	h, to, lanes := postgres(t), newReceiver(), &crowded{}
	l := lead(t, h, to, func(d *replay.Controller) {
		lanes.Lanes = d.Sinks["sink"].Lanes
		d.Sinks["sink"] = replay.Sink{Lanes: lanes, Config: d.Sinks["sink"].Config}
	})

	l.named("here", true)
	h.exec(t, insertEach(groups, "1"), insertEach(groups, "2"))
	to.live(t, 2*groups)
	until(t, func() string { return l.open(0) })
	l.replay("job", replay.Spec{From: "here"})
	if j := l.becomes("job", store.JobDone); j.Sent != 2*groups {
		t.Errorf("the job is %+v", j)
	}
	if most, left := lanes.most.Load(), lanes.stand.Load(); most == 0 || most > replay.SmallPage || left != 0 {
		t.Errorf("%d lanes stood at once, and %d stand", most, left)
	}
}
