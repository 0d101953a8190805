package blackbox

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// explainRest makes failures visible for longer than the test: no retry, no reload and no request ends
// within it. The buffer is small, so that a burst is spilled.
const explainRest = `dispatch: {max-retries: 0, on-failed: block, backoff: {initial: 2m, max: 3m}, request-timeout: 3m, global-buffer-size: 60}
checkpoint: {sweep-interval: 5m}
`

// explainCase is a row, and what `explain` says of it.
type explainCase struct {
	name, outbox, id string
	cause            string
	says             []string // more texts
}

// explain returns the command's output for a row of an outbox.
func (r *relay) explain(outbox, id string, more ...string) (stdout string, code int) {
	r.t.Helper()
	stdout, stderr, code := command(r.t, nil, append([]string{"explain", id, "--outbox", outbox, "--admin", r.admin}, more...)...)
	if code > 1 {
		r.t.Fatalf("explain %s of %s: exit code %d\n%s%s", id, outbox, code, stdout, stderr)
	}
	return stdout, code
}

// expectExplained waits until each row has its cause, and expects the texts.
func (r *relay) expectExplained(cases []explainCase) {
	r.t.Helper()
	for _, c := range cases {
		within(r.t, testTimeout, func() string {
			text, _ := r.explain(c.outbox, c.id)
			for _, part := range append([]string{"why        " + c.cause + ":"}, c.says...) {
				if !strings.Contains(text, part) {
					return fmt.Sprintf("%s: no %q in\n%s", c.name, part, text)
				}
			}
			return ""
		})
	}
}

// explainScript answers by the group of the rows: see TestExplainNamesTheCause. Jobs get 401.
func explainScript(hang <-chan struct{}) sinktest.Script {
	return func(r *sinktest.Request) sinktest.Answer {
		body := string(r.Body)
		switch {
		case r.Kind != "EVENT":
			return sinktest.Answer{Status: http.StatusUnauthorized, Body: []byte("token expired")}
		case strings.Contains(body, `"slow"`):
			return sinktest.Answer{Status: http.StatusServiceUnavailable, Body: []byte("down for maintenance")}
		case strings.Contains(body, `"bad"`):
			return sinktest.Answer{Status: http.StatusUnprocessableEntity, Body: []byte("no such customer")}
		case strings.Contains(body, `"hanging"`):
			return sinktest.Answer{Release: hang}
		}
		return sinktest.Answer{}
	}
}

// explainRow inserts a row whose group is in its payload.
func (s *scene) explainRow(table, id, kind, group string) {
	s.t.Helper()
	s.exec(fmt.Sprintf("INSERT INTO %s (id, type, message_group, payload, status, created_at) VALUES ('%s', '%s', '%s', '{\"id\": \"%[2]s\", \"group\": \"%[4]s\"}', 'PENDING', now())",
		table, id, kind, group))
}

