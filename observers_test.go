package sluicebox

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// countingSink counts rows.
type countingSink struct {
	noSinkObserver
	vanished, skipped int
}

func (c *countingSink) Vanished(rows []*store.Item) {
	for _, it := range rows {
		if it.Outbox == "events" {
			c.vanished++
		}
	}
}

func (c *countingSink) Requested(_ dispatch.RequestInfo, res *sink.Result, _ time.Duration) {
	c.skipped += res.Skipped
}

// Vanished rows are counted by outbox. At most one line in 10 s names the first rows and
// counts all since the previous line, so that a mass deletion does not flood the log.
func TestVanishedRowsAreNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &countingSink{}
		var said bytes.Buffer
		w := &sinkObserver{SinkObserver: m, sink: "platform", relay: &Relay{log: slog.New(slog.NewTextHandler(&said, nil))}}
		vanish := func(outbox string, n int) {
			rows := make([]*store.Item, n)
			for i := range rows {
				rows[i] = &store.Item{Ref: store.Ref{Outbox: outbox, ID: fmt.Sprint(i)}, Group: store.GroupOf("shop")}
			}
			w.Vanished(rows)
		}
		vanish("jobs", 1)
		for range 1000 {
			vanish("events", 500)
		}
		time.Sleep(alarmInterval)
		vanish("events", 2)
		lines := strings.Split(strings.TrimSpace(said.String()), "\n")
		want := []string{`outbox=jobs rows=1 ids=[0] groups=`, `outbox=events rows=500 ids="[0 1 2]" groups=`, `outbox=events rows=499502 ids="[0 1]" groups=`}
		if len(lines) != len(want) {
			t.Fatalf("%d lines, want %d:\n%s", len(lines), len(want), said.String())
		}
		for i, line := range lines {
			if !strings.Contains(line, want[i]) || !strings.Contains(line, "shop") {
				t.Errorf("line %d is %s, want %s", i, line, want[i])
			}
		}
		if n := m.vanished; n != 500_002 {
			t.Errorf("%d events are counted, want 500002", n)
		}
	})
}

// Rows skipped by the receiver are COMPLETED. A metric counts them, and the log has one
// summary line per interval.
func TestSkippedRowsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		m := &countingSink{}
		w := &sinkObserver{relay: &Relay{log: slog.New(slog.NewTextHandler(&log, nil))}, sink: "p", SinkObserver: m}
		for range 3 {
			w.Requested(dispatch.RequestInfo{Kind: "AUDIT_LOG", Rows: 5, Lanes: 1}, &sink.Result{Outcome: sink.Outcome{Class: sink.Delivered}, Skipped: 2}, 0)
			w.Requested(dispatch.RequestInfo{Kind: "EVENT", Rows: 5, Lanes: 1}, &sink.Result{Outcome: sink.Outcome{Class: sink.Delivered}}, 0)
			time.Sleep(alarmInterval * 2 / 3)
		}
		if n := m.skipped; n != 6 {
			t.Errorf("%d skipped rows are counted, want 6", n)
		}
		said := log.String()
		if strings.Count(said, "rows skipped by receiver") != 2 || !strings.Contains(said, "kind=AUDIT_LOG rows=2\n") || !strings.Contains(said, "kind=AUDIT_LOG rows=4\n") {
			t.Errorf("the log says:\n%s", said)
		}
	})
}

// A change that a sink noticed is logged each time.
func TestNoticesAreLogged(t *testing.T) {
	var log bytes.Buffer
	w := &sinkObserver{relay: &Relay{log: slog.New(slog.NewTextHandler(&log, nil))}, sink: "p", SinkObserver: &countingSink{}}
	for _, notice := range []string{"topic a grew", "", "topic b grew"} {
		w.Requested(dispatch.RequestInfo{Rows: 1, Lanes: 1}, &sink.Result{Outcome: sink.Outcome{Class: sink.Delivered}, Notice: notice}, 0)
	}
	if said := log.String(); strings.Count(said, "destination changed") != 2 || !strings.Contains(said, `sink=p notice="topic b grew"`) {
		t.Errorf("the log says:\n%s", said)
	}
}

// An alarm is logged once per interval, does not hide other alarms, and a storm of alarms
// is limited.
func TestRepeatedAlarmsAreSuppressed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &sinkObserver{}
		for _, step := range []struct {
			alarm string
			due   bool
			then  time.Duration
		}{
			{"outcome of row 1", true, alarmInterval / 2},
			{"outcome of row 1", false, 0},
			{"outcome of row 2", true, alarmInterval / 2},
			{"outcome of row 1", true, 0},
			{"outcome of row 2", false, 2 * alarmInterval},
		} {
			if got := w.shouldLog(step.alarm); got != step.due {
				t.Errorf("after %s the alarm %q is due: %t", step.then, step.alarm, got)
			}
			time.Sleep(step.then)
		}
		said := 0
		for i := range 10 * maxAlarms {
			if w.shouldLog(fmt.Sprint("claim of row ", i)) {
				said++
			}
		}
		if said != maxAlarms {
			t.Errorf("%d alarms at once, want %d", said, maxAlarms)
		}
	})
}

