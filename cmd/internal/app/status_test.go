package app

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

// fakeRelay is a relay with a given state, lanes and numbers of FAILED rows.
type fakeRelay struct {
	status sluicebox.Status
	checks []sluicebox.Check
	lanes  []dispatch.LaneInfo

	failed map[string]int
	err    error
	takes  time.Duration
	asked  int
}

func (f *fakeRelay) Status() sluicebox.Status  { return f.status }
func (f *fakeRelay) Leader() (bool, string)    { return f.status.Leads, "leading, epoch 1" }
func (f *fakeRelay) Checks() []sluicebox.Check { return f.checks }
func (f *fakeRelay) Working() bool             { return true }
func (f *fakeRelay) Ping()                     {}

// fakeLanes and fakeLetters are the parts of a fakeRelay whose methods have the same names.
type (
	fakeLanes struct {
		admin.Lanes
		*fakeRelay
	}
	fakeLetters struct {
		admin.DeadLetters
		*fakeRelay
	}
)

func (f fakeLanes) List(dispatch.LaneFilter, int) ([]dispatch.LaneInfo, int, error) {
	return f.lanes, len(f.lanes), nil
}

func (f fakeLetters) Count(ctx context.Context, of store.DeadLetterFilter) (int, error) {
	f.asked++
	select {
	case <-time.After(f.takes):
		return f.failed[of.Outbox], f.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (f fakeLetters) Requeue(context.Context, store.DeadLetterFilter, int) (int, error) {
	return 1, nil
}
func (f fakeLetters) Discard(context.Context, store.DeadLetterFilter, int) (int, error) {
	return 1, nil
}

// fakeRoutes are the routes of a fakeRelay: one of an outbox with routes, and an outbox without.
type fakeRoutes struct{ relayRoutes }

func (fakeRoutes) List() ([]sluicebox.RouteStatus, error) {
	return []sluicebox.RouteStatus{
		{RouteName: sluicebox.RouteName{Outbox: "bills", Route: "bus"}, Sink: "near", Optional: true, OutboxStats: dispatch.OutboxStats{Waiting: 7}},
		{RouteName: sluicebox.RouteName{Outbox: "orders"}, Sink: "far"},
	}, nil
}

// reportingProgram returns a program with a leader that has two sinks.
func reportingProgram(t *testing.T) (p *program, r *fakeRelay) {
	t.Helper()
	r = &fakeRelay{failed: map[string]int{"orders": 3}, status: sluicebox.Status{
		Holder: "me", Leads: true, Epoch: 4, Leader: "me", Mode: sluicebox.ModeStream, SourceDetail: "reading the log",
		Claims:     sluicebox.ClaimsStatus{Mode: sluicebox.ClaimsOn, Reason: "why"},
		Source:     sluicebox.SourceStatus{Connected: true, Position: "there", RetainedBytes: new(int64(4096)), RetainedLimitBytes: new(int64(1 << 30))},
		Checkpoint: sluicebox.CheckpointStatus{Position: "saved", Seq: 8, SavedAt: new(time.Now())},
		Sinks: map[string]sluicebox.SinkStatus{
			"near": {Stats: dispatch.Stats{Waiting: 2, Lanes: map[string]int{"ready": 1}}},
			"far":  {Stats: dispatch.Stats{Waiting: 3, Lanes: map[string]int{}, Oldest: time.Now().Add(-time.Minute)}},
		},
	}}
	_, metrics := newTestMetrics(t)
	p = &program{
		version: "1.2.3", startedAt: time.Now(), metrics: metrics,
		relay: r, lanes: fakeLanes{fakeRelay: r}, routes: fakeRoutes{}, deadLetters: observedLetters{fakeLetters{fakeRelay: r}, metrics},
	}
	p.cfg.Store(loadConfig(t, twoSinks))
	return p, r
}

func TestReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := reportingProgram(t)
		p.metrics.Captured("orders", 20)
		p.metrics.Sink("near").Settled(&store.Item{}, &store.Outcome{Status: store.Completed})
		p.metrics.Sink("near").Settled(&store.Item{}, &store.Outcome{Status: store.Failed})
		p.metrics.Sink("far").Settled(&store.Item{}, &store.Outcome{Status: store.Pending, Error: "no"})
		saved := time.Now()
		time.Sleep(2 * time.Second)
		s := p.Report(t.Context(), false)
		if s.Version != "1.2.3" || s.Holder != "me" || s.Leader != "me" || s.Epoch != 4 || !s.IsLeader || s.Uptime != 2 || s.Mode != "stream" ||
			s.SourceDetail != "reading the log" || s.Claims != p.relay.Status().Claims || s.Claims.Reason != "why" || s.Failed != nil ||
			!s.Source.Connected || s.Source.Position != "there" || *s.Source.RetainedBytes != 4096 || *s.Source.RetainedLimitBytes != 1<<30 ||
			s.Checkpoint.Position != "saved" || s.Checkpoint.Seq != 8 || !s.Checkpoint.SavedAt.Equal(saved) ||
			s.Lag.Rows != 5 || *s.Lag.Seconds != 62 || s.Captured.TenSeconds != 10 {
			t.Errorf("%+v", s)
		}
		if len(s.Sinks) != 2 || s.Sinks[0].Name != "far" || s.Sinks[0].Waiting != 3 || s.Sinks[0].Retried.TenSeconds != .5 ||
			s.Sinks[1].Delivered.Minute != .5 || s.Sinks[1].Failed.Minute != .5 || s.Sinks[1].Lanes["ready"] != 1 {
			t.Errorf("%+v", s.Sinks)
		}
		if len(s.Routes) != 2 || s.Routes[0].Route != "bus" || s.Routes[0].Need != "optional" || s.Routes[0].Lag.Rows != 7 || s.Routes[1].Sink != "far" {
			t.Errorf("%+v", s.Routes)
		}
		if text, err := json.Marshal(s); err != nil || strings.Contains(string(text), `"sinks":null`) || strings.Contains(string(text), `"lanes":null`) {
			t.Errorf("%s %v", text, err)
		}
	})
}

