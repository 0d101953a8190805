package blackbox

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// relayStatus is the part of `sluicebox status --json` that the tests check.
type relayStatus struct {
	Ready                bool
	IsLeader             bool `json:"is_leader"`
	Epoch                int64
	Leader, Holder, Mode string
	Name                 string
	SourceDetail         string `json:"source_detail"`
	Claims               struct{ Mode, Reason string }
	Checks               []struct{ Name, Detail string }
	Source               struct{ Connected, Paused bool }
	Lag                  struct{ Rows int }
	Lanes                []laneState
	LanesTotal           int `json:"lanes_total"`
	Sinks                []sinkState
	Failed               []struct {
		Outbox string
		Rows   *int
	}
	Checkpoint struct {
		Position string
		SavedAt  *time.Time `json:"saved_at"`
	}
	Captured       map[string]float64 `json:"captured_per_second"`
	fields         []string
	stdout, stderr string
	code           int
}

// sinkState is the state of a sink in it.
type sinkState struct {
	Name                   string
	Waiting, Rows, Spilled int
	Lanes                  map[string]int
	OpenBreakers           []struct {
		Endpoint, Class, Error string
		Since                  time.Time
	} `json:"breaker_open"`
	Delivered map[string]float64 `json:"delivered_per_second"`
}

// status runs `sluicebox status --json`.
func (r *relay) status() (s relayStatus) {
	r.t.Helper()
	s.stdout, s.stderr, s.code = command(r.t, nil, "status", "--json", "--admin", r.admin)
	var all map[string]any
	if err := json.Unmarshal([]byte(s.stdout), &all); err != nil {
		r.t.Fatalf("the status: exit code %d, %v\n%s%s", s.code, err, s.stdout, s.stderr)
	}
	if err := json.Unmarshal([]byte(s.stdout), &s); err != nil {
		r.t.Fatal(err)
	}
	s.fields = fieldsOf("", all)
	return s
}

// fieldsOf returns the names of an object's fields, recursively, except in lists and in maps
// with variable keys.
func fieldsOf(at string, object map[string]any) (names []string) {
	for name, value := range object {
		names = append(names, at+name)
		if below, ok := value.(map[string]any); ok {
			names = append(names, fieldsOf(at+name+".", below)...)
		}
	}
	slices.Sort(names)
	return names
}

// expectStatus polls the status until wrong returns "".
func (r *relay) expectStatus(wrong func(s *relayStatus) string) (s relayStatus) {
	r.t.Helper()
	within(r.t, testTimeout, func() string {
		s = r.status()
		if what := wrong(&s); what != "" {
			return what + ": " + s.stdout + s.stderr
		}
		return ""
	})
	return s
}

// statusFields are all fields of a status, except those in lists.
func statusFields() []string {
	return strings.Fields(`captured_per_second captured_per_second.10s captured_per_second.1m checkpoint checkpoint.position
		checkpoint.saved_at checkpoint.seq checks claims claims.mode claims.reason epoch failed holder is_leader lag lag.oldest lag.rows lag.seconds lanes lanes_total
		leader mode name ready replays replays.current replays.paused replays.waiting routes sinks source source.connected
		source.last_received_at source.paused source.position
		source.retained_bytes source.retained_limit_bytes source_detail started_at uptime_seconds version`)
}

