package replay_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/sluicebox/sluicebox/checkpoint/replay"
	"github.com/sluicebox/sluicebox/store"
)

// ids returns the ids of a group's rows, numbered from from to to-1.
func ids(group string, from, to int) (list []string) {
	for i := from; i < to; i++ {
		list = append(list, fmt.Sprintf("%s-%03d", group, i))
	}
	return list
}

// TestReplayFromCheckpoint: a replay from a checkpoint sends all rows that committed
// after it and no others, in order, and deleted rows too. Live rows of its groups
// wait.
func TestReplayFromCheckpoint(t *testing.T) {
	h := postgres(t)
	to := newReceiver()
	l := startRelay(t, h, to)
	groups := []string{"a", "b", "c"}
	for _, g := range groups {
		h.exec(t, insert(g, ids(g, 0, 20)...))
	}

	to.waitForLive(t, 60)
	n := l.createCheckpoint("here", true)
	if n.State != store.SavepointRetained || n.Position == "" || n.Origin == "" || n.Seq == 0 || n.At.IsZero() {
		t.Fatalf("got checkpoint %+v", n)
	}

	for i := 20; i < 70; i += 10 {
		for _, g := range groups {
			h.exec(t, insert(g, ids(g, i, i+10)...))
		}
	}

	to.waitForLive(t, 60+150)
	eventually(t, func() string { return l.wantOpen(0) })
	h.exec(t, "DELETE FROM outbox_events WHERE id IN ('a-030', 'c-069')")

	// Live rows of the same groups arrive while the job runs.
	stop, wrote := make(chan struct{}), make(chan int)
	go func() {
		n := 70
		defer func() { wrote <- n }()
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, g := range groups {
				h.exec(t, insert(g, ids(g, n, n+1)...))
			}
			n++
		}
	}()

	l.replay("job", replay.Spec{From: "here"})
	j := l.waitForState("job", store.JobDone)
	close(stop)
	last := <-wrote
	to.waitForLive(t, 3*last)
	if j.Sent < 150 || j.Refused != 0 || j.Total != j.Sent+j.Skipped || j.Source != "log" || j.StartedAt.IsZero() || j.FinishedAt.IsZero() {
		t.Errorf("got job %+v", j)
	}

	t.Logf("%d live rows of each group; %+v", last, j)
	for _, g := range groups {
		if live := to.of(g, false); !slices.Equal(live, ids(g, 0, last)) {
			t.Errorf("got live rows %v", live)
		}
		again := to.of(g, true)
		if !slices.Equal(again, ids(g, 20, 20+len(again))) || len(again) < 50 {
			t.Errorf("got replayed rows %v", again)
		}
		if between := to.between(g); len(between) > 0 {
			t.Errorf("got live rows between replayed ones: %v", between)
		}
	}
}

// wantOpen reports the number of unsettled rows, unless it is want.
func (l *testRelay) wantOpen(want int) string {
	l.t.Helper()
	view, err := l.store.View(l.ctx(), "")
	if err != nil {
		l.t.Fatal(err)
	}
	defer view.Close()
	items, err := view.Unsettled(l.ctx(), store.UnsettledQuery{Outbox: "events", Limit: 10000})
	if err != nil {
		l.t.Fatal(err)
	}
	if len(items) != want {
		return fmt.Sprintf("%d rows are open, not %d", len(items), want)
	}
	return ""
}
