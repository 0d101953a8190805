package blackbox

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// firing is a relay of a name that Prometheus scrapes.
type firing struct {
	t    *testing.T
	p    *prometheus
	name string

	relays []*relay // that are scraped
}

// cause is a run that raises alerts.
type cause struct {
	name   string
	alerts []string
	run    func(f *firing)
}

// scrape begins to scrape relays of this name.
func (f *firing) scrape(relays ...*relay) {
	f.t.Helper()
	f.relays = append(f.relays, relays...)
	f.p.scrape(f.t, f.name, relays...)
}

// scene is a scene on PostgreSQL.
func (f *firing) scene(rest string) *scene {
	f.t.Helper()
	return newScene(f.t, postgresHost(15), rest)
}

// start runs a relay of a scene, and scrapes it.
func (f *firing) start(s *scene) *relay {
	f.t.Helper()
	r := s.run()
	f.scrape(r)
	return r
}

// impatient returns the rules with every wait shortened to 4 s, and with less to wait for: an age of 2 s in
// place of 5 minutes, 8 MiB of log in place of 8 GiB. All else is as users have it.
func impatient(t *testing.T) string {
	t.Helper()
	rules := regexp.MustCompile(`(?m)^( +for:) .*$`).ReplaceAllString(read(t, "prometheus/rules.yml"), "$1 4s")
	for _, change := range [][2]string{
		{"timestamp_seconds > 300", "timestamp_seconds > 2"},
		{"> 8 * 1024^3", "> 8 * 1024^2"},
		{"[15m:15s]", "[15m:1s]"},
	} {
		if strings.Count(rules, change[0]) != 1 {
			t.Fatalf("the rules have no single %q", change[0])
		}
		rules = strings.Replace(rules, change[0], change[1], 1)
	}
	return rules
}

// A Prometheus scrapes relays to each of which something happens, and raises the alert for it. A
// relay to which nothing happens raises none. Each query of the dashboard then finds data, and
// promtool has nothing to say about the metrics of any relay, in trouble or under load.
//
// It takes two minutes, so it is run by hand: make prometheus.
func TestEveryAlertFires(t *testing.T) {
	if os.Getenv(prometheusVariable) == "" {
		t.Skip(prometheusVariable + " names no folder with Prometheus: make prometheus")
	}
	rules := impatient(t)
	p := startPrometheus(t, rules)
	well := &firing{t: t, p: p, name: "well"}
	s := well.scene("")
	r := well.start(s)
	s.load(20)
	s.expectSet()
	all := causes()
	t.Run("causes", func(t *testing.T) {
		for _, c := range all {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				f := &firing{t: t, p: p, name: c.name}
				c.run(f)
				for _, alert := range c.alerts {
					p.await(t, alert, c.name)
				}
				for _, r := range f.relays {
					if r.runs() {
						expectNames(t, r)
					}
				}
			})
		}
	})
	caused := map[string]bool{}
	for _, c := range all {
		for _, alert := range c.alerts {
			caused[alert] = true
		}
	}
	for _, alert := range regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(rules, -1) {
		if !caused[alert[1]] {
			t.Errorf("nothing causes %s", alert[1])
		}
	}
	if fired := p.alerts(t, well.name); len(fired) > 0 {
		t.Errorf("the relay to which nothing happened raised %v", fired)
	}
	t.Run("dashboard", func(t *testing.T) { p.expectDashboard(t) })
	t.Run("names", func(t *testing.T) {
		before := s.to.Counts().Distinct
		wait := write(t, s.database, load{seconds: 2, clients: 4, rate: 200, scripts: seedScripts(20)})
		arrive(t, s.to, before+1)
		expectNames(t, r)
		wait()
		s.expectSet()
	})
	expectStop(t, r)
}

// expectDashboard evaluates each query of the dashboard over the time of the test.
func (p *prometheus) expectDashboard(t *testing.T) {
	var board struct {
		Annotations struct{ List []struct{ Name, Expr string } }
		Panels      []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, "grafana/sluicebox.json")), &board); err != nil {
		t.Fatal(err)
	}
	variables := strings.NewReplacer("$__rate_interval", "10s", "$relay", ".*", "$sink", ".*", "[1h]", "[10m]")
	ask := func(title, expr string) {
		expr = variables.Replace(expr)
		now := time.Now()
		found, points, notZero := p.query(t, expr, "start", fmt.Sprint(now.Add(-10*time.Minute).Unix()), "end", fmt.Sprint(now.Unix()), "step", "1"), 0, false
		for _, s := range found {
			points += len(s.Values)
			for _, v := range s.Values {
				notZero = notZero || v[1] != "0" && v[1] != "NaN"
			}
		}
		t.Logf("%-40s %3d series %6d points, not only 0: %t   %s", title, len(found), points, notZero, expr)
		if !notZero {
			t.Errorf("%s has no data: %s", title, expr)
		}
	}
	for _, a := range board.Annotations.List {
		if a.Expr != "" {
			ask(a.Name, a.Expr)
		}
	}
	for _, panel := range board.Panels {
		for _, target := range panel.Targets {
			ask(panel.Title, target.Expr)
		}
	}
}