// The status of a leader under load and of its standby has every field with the right value.
// The metrics pass the linter afterwards.
func TestStatusUnderLoad(t *testing.T) {
	t.Parallel()
	aScene(t, "", func(s *scene) {
		r := s.run()
		wait := write(s.t, s.database, load{seconds: 6, clients: 4, rate: 200, scripts: seedScripts(20)})
		got := r.expectStatus(func(s *relayStatus) string {
			if len(s.Sinks) != 1 || s.Sinks[0].Delivered["10s"] <= 0 || s.Captured["1m"] <= 0 || s.Checkpoint.SavedAt == nil {
				return "no rates, or no checkpoint"
			}
			return ""
		})
		if !got.Ready || got.code != 0 || !got.IsLeader || got.Epoch != 1 || got.Leader != got.Holder || got.Mode != "stream" ||
			!got.Source.Connected || got.Source.Paused || got.Checkpoint.Position == "" || got.Name != nameFor(s.database) {
			s.t.Errorf("exit code %d\n%s%s", got.code, got.stdout, got.stderr)
		}
		if !slices.Equal(got.fields, statusFields()) {
			s.t.Errorf("the fields are %q, want %q", got.fields, statusFields())
		}
		wait()
		r.expectStatus(func(s *relayStatus) string {
			if s.Lag.Rows != 0 || s.Sinks[0].Waiting != 0 || len(s.Failed) != 2 || s.Failed[0].Rows == nil || *s.Failed[0].Rows != 0 {
				return "rows wait, or FAILED"
			}
			return ""
		})
		s.expectOnce()
		s.expectStandbyStatus(r)
		expectLint(s.t, r)
		expectText(s.t, r)
		expectStop(s.t, r)
		if out, why, code := command(s.t, nil, "status", "--admin", r.admin); code != 1 || out != "" || !strings.Contains(why, "no relay responds") {
			s.t.Errorf("the status of a relay that has ended: exit code %d, want 1\n%s%s", code, out, why)
		}
	})
}

// expectStandbyStatus compares the status of a standby with its leader's.
func (s *scene) expectStandbyStatus(leader *relay) {
	s.t.Helper()
	second := start(s.t, s.config)
	second.waitFor("standing by")
	got := second.status()
	if !got.Ready || got.code != 0 || got.IsLeader || got.Epoch != 0 || len(got.Sinks) != 0 ||
		!strings.Contains(got.Leader, fmt.Sprintf("process %d", leader.cmd.Process.Pid)) || got.Holder == got.Leader {
		s.t.Errorf("a standby: exit code %d\n%s%s", got.code, got.stdout, got.stderr)
	}
	if !slices.Equal(got.fields, statusFields()) {
		s.t.Errorf("the fields of a standby are %q, want %q", got.fields, statusFields())
	}
	expectStop(s.t, second)
}

