package blackbox

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// chaosRelay is one of the relays, with what a service manager does for it: it starts again when it
// ends.
type chaosRelay struct {
	*relay
	wire       *servers.Proxy
	file, text string
	starts     int
	wanted     bool      // else it is down on purpose
	retry      time.Time // when the service manager starts it

	address string       // of its API
	ingest  string       // where it takes rows
	pid     atomic.Int64 // of its last process
}

// chaosConfig is the relays' configuration. The jobs have several destinations.
const chaosConfig = `
name: %s
source: {url: %q}
outboxes:
  - {table: outbox_events, layout: flowcatalyst, kind: EVENT, sink: platform%s}
  - {table: outbox_dispatch_jobs, layout: flowcatalyst, kind: DISPATCH_JOB, routes: [{name: platform, sink: platform}%s]}
sinks:
  platform: {type: flowcatalyst, api-base-url: %q%s}%s
dispatch: {request-timeout: 2s, backoff: {initial: 50ms, max: 1s}}
admin: {listen: ADMIN}
ingest: {listen: INGEST, clients: [{name: service, token: service-token, outboxes: [outbox_events, outbox_dispatch_jobs]}]}
`

func newChaosRelay(t testing.TB, config, database string) *chaosRelay {
	t.Helper()
	r := &chaosRelay{file: filepath.Join(t.TempDir(), "sluicebox.yaml")}
	address := freeAddress(t)
	ingest := freeAddress(t)
	r.text = strings.NewReplacer(adminKey, address, ingestKey, ingest).Replace(config)
	if !strings.HasPrefix(database, "sqlite:") { // it has no network
		r.wire = servers.NewProxy(t, database)
		r.text = strings.Replace(r.text, database, proxied(r.wire, database), 1)
	}
	r.address, r.ingest = "http://"+address, "http://"+ingest
	r.relay = &relay{admin: r.address}
	r.write(t, r.text)
	r.launch(t)
	return r
}

// proxied is a database's URL through a proxy. A set's other addresses would lead past it.
func proxied(w *servers.Proxy, database string) string {
	u := w.URL(database)
	if before, query, isSet := strings.Cut(u, "?replicaSet="); isSet {
		_, rest, _ := strings.Cut(query, "&")
		u = strings.TrimSuffix(before+"?directConnection=true&"+rest, "&")
	}
	return u
}

func (r *chaosRelay) write(t testing.TB, text string) {
	t.Helper()
	if err := os.WriteFile(r.file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (r *chaosRelay) launch(t testing.TB) {
	t.Helper()
	r.starts++
	r.wanted = true
	said := ""
	if r.cmd != nil {
		said = r.said()
	}
	r.relay = launch(t, r.file, r.admin)
	r.pid.Store(int64(r.cmd.Process.Pid))
	r.mu.Lock()
	r.stderr.WriteString(tail(said, 200<<10))
	r.mu.Unlock()
}

// saidSince returns what the relay has logged since a time.
func (r *chaosRelay) saidSince(from time.Time) string {
	var b strings.Builder
	for line := range strings.Lines(r.said()) {
		text, _, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
		if at, err := time.Parse(time.RFC3339Nano, text); err == nil && !at.Before(from) {
			b.WriteString(line)
		}
	}
	return tail(b.String(), 64<<10)
}

// tail is the end of a text.
func tail(text string, most int) string { return text[max(0, len(text)-most):] }

// tend starts a relay that has ended, a second after its end.
func (r *chaosRelay) tend(t testing.TB) {
	t.Helper()
	select {
	case <-r.ended:
	default:
		return
	}
	switch {
	case !r.wanted:
	case r.retry.IsZero():
		r.retry = time.Now().Add(time.Second)
	case time.Now().After(r.retry):
		r.retry = time.Time{}
		r.launch(t)
	}
}

// try is relay.ask for a relay that may be down.
func (r *chaosRelay) try(method, path, body string) (status int, text string) {
	return ask(method, r.address+path, body)
}

func ask(method, url, body string) (status int, text string) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b) + failure(err)
}

func (r *chaosRelay) isLeader() bool {
	status, _ := r.try(http.MethodGet, "/leader", "")
	return status == http.StatusOK
}

// pick returns the leader, or in one of five cases the other relay.
func (c *chaos) pick(r *rand.Rand) *chaosRelay {
	leader := c.leader()
	if r.IntN(5) == 0 {
		return c.relays[(c.indexOf(leader)+1)%len(c.relays)]
	}
	return leader
}