// `sluicebox explain` names the right cause for rows in each state that an operator meets, also after
// lanes are spilled, and after the leader has been replaced: then the attempts before are still known.
// A standby and a command without a relay say what the database has, and who leads.
func TestExplainNamesTheCause(t *testing.T) {
	t.Parallel()
	aScene(t, explainRest, func(s *scene) {
		s.exec(fmt.Sprintf(s.kind.object, theRefused))
		hang := make(chan struct{})
		defer close(hang)
		s.to.Script(explainScript(hang))
		r := s.run()
		events := func(id, group string) { s.explainRow("outbox_events", id, "EVENT", group) }

		cases := []explainCase{
			{"delivered", "outbox_events", "DELIVERED0001", "delivered", []string{"delivered", "settled    COMPLETED", "captured", "table      COMPLETED"}},
			{"a receiver in maintenance", "outbox_events", "SLOW000000001", "backoff", []string{"attempt", "unavailable 503", "down for maintenance", "until", "retry-now"}},
			{"behind it in its group", "outbox_events", "SLOW000000002", "behind", []string{"1 of them in memory; the first is SLOW000000001: the latest attempt failed", "down for maintenance"}},
			{"a bad row", "outbox_events", "BAD0000000001", "failed", []string{"rejected 422", "no such customer", "settled    FAILED", "deadletters requeue BAD0000000001 --outbox outbox_events"}},
			{"behind the bad row", "outbox_events", "BAD0000000002", "blocked", []string{"the FAILED row is BAD0000000001", "lanes skip"}},
			{"a paused group", "outbox_events", "PAUSED0000001", "lane_paused", []string{"reason     receiver migrates", "lanes resume"}},
			{"an endpoint with a wrong token", "outbox_dispatch_jobs", "JOB0000000001", "breaker_open", []string{"class misconfigured", "401", "token expired"}},
			{"a table that refuses the outcome", "outbox_events", theRefused, "refused", []string{"not this one", "trigger"}},
			{"a receiver that does not answer", "outbox_events", "HANGING000001", "in_flight", []string{"since"}},
			{"behind a hanging row", "outbox_events", "HANGING000002", "behind", []string{"the first is HANGING000001: it was sent, and the receiver has not answered yet"}},
		}
		r.operate("lanes", "pause", "--outbox", "outbox_events", "--kind", "EVENT", "--group", "paused", "--reason", "receiver migrates")
		for i, group := range []string{"fine", "slow", "slow", "bad", "bad", "paused", "", "refused", "hanging", "hanging"} {
			if c := &cases[i]; c.outbox == "outbox_events" {
				events(c.id, group)
			} else {
				s.explainRow(c.outbox, c.id, "DISPATCH_JOB", "jobs")
			}
			r.expectExplained(cases[i : i+1])
		}

		// A burst in the paused group is spilled, and so are other lanes that do not move.
		last := ""
		for i := range 100 {
			last = fmt.Sprintf("PAUSED%07d", i+2)
			events(last, "paused")
		}
		within(t, testTimeout, func() string {
			if r.metric(`sluicebox_spilled_rows{sink="flowcatalyst"}`) < 50 {
				return "the burst is not spilled"
			}
			return ""
		})
		events("SLOW000000003", "slow")
		r.expectExplained(append(cases,
			explainCase{"spilled under pressure", "outbox_events", last, "lane_paused", []string{"spilled to the relay's tables meanwhile", "reason     receiver migrates"}},
			explainCase{"spilled behind a failing row", "outbox_events", "SLOW000000003", "behind", []string{"the first is SLOW000000001: the latest attempt failed"}}))

		text, code := r.explain("outbox_events", "NOSUCHROW0001")
		if code != 1 || !strings.Contains(text, "why        unknown:") {
			t.Errorf("an unknown id: exit code %d, want 1, and the cause unknown:\n%s", code, text)
		}
		s.expectRowJSON(r)
		s.expectExplainedElsewhere(r)
	})
}

// expectRowJSON expects the fields of the JSON form, which scripts use.
func (s *scene) expectRowJSON(r *relay) {
	s.t.Helper()
	text, _ := r.explain("outbox_events", "SLOW000000001", "--json")
	var row struct {
		Leads bool
		Cause string
		Legs  []struct {
			Until    time.Time
			Attempts []struct {
				StartedAt    time.Time `json:"started_at"`
				Seconds      float64
				Class, Error string
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &row); err != nil || !row.Leads || row.Cause != "backoff" || len(row.Legs) != 1 || len(row.Legs[0].Attempts) != 1 {
		s.t.Fatalf("the row as JSON (%v): %s", err, text)
	}
	leg := &row.Legs[0]
	if a := &leg.Attempts[0]; a.Class != "unavailable" || a.StartedAt.IsZero() || a.Seconds <= 0 || !strings.Contains(a.Error, "maintenance") || !leg.Until.After(time.Now()) {
		s.t.Errorf("the attempt is %+v until %s", a, leg.Until)
	}
}

// expectExplainedElsewhere asks a standby, the database alone, and a successor.
func (s *scene) expectExplainedElsewhere(r *relay) {
	s.t.Helper()
	standby := start(s.t, s.config)
	standby.waitFor("standing by")
	leader := fmt.Sprintf("process %d", r.cmd.Process.Pid)
	attempt := []string{"unavailable 503", "down for maintenance"}
	standby.expectExplained([]explainCase{
		{"from a standby", "outbox_events", "SLOW000000001", "no_leader", append(attempt, leader)},
		{"FAILED, from a standby", "outbox_events", "BAD0000000001", "failed", []string{"rejected 422", "no such customer"}},
		{"delivered, from a standby", "outbox_events", "DELIVERED0001", "delivered", nil},
	})

	r.kill()
	standby.waitFor("leadership acquired")
	standby.expectExplained([]explainCase{
		{"under a successor", "outbox_events", "SLOW000000001", "backoff", append(attempt, "attempts   2")},
		{"behind it under a successor", "outbox_events", "SLOW000000002", "behind", nil},
		{"FAILED under an earlier leader", "outbox_events", "BAD0000000001", "failed", []string{"attempt", "rejected 422"}},
		{"still paused", "outbox_events", "PAUSED0000001", "lane_paused", []string{"receiver migrates"}},
	})
	standby.kill()
	stdout, stderr, code := command(s.t, nil, "explain", "SLOW000000001", "--outbox", "outbox_events", "-c", configFile(s.t, strings.Replace(s.config, adminKey, freeAddress(s.t), 1)))
	if code != 0 || !strings.Contains(stdout, "why        no_leader:") || !strings.Contains(stdout, "503") {
		s.t.Errorf("without a relay: exit code %d\n%s%s", code, stdout, stderr)
	}
}

// A row that no route matches, and a row whose routes differ, are explained route by route.
func TestExplainNamesTheCauseByRoute(t *testing.T) {
	t.Parallel()
	onLayoutHosts(t, rulesCase(), func(l *layoutScene) {
		s := newRoutesScene(l, "stream", "bus", "hooks")
		s.config = strings.NewReplacer("sink: bus, need: required", "sink: bus, when: {type: OrderPaid}",
			"sink: hooks, need: required}]", "sink: hooks, when: {type: OrderPaid}}], unmatched: hold").Replace(s.config)
		r := s.run()
		r.operate("routes", "pause", "--route", "hooks", "--reason", "an incident")
		matched, unmatched := &layoutRow{Group: 1, N: 1}, &layoutRow{Group: 3, N: 1}
		if err := s.commit([]*layoutRow{matched, unmatched}); err != nil {
			s.t.Fatal(err)
		}
		r.expectExplained([]explainCase{
			{"a paused route", s.table, matched.ID, "route_paused", []string{"route      hooks, required", "reason     an incident", "routes resume --outbox " + s.table + " --route hooks", "route      bus, required", "why        delivered:"}},
			{"no route", s.table, unmatched.ID, "unmatched", []string{"add a route that matches it"}},
		})
		expectStop(s.t, r)
	})
}

// The cheaper causes on the other kinds of databases, also of a spilled row and without a relay.
func TestExplainReadsEachKindOfDatabase(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		aPostgres(t, explainRest, func(s *scene) {
			expectExplainedCheaply(s.t, s.to, s.config, s.run, func(id, group string) { s.explainRow("outbox_events", id, "EVENT", group) })
		})
	})
	t.Run("mongo", func(t *testing.T) {
		t.Parallel()
		aMongo(t, explainRest, func(s *mongoScene) {
			expectExplainedCheaply(s.t, s.to, s.config, s.run, func(id, group string) {
				document := bson.D{{Key: "_id", Value: id}, {Key: "type", Value: "EVENT"}, {Key: "messageGroup", Value: group}, {Key: "status", Value: "PENDING"},
					{Key: "payload", Value: fmt.Sprintf(`{"id": %q, "group": %q}`, id, group)}, {Key: "createdAt", Value: time.Now()}}
				if _, err := s.db.Collection("outbox_events").InsertOne(s.t.Context(), document); err != nil {
					s.t.Fatal(err)
				}
			})
		})
	})
}