// expectLint runs the linter for metric names on a relay's metrics.
func expectLint(t *testing.T, r *relay) {
	t.Helper()
	_, body := r.get("/metrics")
	problems, err := promlint.New(strings.NewReader(body)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	for _, name := range []string{"source_last_received_timestamp_seconds", "source_retained_limit_bytes", `dead_letters{outbox="outbox_events"}`} {
		if !strings.Contains(body, "sluicebox_"+name+" ") {
			t.Errorf("there is no metric %s", name)
		}
	}
}

// expectText expects lines of at most 80 columns in the text status.
func expectText(t *testing.T, r *relay) {
	t.Helper()
	out, why, code := command(t, nil, "status", "--admin", r.admin)
	if code != 0 || why != "" || !strings.Contains(out, "ready, leading in epoch 1") || !strings.Contains(out, "0 rows in outbox_events, counted ") {
		t.Errorf("exit code %d, want 0\n%s%s", code, out, why)
	}
	for line := range strings.Lines(out) {
		if n := utf8.RuneCountInString(strings.TrimSpace(line)); n > 80 && !strings.HasPrefix(line, "relay ") { // a host name may be longer
			t.Errorf("a line has %d columns, want at most 80: %s", n, line)
		}
	}
}

// The circuit breaker of a dead sink opens, its rows wait and are spilled, and the relay is not
// ready. After the sink recovers, all of that ends.
func TestStatusOfADeadSink(t *testing.T) {
	t.Parallel()
	const rows = 2000
	aScene(t, "dispatch: {global-buffer-size: 200, backoff: {max: 500ms}}\ncheckpoint: {max-hold: 1MiB}\n", func(s *scene) {
		s.exec(s.kind.business)
		s.to.Script(func(*sinktest.Request) sinktest.Answer { return sinktest.Answer{Status: http.StatusServiceUnavailable} })
		r := s.run()
		for from := 1; from <= rows; from += 500 {
			s.number(from, from+499, "i % 50")
			s.business(1 << 20)
		}
		got := r.expectStatus(func(s *relayStatus) string {
			if sk := s.Sinks[0]; sk.Waiting != rows || s.Lag.Rows != rows || sk.Spilled == 0 || len(sk.OpenBreakers) != 1 {
				return fmt.Sprintf("%d rows wait, %d are spilled", sk.Waiting, sk.Spilled)
			}
			return ""
		})
		breaker := got.Sinks[0].OpenBreakers[0]
		if got.code != 1 || got.Ready || breaker.Class != "unavailable" || breaker.Since.IsZero() || !strings.Contains(breaker.Endpoint, "/api/events/batch") ||
			!strings.Contains(got.stderr, "not ready: sink flowcatalyst: circuit breaker open") {
			s.t.Errorf("exit code %d\n%s%s", got.code, got.stdout, got.stderr)
		}
		out, _, _ := command(s.t, nil, "status", "--admin", r.admin)
		if !strings.Contains(out, "not ready, leading") || !strings.Contains(out, "flowcatalyst: circuit breaker open for ") {
			s.t.Error(out)
		}
		if at := r.metric(`sluicebox_oldest_pending_timestamp_seconds{sink="flowcatalyst"}`); at < float64(time.Now().Add(-5*time.Minute).Unix()) {
			s.t.Errorf("the oldest row is of %.0f", at)
		}
		s.to.Script(nil)
		s.expectNumbered(rows)
		r.expectStatus(func(s *relayStatus) string {
			if !s.Ready || s.code != 0 || s.Lag.Rows != 0 || len(s.Sinks[0].OpenBreakers) != 0 || s.Sinks[0].Spilled != 0 {
				return "something is left"
			}
			return ""
		})
		expectStop(s.t, r)
	})
}

// A FAILED row is counted, and its blocked lane is listed.
func TestStatusOfAFailedRow(t *testing.T) {
	t.Parallel()
	const bad = 50 // of group 0
	aScene(t, "dispatch: {on-failed: block, max-retries: 1, backoff: {initial: 50ms}}\n", func(s *scene) {
		poison(s.to, sinktest.Answer{Status: http.StatusBadRequest, Body: []byte("no such thing")}, numbered(bad))
		r := s.run()
		s.number(1, 200, "i % 10")
		s.expectBlocked(r, bad, 200)
		got := r.expectStatus(func(s *relayStatus) string {
			for _, f := range s.Failed {
				if f.Outbox == "outbox_events" && f.Rows != nil && *f.Rows == 1 {
					return ""
				}
			}
			return "the FAILED row is not counted"
		})
		if !got.Ready || got.LanesTotal != 1 || len(got.Lanes) != 1 || got.Lanes[0].State != "blocked" || got.Lanes[0].Head != numbered(bad) {
			s.t.Error(got.stdout)
		}
		if n := r.metric(`sluicebox_dead_letters{outbox="outbox_events"}`); n != 1 {
			s.t.Errorf("%.0f dead letters, want 1", n)
		}
		expectStop(s.t, r)
	})
}

// A relay with a full buffer pauses capture, reports that, and stays ready.
func TestStatusOfAPause(t *testing.T) {
	t.Parallel()
	aScene(t, "dispatch: {global-buffer-size: 50}\n", func(s *scene) {
		hold := make(chan struct{})
		s.to.Script(func(*sinktest.Request) sinktest.Answer { return sinktest.Answer{Release: hold} })
		r := s.run()
		s.number(1, 2000, "i % 2")
		got := r.expectStatus(func(s *relayStatus) string {
			if !s.Source.Paused {
				return "it is not paused"
			}
			return ""
		})
		if _, body := r.get("/readyz?verbose"); !got.Ready || got.code != 0 || !strings.Contains(body, "[+] source ok: reading the log; paused") {
			s.t.Errorf("%s\n%s", body, got.stdout)
		}
		close(hold)
		s.expectNumbered(2000)
		expectStop(s.t, r)
	})
}

// readiness waits until /readyz returns a status, and returns its body. /livez must stay
// healthy.
func (r *relay) readiness(want int) (body string) {
	r.t.Helper()
	within(r.t, time.Minute, func() string {
		if status, body := r.get("/livez"); status != 200 {
			r.t.Fatalf("/livez is %d, want 200: %s", status, body)
		}
		status := 0
		if status, body = r.get("/readyz?verbose"); status != want {
			return fmt.Sprintf("/readyz is %d: %s", status, body)
		}
		return ""
	})
	return body
}

// The relay is not ready while its connection to the database is cut, or while PostgreSQL's
// walsender is frozen, though both keep every connection open. It is ready again afterwards.
func TestReadinessFollowsProgress(t *testing.T) {
	t.Parallel()
	anOwnScene(t, servers.Spread(t, hosts()), nil, "", func(s *scene, _ ownServer) {
		w := servers.NewProxy(s.t, s.database)
		s.config = strings.Replace(s.config, s.database, w.URL(s.database), 1)
		r := s.run()
		r.readiness(200)
		s.load(10)

		w.Disconnect()
		r.readiness(503)
		if got := r.status(); got.code != 1 || !strings.Contains(got.stderr, "the relay is not ready: ") {
			s.t.Errorf("exit code %d, want 1\n%s%s", got.code, got.stdout, got.stderr)
		}
		w.Reconnect()
		r.readiness(200)
		s.load(10)

		if !s.kind.postgres { // its sessions are not processes
			s.expectAll()
			expectStop(s.t, r)
			return
		}
		pid := count(s.t, s.conn, "SELECT active_pid FROM pg_replication_slots WHERE active")
		thaw := func() { _ = syscall.Kill(pid, syscall.SIGCONT) }
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			s.t.Fatal(err)
		}
		defer thaw()
		if body := r.readiness(503); !strings.Contains(body, "[-] source failed: ") || !strings.Contains(body, "[+] database ok") {
			s.t.Error(body)
		}
		thaw()
		r.readiness(200)
		s.load(10)
		s.expectAll()
		expectStop(s.t, r)
	})
}