// someRelayIsWanted reports whether not all relays are down on purpose.
func (c *chaos) someRelayIsWanted() bool {
	return slices.ContainsFunc(c.relays, func(r *chaosRelay) bool { return r.wanted })
}

func (c *chaos) indexOf(r *chaosRelay) int {
	if r == c.relays[0] {
		return 0
	}
	return 1
}

// leader returns the relay that leads, or the first if none does.
func (c *chaos) leader() *chaosRelay {
	for _, r := range c.relays {
		if r.isLeader() {
			return r
		}
	}
	return c.relays[0]
}

// down keeps a relay that a fault ends from being started until heal.
func (r *chaosRelay) down(end func()) (up func(t testing.TB)) {
	r.wanted = false
	end()
	return func(t testing.TB) {
		select {
		case <-r.ended:
			r.launch(t)
		default:
			r.wanted = true
		}
	}
}

func relayKinds() []chaosKind {
	const short, long = 200 * time.Millisecond, 2 * time.Second
	return []chaosKind{
		{name: "relay killed", least: short, most: long, inject: func(c *chaos, r *rand.Rand) func() {
			one := c.pick(r)
			up := one.down(one.kill)
			return func() { up(c.t) }
		}},
		{name: "both relays killed", least: short, most: long, inject: func(c *chaos, _ *rand.Rand) func() {
			a, b := c.relays[0], c.relays[1]
			upA, upB := a.down(a.kill), b.down(b.kill)
			return func() { upA(c.t); upB(c.t) }
		}},
		{name: "relay restarted", least: short, most: long, inject: func(c *chaos, r *rand.Rand) func() {
			one := c.pick(r)
			up := one.down(func() {
				if code := one.stop(); code != 0 {
					c.t.Errorf("a relay that was stopped exits with %d, want 0:\n%s", code, tail(one.said(), 4<<10))
				}
			})
			return func() { up(c.t) }
		}},
		{name: "leader frozen past its lease", least: 7 * time.Second, most: 9 * time.Second, inject: func(c *chaos, _ *rand.Rand) func() {
			one := c.leader()
			one.freeze()
			return one.thaw
		}},
		{name: "leader frozen shortly", least: short, most: long, inject: func(c *chaos, _ *rand.Rand) func() {
			one := c.leader()
			one.freeze()
			return one.thaw
		}},
		{name: "configuration reloaded", least: short, most: long, inject: func(c *chaos, r *rand.Rand) func() {
			set := func(text func(one *chaosRelay) string) {
				for _, one := range c.relays {
					one.write(c.t, text(one))
					_ = one.cmd.Process.Signal(syscall.SIGHUP) // it may have ended
				}
			}
			retries := 4 + r.IntN(5)
			set(func(one *chaosRelay) string {
				return strings.Replace(one.text, "request-timeout: 2s", fmt.Sprintf("request-timeout: 3s, max-retries: %d", retries), 1)
			})
			return func() { set(func(one *chaosRelay) string { return one.text }) }
		}},
		{name: "bad configuration reloaded", least: short, most: long, inject: func(c *chaos, _ *rand.Rand) func() {
			for _, one := range c.relays {
				one.write(c.t, one.text+"nonsense: true\n")
				_ = one.cmd.Process.Signal(syscall.SIGHUP)
			}
			return func() {
				for _, one := range c.relays {
					one.write(c.t, one.text)
					_ = one.cmd.Process.Signal(syscall.SIGHUP)
				}
			}
		}},
	}
}

// networkKinds are faults between one relay and the database.
func networkKinds() []chaosKind {
	kind := func(name string, least, most time.Duration, begin, end func(w *servers.Proxy)) chaosKind {
		return chaosKind{name: "network " + name, least: least, most: most, on: hasServer, inject: func(c *chaos, r *rand.Rand) func() {
			w := c.pick(r).wire
			begin(w)
			return func() {
				if end != nil {
					end(w)
				}
			}
		}}
	}
	const second = time.Second
	return []chaosKind{
		kind("reset", second/10, second, func(w *servers.Proxy) { w.Reset(false) }, nil),
		kind("cut", second, 5*second, func(w *servers.Proxy) { w.Reset(true) }, (*servers.Proxy).Accept),
		kind("black-holed", second, 8*second, (*servers.Proxy).Disconnect, (*servers.Proxy).Reconnect),
		kind("delayed", 2*second, 4*second, func(w *servers.Proxy) { w.Delay(50 * time.Millisecond) }, func(w *servers.Proxy) { w.Delay(0) }),
		kind("half-closed", second/10, second, (*servers.Proxy).HalfClose, nil),
	}
}
