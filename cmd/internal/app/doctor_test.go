package app

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/ddl"
)

// gradesOf lists the worst grade of each part, in the order of the findings.
func gradesOf(found []Finding) string {
	var parts []string
	worst := map[string]store.Grade{}
	for _, f := range found {
		if worst[f.Part] == 0 {
			parts = append(parts, f.Part)
		}
		worst[f.Part] = max(worst[f.Part], f.Grade)
	}
	for i, part := range parts {
		parts[i] += "=" + worst[part].String()
	}
	return strings.Join(parts, " ")
}

// TestDoctor checks that a faulty part does not stop the checks of the next, and that
// unreachable servers are distinct from other faults.
func TestDoctor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "shop.db")
	db, err := sql.Open("sqlite", "file:"+path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	execute(t, db, ddl.SQLite().Messages())
	to := sinktest.NewReceiver(t)
	taken := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(taken.Close)
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := dead.Addr().String()
	_ = dead.Close()
	for name, c := range map[string]struct {
		source, listen, sink string
		want                 string
		away                 int
	}{
		"before init":         {"sqlite://" + path, "127.0.0.1:0", to.URL(), "configuration=ok database=advice log=ok sinks=advice admin address=ok", 0},
		"everything is wrong": {"sqlite://" + path + ".gone", taken.Listener.Addr().String(), "http://" + nobody, "configuration=ok database=fault sinks=fault admin address=fault", 1},
		"nothing answers":     {"postgres://" + nobody + "/x?sslmode=disable", "''", "http://" + nobody, "configuration=ok database=fault sinks=fault admin address=ok", 2},
	} {
		cfg := loadConfig(t, fmt.Sprintf(`
source: {url: "%s"}
admin: {listen: %s}
outboxes: [{table: outbox_messages, layout: outbox-messages, sink: platform}]
sinks: {platform: {type: flowcatalyst, wire: items, api-base-url: %q}, rebuilt: {type: flowcatalyst, wire: items, api-base-url: "http://%s"}}
`, c.source, c.listen, c.sink, nobody))
		found := Doctor(t.Context(), cfg, "test")
		away, replays := 0, 0
		for _, f := range found {
			if f.Unreachable {
				away++
			}
			if f.Subject == "rebuilt" {
				replays++
				if f.Grade != store.GradeAdvice || !strings.Contains(f.Text, "only replays use it") || f.Remedy == "" {
					t.Errorf("%s: of a sink that no outbox routes to: %+v", name, f)
				}
			}
			if f.Text == "" || f.Subject == "" || (f.Unreachable && f.Grade != store.GradeFault) {
				t.Errorf("%s: %+v", name, f)
			}
		}
		if replays != 1 {
			t.Errorf("%s: %d findings of the sink that no outbox routes to", name, replays)
		}
		if got := gradesOf(found); got != c.want || away != c.away {
			t.Errorf("%s: %s with %d away, want %s with %d", name, got, away, c.want, c.away)
		}
	}
	if n := to.Counts(); n.Items > 0 {
		t.Errorf("doctor delivered %d items", n.Items)
	}
}

// TestDoctorOfSources checks that what sources share is checked once, that each database has its findings,
// in the order of the configuration, and that two sources of one table are noticed.
func TestDoctorOfSources(t *testing.T) {
	var paths [2]string
	for i := range paths {
		paths[i] = filepath.Join(t.TempDir(), "shop.db")
		db, err := sql.Open("sqlite", "file:"+paths[i])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		execute(t, db, ddl.SQLite().Messages())
	}
	to, hooks := sinktest.NewReceiver(t), sinktest.NewReceiver(t)
	cfg := loadConfig(t, fmt.Sprintf(`
sources:
  - {name: one, url: "sqlite://%[1]s", outboxes: [outbox_messages]}
  - {name: gone, url: "sqlite://%[1]s.gone", outboxes: [outbox_messages]}
  - {name: two, url: "sqlite://%[2]s", outboxes: [outbox_messages]}
  - {name: again, url: "sqlite://%[1]s", outboxes: [outbox_messages]}
  - {name: other, url: "sqlite://%[2]s", outboxes: [others]}
admin: {listen: "127.0.0.1:0"}
outboxes: [{table: outbox_messages, layout: outbox-messages, sink: platform}, {name: others, table: others, layout: outbox-messages, sink: second}]
sinks: {platform: {type: flowcatalyst, wire: items, api-base-url: %[3]q}, second: {type: flowcatalyst, wire: items, api-base-url: %[4]q}}
`, paths[0], paths[1], to.URL(), hooks.URL()))
	found := Doctor(t.Context(), cfg, "test")
	var order []string
	bySource, same := map[string][]Finding{}, 0
	for _, f := range found {
		if n := len(order); n == 0 || order[n-1] != f.Source {
			order = append(order, f.Source)
		}
		bySource[f.Source] = append(bySource[f.Source], f)
		if f.Source == "" && strings.Contains(f.Text, "one and again read outbox outbox_messages of the same database") {
			same++
		}
	}
	if got := strings.Join(order, ","); got != ",one,gone,two,again,other" || same != 1 {
		t.Errorf("the findings are of %s, %d of them about a database that two sources have", got, same)
	}
	for source, want := range map[string]string{
		"": "configuration=advice sinks=ok admin address=ok", "one": "database=advice log=ok", "gone": "database=fault", "two": "database=advice log=ok", "other": "database=fault",
	} {
		if got := gradesOf(bySource[source]); got != want {
			t.Errorf("source %q: %s, want %s: %+v", source, got, want, bySource[source])
		}
	}
	if n := len(bySource[""]); n != 6 {
		t.Errorf("%d findings of what the sources share, want 6: %+v", n, bySource[""])
	}
}