// expectNames lets promtool check names and descriptions of a relay's metrics.
func expectNames(t *testing.T, r *relay) {
	_, metrics := r.get("/metrics")
	cmd := exec.Command(filepath.Join(os.Getenv(prometheusVariable), "promtool"), "check", "metrics")
	cmd.Stdin = strings.NewReader(metrics)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}

// always answers each request with a status.
func always(status int) func(*sinktest.Request) sinktest.Answer {
	return func(*sinktest.Request) sinktest.Answer { return sinktest.Answer{Status: status} }
}

func causes() []cause {
	return slices.Concat(processCauses(), sourceCauses(), receiverCauses(), tableCauses(), operatorCauses(), ingestCauses())
}

func processCauses() []cause {
	return []cause{
		{"killed", []string{"SluiceboxNoProcess"}, func(f *firing) { f.start(f.scene("")).kill() }},
		{"no-database", []string{"SluiceboxNoLeader"}, func(f *firing) {
			s := f.scene("")
			way := servers.NewProxy(f.t, s.database)
			s.config = strings.Replace(s.config, s.database, way.URL(s.database), 1)
			f.start(s)
			way.Disconnect()
		}},
		{"restarts", []string{"SluiceboxLeadershipChanges"}, func(f *firing) {
			s := f.scene("")
			r := f.start(s)
			for epoch := 1; epoch < 5; epoch++ {
				within(f.t, testTimeout, func() string {
					if got := f.p.query(f.t, fmt.Sprintf("sluicebox_leader_epoch{relay=%q} == %d", f.name, epoch)); len(got) == 0 {
						return fmt.Sprintf("epoch %d is not scraped", epoch)
					}
					return ""
				})
				expectStop(f.t, r)
				r = launch(f.t, r.file(), r.admin)
				r.waitFor("source connected")
			}
		}},
		{"reload", []string{"SluiceboxReloadRefused"}, func(f *firing) {
			r := f.start(f.scene(""))
			writeFile(f.t, r.file(), "nothing: here\n")
			if out, why, code := command(f.t, nil, "reload", "--admin", r.admin); code == 0 {
				f.t.Errorf("the reload was not refused: %s%s", out, why)
			}
		}},
	}
}

func sourceCauses() []cause {
	return []cause{
		{"no-stream", []string{"SluiceboxSourceDisconnected"}, func(f *firing) {
			s := f.scene("")
			way := servers.NewProxy(f.t, s.database)
			s.config = strings.Replace(s.config, "source: {", fmt.Sprintf("source: {stream-url: %q, ", way.URL(s.database)), 1)
			f.start(s)
			way.Disconnect()
		}},
		{"polls", []string{"SluiceboxPolling"}, func(f *firing) {
			s := f.scene("")
			s.config = strings.Replace(s.config, "mode: stream", "mode: poll", 1)
			f.start(s)
		}},
		{"slot-dropped", []string{"SluiceboxLogLost"}, func(f *firing) {
			s := f.scene("")
			f.start(s)
			s.dropSlot(nameFor(s.database))
		}},
		{"no-checkpoint", []string{"SluiceboxCheckpointNotSaved"}, func(f *firing) {
			s := f.scene("")
			f.start(s)
			s.exec(s.kind.business, refuse("sluicebox.record", "INSERT OR UPDATE"))
			for n := range 20 { // there is something to save
				s.number(100*n+1, 100*n+10, "i % 5")
				s.business(1000)
			}
		}},
		{"unspillable", []string{"SluiceboxRowsUnspillable", "SluiceboxRetainedLogAtLimit"}, func(f *firing) {
			s := f.scene("dispatch: {global-buffer-size: 50, backoff: {initial: 50ms, max: 200ms}}\ncheckpoint: {max-hold: 1MiB}\n")
			s.to.Script(always(http.StatusServiceUnavailable))
			f.start(s)
			s.exec(refuse("sluicebox.queue", "INSERT"), s.kind.business)
			s.number(1, 100, "i % 10")
			s.business(8 << 20)
		}},
		{"kept-log", []string{"SluiceboxNamedCheckpointGrows", "SluiceboxNamedCheckpointLost"}, func(f *firing) {
			s := f.scene("checkpoint: {max-kept: 40MiB}\n")
			r := f.start(s)
			s.exec(s.kind.business)
			r.checkpoint("early", "--keep-log")
			s.business(12 << 20)
			r.checkpoint("look") // it measures the log at once
			f.p.await(f.t, "SluiceboxNamedCheckpointGrows", f.name)
			s.business(48 << 20)
			r.checkpoint("again")
		}},
	}
}