func expectExplainedCheaply(t *testing.T, to *sinktest.Receiver, config string, run func() *relay, events func(id, group string)) {
	t.Helper()
	to.Script(explainScript(nil))
	r := run()
	r.operate("lanes", "pause", "--outbox", "outbox_events", "--kind", "EVENT", "--group", "paused", "--reason", "receiver migrates")
	last := ""
	for i := range 80 { // more than the buffer
		last = fmt.Sprintf("PAUSED%07d", i+1)
		events(last, "paused")
	}
	events("DELIVERED0001", "fine")
	events("SLOW000000001", "slow")
	events("SLOW000000002", "slow")
	events("BAD0000000001", "bad")
	events("BAD0000000002", "bad")
	failure := "unavailable 503"
	r.expectExplained([]explainCase{
		{"delivered", "outbox_events", "DELIVERED0001", "delivered", []string{"table      COMPLETED"}},
		{"failing", "outbox_events", "SLOW000000001", "backoff", []string{failure, "lanes retry-now"}},
		{"behind it", "outbox_events", "SLOW000000002", "behind", []string{"the first is SLOW000000001"}},
		{"FAILED", "outbox_events", "BAD0000000001", "failed", []string{"rejected 422", "lanes skip"}},
		{"behind the FAILED row", "outbox_events", "BAD0000000002", "blocked", []string{"the FAILED row is BAD0000000001"}},
		{"spilled", "outbox_events", last, "lane_paused", []string{"spilled to the relay's tables", "reason     receiver migrates"}},
	})

	// A command that reaches no relay reads the database, which has the attempts 2 s later at most.
	config = configFile(t, strings.Replace(config, adminKey, freeAddress(t), 1))
	for id, says := range map[string][]string{"SLOW000000001": {"no_leader:", failure}, "BAD0000000001": {"failed:"}, last: {"spilled:"}} {
		within(t, testTimeout, func() string {
			stdout, stderr, _ := command(t, nil, "explain", id, "--outbox", "outbox_events", "-c", config)
			for _, part := range says {
				if !strings.Contains(stdout, part) {
					return fmt.Sprintf("without a relay: no %q in\n%s%s", part, stdout, stderr)
				}
			}
			return ""
		})
	}
}