// TestDoctorAdminAddress checks that only a relay is recognised at the admin address.
func TestDoctorAdminAddress(t *testing.T) {
	answer := make(chan string, 1)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintln(w, <-answer)
	})}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		_ = server.Shutdown(context.Background())
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	for says, want := range map[string]string{"standby": "standby", "leader": "leader", "<html>": "", strings.Repeat("leader ", 99): ""} {
		answer <- says
		if got := queryLeader(t.Context(), l.Addr().String()); got != want {
			t.Errorf("%q is taken for %q, want %q", says, got, want)
		}
	}
}

// TestProbeFinding checks which outcomes of a probe are faults.
func TestProbeFinding(t *testing.T) {
	for _, c := range []struct {
		kind   string
		class  sink.Class
		reason store.Reason
		grade  store.Grade
		away   bool
		remedy string
	}{
		{config.SinkWebhook, sink.Delivered, store.ReasonNone, store.GradeOK, false, ""},
		{config.SinkWebhook, sink.Refused, store.ReasonGateway, store.GradeAdvice, false, "check the receiver"},
		{config.SinkWebhook, sink.Unavailable, store.ReasonGateway, store.GradeFault, true, "start the receiver"},
		{config.SinkWebhook, sink.Misconfigured, store.ReasonUnauthorized, store.GradeFault, false, "a token"},
		{config.SinkWebhook, sink.Misconfigured, store.ReasonForbidden, store.GradeFault, false, "allow deliveries"},
		{config.SinkWebhook, sink.Misconfigured, store.ReasonInternal, store.GradeFault, false, "fix the address"},
		{config.SinkNATS, sink.Misconfigured, store.ReasonForbidden, store.GradeFault, false, "allow the user"},
		{config.SinkNATS, sink.Misconfigured, store.ReasonBadRequest, store.GradeFault, false, "correct the keys"},
		{config.SinkLog, sink.Misconfigured, store.ReasonForbidden, store.GradeFault, false, "create the folder"},
		{config.SinkNATS, sink.Refused, store.ReasonInternal, store.GradeAdvice, false, "check the receiver"},
	} {
		f, away := probeFinding("hooks", c.kind, sink.Outcome{Class: c.class, Reason: c.reason, Detail: "said"})
		if f.Grade != c.grade || away != c.away || f.Text != "said" || (c.remedy == "") != (f.Remedy == "") || !strings.Contains(f.Remedy, c.remedy) {
			t.Errorf("%s, %d: %+v, away %t", c.class, c.reason, f, away)
		}
	}
}

// TestDoctorProposesLayouts: where a layout does not fit the table, doctor prints one that does,
// and otherwise none.
func TestDoctorProposesLayouts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "shop.db")
	db, err := sql.Open("sqlite", "file:"+path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	execute(t, db, "CREATE TABLE letters (id INTEGER PRIMARY KEY, body TEXT NOT NULL, customer_id TEXT, sent_at TEXT)")
	execute(t, db, "CREATE TABLE loose (id TEXT, body TEXT NOT NULL, sent_at TEXT)")
	cfg := loadConfig(t, fmt.Sprintf(`
source: {url: "sqlite://%s"}
admin: {listen: ''}
outboxes:
  - {table: letters, layout: outbox-messages, sink: two}
  - {table: loose, layout: custom, kind: x, sink: one, columns: {id: id, payload: body, delivered: sent_at}, state: timestamps}
  - {table: absent, layout: outbox-messages, sink: one}
sinks: {one: {type: webhook, url: "http://127.0.0.1:1"}, two: {type: webhook, url: "http://127.0.0.1:1"}}
`, path))
	proposals := map[string]string{}
	for _, f := range Doctor(t.Context(), cfg, "test") {
		if f.Grade == store.GradeFault {
			proposals[f.Subject] += f.Configuration
		}
	}
	for subject, want := range map[string]string{
		"outbox letters": "group: customer_id", "outbox loose": "", "outbox absent": "",
	} {
		got, found := proposals[subject]
		if !found || (want == "") != (got == "") || !strings.Contains(got, want) || strings.Contains(got, "DECIDE: ") || strings.Contains(got, "sinks:") {
			t.Errorf("%s: a fault: %t, with the proposal %q, want %q", subject, found, got, want)
		}
	}
	if got := proposals["outbox letters"]; !strings.Contains(got, "  sink: two\n") {
		t.Errorf("the outbox has another sink:\n%s", got)
	}
}