func TestReportOfLanesAndReplays(t *testing.T) {
	p, r := reportingProgram(t)
	r.lanes = []dispatch.LaneInfo{{LaneKey: store.LaneKey{Outbox: "bills", Group: store.GroupOf("stands")}, Reason: "stock-taking"}}
	r.status.Replays = sluicebox.ReplayStatus{Current: &store.Job{ID: "begun", Total: 7, Sent: 3}, Waiting: 2, Paused: 1}
	s := p.Report(t.Context(), false)
	if s.LanesTotal != 1 || len(s.Lanes) != 1 || s.Lanes[0].Group.Name != "stands" || s.Lanes[0].Reason != "stock-taking" {
		t.Errorf("%+v", s.Lanes)
	}
	if s.Replays.Waiting != 2 || s.Replays.Paused != 1 || s.Replays.Current.ID != "begun" || s.Replays.Current.Rows != 7 || s.Replays.Current.Sent != 3 {
		t.Errorf("%+v", s.Replays)
	}
}

func TestReportOfStandby(t *testing.T) {
	p, r := reportingProgram(t)
	r.status = sluicebox.Status{Holder: "me", Leader: "host process 7"}
	s := p.Report(t.Context(), true)
	if s.IsLeader || s.Leader != "host process 7" || s.Mode != "" || s.Failed != nil || len(s.Sinks) != 0 || s.Source.LastReceivedAt != nil || s.Source.RetainedBytes != nil {
		t.Errorf("%+v", s)
	}
}

// One count of FAILED rows serves all callers that ask soon after. The longer a count
// takes, the longer it is cached. A failed count reports its error.
func TestCountOfFailedRowsIsCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := reportingProgram(t)
		count := func(asked int) {
			t.Helper()
			got := p.Report(t.Context(), true).Failed
			if len(got) != 2 || got[1].Outbox != "orders" || r.asked != asked {
				t.Errorf("%+v after %d counts, want %d", got, r.asked, asked)
			}
		}
		r.takes = 100 * time.Millisecond
		count(2)
		count(2)
		time.Sleep(11 * time.Second)
		r.takes = time.Second // for each of two outboxes
		count(4)
		time.Sleep(39 * time.Second)
		count(4)
		time.Sleep(2 * time.Second)
		count(6)
		got := p.Report(t.Context(), true).Failed
		if *got[0].Rows != 0 || *got[1].Rows != 3 {
			t.Errorf("%+v", got)
		}
		r.status.Epoch++
		count(8) // the counts of another leader are not shown
		item := store.Item{Ref: store.Ref{Outbox: "orders", ID: "1"}}
		p.metrics.sink("near").Settled(&item, &store.Outcome{Status: store.Failed})
		time.Sleep(39 * time.Second)
		count(8) // the counts took long
		time.Sleep(2 * time.Second)
		r.takes = time.Millisecond
		count(10)
		for _, do := range []func(context.Context, store.DeadLetterFilter, int) (int, error){p.deadLetters.Requeue, p.deadLetters.Discard} {
			if _, err := do(t.Context(), store.DeadLetterFilter{}, 1); err != nil {
				t.Fatal(err)
			}
			time.Sleep(50 * time.Millisecond)
			asked := r.asked + 2
			count(asked) // a change is counted soon
			time.Sleep(time.Second)
			count(asked)
		}
		time.Sleep(time.Hour)
		r.takes = time.Minute
		began := time.Now()
		got = p.Report(t.Context(), true).Failed
		if took := time.Since(began); took != countTimeout || got[0].Rows != nil || !strings.Contains(got[0].Error, "timeout after 5s") {
			t.Errorf("after %s: %+v", took, got)
		}
		time.Sleep(time.Hour)
		r.takes, r.err = 0, errors.New("permission denied")
		if got := p.Report(t.Context(), true).Failed; got[1].Rows != nil || got[1].Error != "permission denied" {
			t.Errorf("%+v", got)
		}
	})
}

// The line for the service manager names the source, and every check that fails.
func TestSummary(t *testing.T) {
	p, r := reportingProgram(t)
	r.checks = []sluicebox.Check{{Name: "database", OK: true, Detail: "reached"}, {Name: "source", OK: true, Detail: "reading the log"}}
	if line := p.summary(); line != "leading, epoch 1; reading the log" {
		t.Errorf("the line is %q", line)
	}
	r.checks[1] = sluicebox.Check{Name: "source", Detail: "no message from the log for 2m0s"}
	if line := p.summary(); line != "leading, epoch 1; source: no message from the log for 2m0s" {
		t.Errorf("the line of a silent stream is %q", line)
	}
}