// TestLockedOutboxFailsNoDatabase checks that rows and tables locked by another session
// are logged but do not fail the database check.
func TestLockedOutboxFailsNoDatabase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		m := &countingSink{}
		r := &Relay{log: slog.New(slog.NewTextHandler(&log, nil)), health: newHealth()}
		r.health.replaceAll(passedCheck("database", "reached"))
		w := &sinkObserver{SinkObserver: m, sink: "platform", relay: r}
		for range 15 { // one line in 10 s
			w.StoreFailed("wait for locked table of outbox events", &store.OutboxLockedError{Outbox: "events"})
			w.StoreFailed("settle locked rows of jobs", &store.OutboxLockedError{Outbox: "jobs", Rows: 7})
			time.Sleep(time.Second)
		}
		for _, c := range r.health.Checks() {
			if !c.OK {
				t.Errorf("%s failed: %s", c.Name, c.Detail)
			}
		}
		for text, want := range map[string]int{"table locked by": 2, "7 rows locked": 2, "outbox locked by another session": 4} {
			if n := strings.Count(log.String(), text); n != want {
				t.Errorf("%q is logged %d times, want %d:\n%s", text, n, want, log.String())
			}
		}
	})
}

// One of many endpoints that rows name is down. The others are served, so the relay is ready.
func TestBreakersOfEndpointsThatRowsName(t *testing.T) {
	r := &Relay{log: slog.New(slog.DiscardHandler), health: newHealth()}
	w := &sinkObserver{SinkObserver: &countingSink{}, sink: "customers", relay: r}
	down := dispatch.OpenBreaker{Endpoint: "https://a.example", LastFailure: sink.Outcome{Class: sink.Unavailable}, Named: true}
	all := []dispatch.OpenBreaker{down, down, down, down}
	for i := range all {
		all[i].Endpoint = fmt.Sprintf("https://%c.example", 'a'+i)
	}
	w.BreakersChanged(all)
	const want = "rows wait for 4 of the endpoints that rows name; circuit breaker open for https://a.example, https://b.example, https://c.example"
	if !slices.ContainsFunc(r.health.Checks(), func(c Check) bool { return c.Detail == want && c.OK }) {
		t.Errorf("got checks %+v, want %q", r.health.Checks(), want)
	}
	all[3].Named = false
	w.BreakersChanged(all)
	if slices.ContainsFunc(r.health.Checks(), func(c Check) bool { return c.OK }) {
		t.Errorf("got checks %+v, want one that fails", r.health.Checks())
	}
}

// TestBreakerOfUnnamedEndpoint checks that neither the log nor the readiness check has an
// empty name for the endpoint of a sink that has only one.
func TestBreakerOfUnnamedEndpoint(t *testing.T) {
	for endpoint, want := range map[string]struct{ logged, detail string }{
		"":      {"sink=platform class=rejected ", "no rows waiting; circuit breaker open"},
		"/jobs": {"sink=platform endpoint=/jobs class=rejected ", "no rows waiting; circuit breaker open for /jobs"},
	} {
		var log bytes.Buffer
		m := &countingSink{}
		r := &Relay{log: slog.New(slog.NewTextHandler(&log, nil)), health: newHealth()}
		w := &sinkObserver{SinkObserver: m, sink: "platform", relay: r}
		w.BreakersChanged([]dispatch.OpenBreaker{{Endpoint: endpoint, LastFailure: sink.Outcome{Class: sink.Rejected}, Idle: true}})
		if !slices.ContainsFunc(r.health.Checks(), func(c Check) bool { return c.Detail == want.detail }) {
			t.Errorf("endpoint %q: got checks %+v, want %q", endpoint, r.health.Checks(), want.detail)
		}

		w.BreakersChanged(nil)
		if text := log.String(); !strings.Contains(text, want.logged) || strings.Contains(text, "endpoint=") != (endpoint != "") {
			t.Errorf("endpoint %q: got log\n%swant %q", endpoint, text, want.logged)
		}
	}
}

// TestSinkWithoutBreakers checks that the first accepted row proves a sink whose circuit
// breakers never change, and that a late response does not hide an open breaker.
func TestSinkWithoutBreakers(t *testing.T) {
	r := &Relay{log: slog.New(slog.DiscardHandler), health: newHealth()}
	w := &sinkObserver{SinkObserver: &countingSink{}, sink: "receiver", relay: r}
	expect := func(want string) {
		t.Helper()
		if !slices.ContainsFunc(r.health.Checks(), func(c Check) bool { return c.Name == "sink receiver" && c.Detail == want }) {
			t.Errorf("got checks %+v, want %q", r.health.Checks(), want)
		}
	}
	request := func(class sink.Class) {
		w.Requested(dispatch.RequestInfo{Rows: 1}, &sink.Result{Outcome: sink.Outcome{Class: class}}, 0)
	}
	w.reset()
	expect("no request sent yet")
	request(sink.Rejected)
	expect("no row accepted yet")
	request(sink.Delivered)
	expect("delivers")

	w.reset()
	w.BreakersChanged([]dispatch.OpenBreaker{{LastFailure: sink.Outcome{Class: sink.Unavailable, Detail: "refused"}}})
	request(sink.Delivered)
	expect("circuit breaker open: unavailable: refused")
}

// The log says what becomes of a row whose late claim its table refuses: it is not claimed again.
func TestRefusedClaimsInTheLog(t *testing.T) {
	for op, want := range map[string]string{
		dispatch.LateClaim: `msg="late claim refused by table; outcome follows" sink=p outbox=events id=7 op="late claim" error="no claims"`,
		dispatch.Claim:     `msg="row refused by its table; retrying" sink=p outbox=events id=7 op=claim error="no claims"`,
		"COMPLETED":        `msg="row refused by its table; retrying" sink=p outbox=events id=7 op=COMPLETED error="no claims"`,
	} {
		var log bytes.Buffer
		w := &sinkObserver{relay: &Relay{log: slog.New(slog.NewTextHandler(&log, nil))}, sink: "p", SinkObserver: &countingSink{}}
		for range 2 {
			w.Refused(store.Ref{Outbox: "events", ID: "7"}, op, errors.New("no claims"))
		}
		if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, want) {
			t.Errorf("%s: the log has\n%swant once %q", op, got, want)
		}
	}
}