// refuse is a trigger that refuses writes of a table.
func refuse(table, when string) string {
	return fmt.Sprintf(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''not now''; END';
		CREATE TRIGGER refuse BEFORE %s ON %s FOR EACH ROW EXECUTE FUNCTION refuse()`, when, table)
}

func receiverCauses() []cause {
	return []cause{
		{"receiver-down", []string{"SluiceboxBreakerOpen", "SluiceboxRowsLate", "SluiceboxRowsSpilled"}, func(f *firing) {
			s := f.scene("dispatch: {backoff: {initial: 50ms, max: 200ms}}\ncheckpoint: {max-hold: 1MiB}\n")
			s.to.Script(always(http.StatusServiceUnavailable))
			s.exec(s.kind.business)
			f.start(s)
			s.number(1, 100, "i % 50")
			f.p.await(f.t, "SluiceboxRowsLate", f.name) // of rows in memory
			s.business(4 << 20)
		}},
		{"row-refused", []string{"SluiceboxDeadLetters", "SluiceboxGroupsHeld"}, func(f *firing) {
			s := f.scene("dispatch: {on-failed: block, max-retries: 1, backoff: {initial: 50ms}}\n")
			f.start(s)
			s.to.Script(always(http.StatusBadRequest))
			s.number(1, 2, "1")
		}},
		{"hosts-of-rows", []string{"SluiceboxEndpointsOpen"}, func(f *firing) {
			database := postgresHost(15).database(f.t)
			servers.Exec(f.t, database, "CREATE TABLE calls (row_key bigint PRIMARY KEY, grp text, body jsonb, target_url text, created_at timestamptz NOT NULL DEFAULT now(), sent_at timestamptz, dead_at timestamptz, why text)")
			r := start(f.t, fmt.Sprintf(customers, nameFor(database), database, "'127.0.0.1:2'", "'127.0.0.1:3'", adminKey))
			r.waitFor("source connected")
			f.scrape(r)
			servers.Exec(f.t, database, "INSERT INTO calls SELECT i, i % 5, '{}', 'http://127.0.0.1:1/' FROM generate_series(1, 50) i")
		}},
		{"no-file", []string{"SluiceboxSinkNotOpen"}, func(f *firing) {
			s := f.scene("")
			s.config = strings.Replace(s.config, "flowcatalyst: {", fmt.Sprintf("flowcatalyst: {api-token: '${file:%s}', ", filepath.Join(f.t.TempDir(), "none")), 1)
			f.start(s)
		}},
		{"partitions", []string{"SluiceboxDestinationChanged"}, func(f *firing) {
			servers.RequireKafka(f.t)
			b := newBus(f.t, "10s", nil)
			r := b.run()
			f.scrape(r)
			servers.Exec(f.t, b.database, "INSERT INTO orders (customer, body) VALUES ('a', '{}')")
			awaitZero(f.t, "rows are not delivered", func() int {
				return count(f.t, b.conn, "SELECT count(*) FROM orders WHERE sent_at IS NULL")
			})
			if _, err := b.admin.CreatePartitions(b.context(), 3, "orders"); err != nil {
				f.t.Fatal(err)
			}
			within(f.t, testTimeout, func() string { // the sink asks for the partitions each minute
				servers.Exec(f.t, b.database, "INSERT INTO orders (customer, body) VALUES ('a', '{}')")
				if r.metric(`sluicebox_destination_changes_total{sink="bus"}`) == 0 {
					return "the sink has not noticed new partitions"
				}
				return ""
			})
		}},
	}
}

func tableCauses() []cause {
	return []cause{
		{"outcome-refused", []string{"SluiceboxRowsRefused"}, func(f *firing) {
			s := f.scene("")
			s.exec(fmt.Sprintf(s.kind.object, theRefused))
			f.start(s)
			s.exec("INSERT INTO outbox_events (id, type, message_group, payload, status, created_at) VALUES ('" + theRefused + "', 'EVENT', 'g', '{\"id\": \"1\"}', 'PENDING', now())")
		}},
		{"no-outcomes", []string{"SluiceboxStoreFails"}, func(f *firing) {
			s := f.scene("")
			f.start(s)
			s.exec(refuse("outbox_events", "UPDATE"))
			s.number(1, 200, "i")
		}},
	}
}

// twoRoutes relays a table to two receivers.
const twoRoutes = `
name: %s
source: {url: %q, mode: stream}
outboxes: [{table: outbox_messages, layout: outbox-messages, routes: [{name: up, sink: up}, {name: down, sink: down}]}]
sinks:
  up: {type: webhook, url: %q}
  down: {type: webhook, url: %q}
admin: {listen: ADMIN}
`

func operatorCauses() []cause {
	return []cause{
		{"group-paused", []string{"SluiceboxGroupPaused"}, func(f *firing) {
			s := f.scene("")
			r := f.start(s)
			r.operate("lanes", "pause", "--outbox", "outbox_events", "--kind", "EVENT", "--group", "1", "--reason", "a look at it")
			s.number(1, 3, "1")
		}},
		{"route-paused", []string{"SluiceboxRoutePaused", "SluiceboxRouteBehind"}, func(f *firing) {
			database := postgresHost(15).database(f.t)
			initOutbox(f.t, "outbox-messages", database)
			to := sinktest.NewReceiver(f.t)
			r := start(f.t, fmt.Sprintf(twoRoutes, nameFor(database), database, to.URL(), to.URL()))
			r.waitFor("source connected")
			f.scrape(r)
			r.operate("routes", "pause", "--route", "down", "--reason", "an incident")
			servers.Exec(f.t, database, "INSERT INTO outbox_messages (id, type, message_group, payload, status, created_at, updated_at) SELECT lpad(i::text, 13, '0'), 'EVENT', i % 100, '{}', 0, now(), now() FROM generate_series(1, 10100) i")
		}},
		{"replay-refused", []string{"SluiceboxReplayFailed"}, func(f *firing) {
			s := f.scene("")
			r := f.start(s)
			s.number(1, 5, "1")
			r.checkpoint("plain")
			expectRefused(f.t, r.replay("--from=plain", "--source=log"))
		}},
		{"replay-waits", []string{"SluiceboxReplayWaits"}, func(f *firing) {
			s := f.scene("dispatch: {backoff: {initial: 50ms, max: 200ms}}\n")
			r := f.start(s)
			s.number(1, 5, "1")
			s.expectNumbered(5)
			s.to.Script(always(http.StatusServiceUnavailable))
			if out, why, code := r.sluicebox("replay", "--since=1h", "--detach"); code != 0 {
				f.t.Fatalf("replay: exit code %d: %s%s", code, out, why)
			}
		}},
	}
}

func ingestCauses() []cause {
	return []cause{
		{"ingest-database", []string{"SluiceboxIngestFails"}, func(f *firing) {
			s := newIngestScene(f.t, postgresHost(15), "")
			r := s.run()
			r.waitFor("source connected")
			f.scrape(r.relay)
			f.ingest(r, http.StatusOK, http.StatusCreated, http.StatusAccepted)
			s.server.Stop("immediate")
			for range 15 {
				f.ingest(r, http.StatusServiceUnavailable)
			}
		}},
		{"ingest-lag", []string{"SluiceboxIngestBehind"}, func(f *firing) {
			s := newIngestScene(f.t, postgresHost(15), "  max-lag: 1s")
			s.to.Script(always(http.StatusServiceUnavailable))
			r := s.run()
			r.waitFor("source connected")
			f.scrape(r.relay)
			for range 10 {
				f.ingest(r, http.StatusTooManyRequests)
			}
		}},
	}
}

// ingest posts messages until one is answered with one of these statuses.
func (f *firing) ingest(r *ingestRelay, statuses ...int) {
	f.t.Helper()
	client, n := &http.Client{Timeout: testTimeout}, 0
	defer client.CloseIdleConnections()
	within(f.t, testTimeout, func() string {
		n++
		_, body := postboxMessage(int(time.Now().UnixNano()%1_000_000_000), n)
		answer, err := post(client, r.url+postboxPath, "shop-token", bytes.NewReader(body))
		if err != nil {
			return err.Error()
		}
		if !slices.Contains(statuses, answer.status) {
			return fmt.Sprintf("the answer is %d, want %v: %s", answer.status, statuses, answer.body)
		}
		return ""
	})
}
