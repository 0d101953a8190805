package blackbox

import (
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// requestTimes has when requests of each token arrive.
type requestTimes struct {
	mu     sync.Mutex
	at     []time.Time
	tokens map[string]int
}

func noteRequests(to *sinktest.Receiver) *requestTimes {
	a := &requestTimes{tokens: map[string]int{}}
	to.Script(func(req *sinktest.Request) sinktest.Answer {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.at = append(a.at, time.Now())
		a.tokens[strings.TrimPrefix(req.Header.Get("Authorization"), "Bearer ")]++
		return sinktest.Answer{Delay: 5 * time.Millisecond}
	})
	return a
}

// gap returns the longest time without a request between two times.
func (a *requestTimes) gap(from, to time.Time) (most time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	last := from
	for _, at := range a.at {
		if at.After(from) && at.Before(to) {
			most, last = max(most, at.Sub(last)), at
		}
	}
	return most
}

// awaitToken waits for a request with a token.
func (a *requestTimes) awaitToken(t *testing.T, token string) {
	t.Helper()
	within(t, testTimeout, func() string {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.tokens[token] == 0 {
			return fmt.Sprintf("no request has token %s: %v", token, a.tokens)
		}
		return ""
	})
}

// configured is a relay whose configuration file a test changes.
type configured struct {
	*relay
	file, text string
}

// configure starts a relay.
func configure(t *testing.T, config string) *configured {
	t.Helper()
	address := freeAddress(t)
	c := &configured{file: filepath.Join(t.TempDir(), "sluicebox.yaml")}
	c.set(t, strings.ReplaceAll(config, adminKey, address))
	c.relay = launch(t, c.file, "http://"+address)
	return c
}

// set writes the file.
func (c *configured) set(t *testing.T, text string) {
	t.Helper()
	c.text = text
	if err := os.WriteFile(c.file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// reload changes the file and reloads it over the API.
func (c *configured) reload(t *testing.T, from, to string) (status int, answer string) {
	t.Helper()
	if !strings.Contains(c.text, from) {
		t.Fatalf("no %q in %s", from, c.text)
	}
	c.set(t, strings.Replace(c.text, from, to, 1))
	return c.ask("POST", "/api/v1/reload", "{}")
}

// again starts the relay again after it has stopped.
func (c *configured) again(t *testing.T) {
	t.Helper()
	c.relay = launch(t, c.file, c.admin)
	c.waitFor("standing by")
}

// reloadable is a database whose rows relays deliver while they reload.
type reloadable struct {
	to     *sinktest.Receiver
	config string
	load   func(seconds int) (wait func())
	// expectOnce waits until every row is COMPLETED, and expects that each arrived once, in order.
	expectOnce func() (rows int)
}

// Both relays of a name reload and restart under load: no row is lost or comes twice, the order
// holds, and rows wait for less than a second each time. What may not change, and what is wrong in
// the file, changes nothing.
func TestReloads(t *testing.T) {
	t.Parallel()
	aScene(t, "", func(s *scene) {
		reloads(s.t, reloadable{s.to, s.config, func(seconds int) func() {
			return write(s.t, s.database, load{seconds: seconds, clients: 4, rate: tempo(200), scripts: seedScripts(20)})
		}, s.expectOnce})
	})
	t.Run("mongo", func(t *testing.T) {
		t.Parallel()
		aMongo(t, "", func(s *mongoScene) {
			reloads(t, reloadable{s.to, s.config, func(seconds int) func() {
				return s.write(mongoLoad{Seconds: seconds, Clients: 4, Rate: tempo(200), Groups: 20})
			}, s.expectOnce})
		})
	})
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		source, db := seedFile(t)
		to, rows := sinktest.NewReceiver(t), 0
		reloads(t, reloadable{to, preset(source, to.URL(), ""), func(seconds int) func() {
			done := make(chan error, 1)
			go func() { done <- insertFor(db, time.Duration(seconds)*time.Second, &rows) }()
			return func() {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
		}, func() int {
			arrive(t, to, rows)
			within(t, testTimeout, func() string {
				n := 0
				if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM outbox_events WHERE status <> 'COMPLETED'").Scan(&n); err != nil || n > 0 {
					return fmt.Sprintf("%d rows are not COMPLETED: %v", n, err)
				}
				return ""
			})
			if again := checkNumbered(t, to.Accepted()); again > 0 {
				t.Errorf("%d rows arrived more than once, want 0", again)
			}
			return rows
		}})
	})
}

// insertFor inserts rows for a time, and counts them.
func insertFor(db *sql.DB, most time.Duration, rows *int) error {
	pace := time.NewTicker(10 * time.Millisecond)
	defer pace.Stop()
	for began := time.Now(); time.Since(began) < most; <-pace.C {
		if err := numberedRows(db, *rows+1, *rows+2); err != nil {
			return err
		}
		*rows += 2
	}
	return nil
}

// reloads lets two relays reload and restart.
func reloads(t *testing.T, of reloadable) {
	t.Helper()
	to := noteRequests(of.to)
	config := strings.Replace(of.config, "api-base-url", "api-token: first, api-base-url", 1) +
		"dispatch: {api-batch-size: 50}\nlog: {level: info}\n"
	leader := configure(t, config)
	leader.waitFor("source connected")
	standby := configure(t, config)
	standby.waitFor("standing by")
	began := time.Now()
	wait := of.load(8)
	to.awaitToken(t, "first")

	var sessions []string
	expect := func(c *configured, from, to, want string) {
		t.Helper()
		status, answer := c.reload(t, from, to)
		if status != 200 || !strings.Contains(answer, want) {
			t.Errorf("%s: %d %s, want %s", to, status, answer, want)
		}
		if _, took, restarted := strings.Cut(answer, `"session_restarted":true,"took_seconds":`); restarted {
			sessions = append(sessions, strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(took), "}"))+"s")
		}
	}
	expect(leader, "first", "second", `"changed":["flowcatalyst.api-token"],"session_restarted":false`)
	to.awaitToken(t, "second")
	expect(standby, "first", "second", `"session_restarted":false`)
	expect(leader, "size: 50", "size: 20", `"changed":["dispatch.api-batch-size"],"session_restarted":true`)
	standby.set(t, strings.Replace(standby.text, "level: info", "level: debug", 1))
	_ = standby.cmd.Process.Signal(syscall.SIGHUP)
	standby.waitFor(`msg="configuration reloaded" keys=[log.level]`)

	expectStop(t, standby.relay)
	standby.again(t)
	for range 3 {
		expectStop(t, leader.relay)
		standby.waitFor("source connected")
		leader.again(t)
		leader, standby = standby, leader
		expect(leader, "level: ", "level:  ", `"changed":[]`)
		size := leader.text[strings.Index(leader.text, "size: "):][:len("size: 00")]
		expect(leader, size, map[string]string{"size: 50": "size: 30", "size: 20": "size: 50", "size: 30": "size: 40", "size: 40": "size: 50"}[size], `"session_restarted":true`)
	}
	ended := time.Now()
	wait()
	refuseReloads(t, leader)
	rows := of.expectOnce()
	gap := to.gap(began, ended)
	t.Logf("%d rows, the longest time without a request %s; new sessions after %s", rows, gap.Round(time.Millisecond), sessions)
	if gap > time.Second+slack() {
		t.Errorf("no request for %s, want less than 1s", gap)
	}
	expectStop(t, leader.relay)
	expectStop(t, standby.relay)
}