// TestDoctorLogOnly: rows that only the log has need a relay that reads the log, from before
// their commit on.
func TestDoctorLogOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "shop.db")
	db, err := sql.Open("sqlite", "file:"+path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	execute(t, db, "CREATE TABLE letters (id TEXT PRIMARY KEY, body TEXT NOT NULL)")
	execute(t, db, "CREATE TABLE taken (id TEXT PRIMARY KEY, body TEXT NOT NULL)")
	load := func(mode string) *config.Config {
		return loadConfig(t, fmt.Sprintf(`
source: {url: "sqlite://%s", mode: %s}
admin: {listen: ''}
outboxes:
  - {table: letters, layout: custom, kind: x, sink: one, columns: {id: id, payload: body}, state: none}
  - {table: taken, layout: custom, kind: x, sink: one, columns: {id: id, payload: body}, state: none, delete-delivered: true}
sinks: {one: {type: webhook, url: "http://127.0.0.1:1"}}
`, path, mode))
	}
	expect := func(mode, subject string, grade store.Grade, text string) {
		t.Helper()
		found := Doctor(t.Context(), load(mode), "test")
		for _, f := range found {
			if f.Part == PartLog && f.Subject == subject {
				if f.Grade != grade || !strings.Contains(f.Text, text) || strings.Contains(f.Text, "taken") || (f.Remedy == "") != (grade == store.GradeOK) {
					t.Errorf("mode %s: %+v, want %s with %q", mode, f, grade, text)
				}
				return
			}
		}
		t.Errorf("mode %s: nothing about %s: %+v", mode, subject, found)
	}
	expect("poll", "source.mode", store.GradeFault, "outbox letters: polling needs a state of the rows")
	expect("stream", "log-only rows", store.GradeAdvice, "rows of letters: rows that commit before the relay's first start are never read")
	cfg := load("stream")
	d, err := openDatabase(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer d.store.Close()
	if err := d.store.Install(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect("auto", "log-only rows", store.GradeAdvice, "never read")
	epoch, err := d.store.AcquireLeadership(t.Context())
	if err == nil {
		err = d.store.SaveCheckpoint(t.Context(), epoch, store.Checkpoint{Origin: "o", Position: "1", Seq: 1})
	}
	if err != nil {
		t.Fatal(err)
	}
	expect("auto", "log-only rows", store.GradeOK, "a snapshot finds none of them")
}

// A key that spreads message groups over partitions gets advice, unless the outbox has no groups.
func TestDoctorAdvisesOnKeys(t *testing.T) {
	for name, c := range map[string]struct {
		key, group string
		advice     bool
	}{
		"group":     {"group", ", group: g", false},
		"none":      {"none", ", group: g", true},
		"id":        {"id", ", group: g", true},
		"no groups": {"none", "", false},
	} {
		cfg := loadConfig(t, fmt.Sprintf(`
source: {url: "sqlite:///nowhere.db"}
outboxes: [{table: o, layout: custom, kind: k, state: timestamps, columns: {id: id, payload: p, delivered: d, failed: f%s}, order-by: [id], sink: bus}]
sinks: {bus: {type: kafka, brokers: ["127.0.0.1:1"], topic: orders, key: %s}}
`, c.group, c.key))
		d := &doctor{cfg: cfg}
		d.adviseKeys()
		if got := len(d.findings) == 1; got != c.advice {
			t.Errorf("%s: the findings are %+v, want advice %t", name, d.findings, c.advice)
		}
		for _, f := range d.findings {
			if f.Grade != store.GradeAdvice || f.Subject != "bus" || !strings.Contains(f.Text, "key: "+c.key) || !strings.Contains(f.Remedy, "remove key of sink bus") {
				t.Errorf("%s: %+v", name, f)
			}
		}
	}
}