// An idle relay stays ready as long as it receives heartbeats, and reports the time of the last.
func TestReadinessWhileIdle(t *testing.T) {
	t.Parallel()
	aScene(t, "", func(s *scene) {
		s.config = strings.Replace(s.config, "source: {", "source: {heartbeat-interval: 500ms, ", 1)
		r := s.run()
		first := r.metric("sluicebox_source_last_received_timestamp_seconds")
		within(s.t, time.Minute, func() string {
			if status, body := r.get("/readyz?verbose"); status != 200 {
				s.t.Fatal(body)
			}
			if heard := r.metric("sluicebox_source_last_received_timestamp_seconds"); heard < first+6 {
				return fmt.Sprintf("heard at %f, first at %f", heard, first)
			}
			return ""
		})
		expectStop(s.t, r)
	})
}

// A polling relay reports the time of its last poll.
func TestStatusOfPolling(t *testing.T) {
	t.Parallel()
	aScene(t, "", func(s *scene) {
		s.config = strings.Replace(s.config, "mode: stream", "mode: poll, poll-interval: 50ms, poll-backoff: {max: 200ms}", 1)
		r := start(s.t, s.config)
		r.waitFor("source connected")
		s.load(40)
		s.expectSet()
		got := r.expectStatus(func(s *relayStatus) string {
			if s.Mode != "poll" || !s.Ready || s.Lag.Rows != 0 || s.code != 0 {
				return "it does not poll, or rows wait"
			}
			return ""
		})
		if !slices.Equal(got.fields, statusFields()) || got.SourceDetail != "polling" || len(slices.Collect(maps.Keys(got.Captured))) != 2 {
			s.t.Error(got.stdout)
		}
		heard := r.metric("sluicebox_source_last_received_timestamp_seconds")
		within(s.t, testTimeout, func() string {
			if again := r.metric("sluicebox_source_last_received_timestamp_seconds"); again <= heard {
				return fmt.Sprintf("the tables were last read at %f", again)
			}
			return ""
		})
		expectStop(s.t, r)
	})
}