// refuseReloads expects that nothing of an invalid configuration is applied.
func refuseReloads(t *testing.T, c *configured) {
	t.Helper()
	good := c.text
	for _, bad := range []struct{ from, to, key, line string }{
		{"name: ", "name: other", "name", ":1: "},
		{"{mode: stream", "{mode: auto", "source.mode", ":2: "},
		{"{api-batch-size: ", "{api-batch-size: x", "dispatch.api-batch-size", ":5: "},
		{"dispatch: ", "dispatsch: ", "dispatsch", ":5: "},
	} {
		c.set(t, good)
		status, answer := c.reload(t, bad.from, bad.to)
		if status != 422 || !strings.Contains(answer, c.file+bad.line+bad.key) {
			t.Errorf("%s: %d %s, want 422 with %s%s%s", bad.to, status, answer, c.file, bad.line, bad.key)
		}
	}
	c.waitFor("configuration not reloaded")
	_, stderr, code := command(t, nil, "reload", "-c", c.file)
	if code != 78 || !strings.Contains(stderr, "dispatsch") {
		t.Errorf("sluicebox reload: exit code %d, %s", code, stderr)
	}
	c.set(t, good)
	if out, stderr, code := command(t, nil, "reload", "-c", c.file); code != 0 || out != "unchanged\n" {
		t.Errorf("sluicebox reload: exit code %d, %s%s", code, out, stderr)
	}
}
