package notices

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/dispatch/sink"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// signingKey is a key of Standard Webhooks.
var signingKey = bytes.Repeat([]byte("k"), 32)

// gotten are notices that a receiver got, with the attempts of each.
type gotten struct {
	notices  chan Notice
	mu       sync.Mutex
	attempts map[string]int
}

// receive starts a receiver that refuses the first attempt of the first notice and checks signatures.
func receive(t *testing.T) (*httptest.Server, *gotten) {
	t.Helper()
	g := &gotten{notices: make(chan Notice, 100), attempts: map[string]int{}}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		var n Notice
		if err := json.Unmarshal(body, &n); err != nil {
			t.Errorf("%s: %v", body, err)
		}
		mac := hmac.New(sha256.New, signingKey)
		mac.Write([]byte(n.ID + "." + req.Header.Get("Webhook-Timestamp") + "." + string(body)))
		if want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)); req.Header.Get("Webhook-Signature") != want || req.Header.Get("Webhook-Id") != n.ID {
			t.Errorf("headers %v of %s", req.Header, body)
		}
		g.mu.Lock()
		g.attempts[n.ID]++
		first := g.attempts[n.ID] == 1 && len(g.attempts) == 1
		g.mu.Unlock()
		if first {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		g.notices <- n
	}))
	t.Cleanup(srv.Close)
	return srv, g
}

// next returns the next notice.
func (g *gotten) next(t *testing.T) Notice {
	t.Helper()
	select {
	case n := <-g.notices:
		return n
	case <-time.After(30 * time.Second):
		t.Fatal("no notice")
	}
	return Notice{}
}

// run runs a notifier until the end of the test, or until stop is called.
func run(t *testing.T, n *Notifier) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); n.Run(ctx) }()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

// A webhook and a command get signed notices of each event, in order. A failed attempt is repeated.
// A relay that stands by or stops clears what it raised.
func TestTargets(t *testing.T) {
	srv, got := receive(t)
	file := filepath.Join(t.TempDir(), "lines")
	t.Setenv("SLUICEBOX_SOURCE_URL", "postgres://u:secret@h/d")
	cfg := DefaultConfig()
	cfg.RaiseAfter, cfg.ClearAfter, cfg.LeaderChanges = 0, 0, 0
	cfg.Webhook = &Webhook{URL: sink.Secret(srv.URL), Secrets: []sink.Secret{sink.Secret("whsec_" + base64.StdEncoding.EncodeToString(signingKey))}}
	cfg.Command = &Command{Argv: []string{"/bin/sh", "-c", `cat >> "$0"; echo "$SLUICEBOX_SOURCE_URL" >> "$0"`, file}}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	var outcomes sync.Map
	n := New(Options{Relay: "shop", Holder: "me", Log: slog.New(slog.DiscardHandler), Sent: func(target, outcome string) {
		outcomes.Store(target+" "+outcome, true)
	}})
	if err := n.Configure(&cfg); err != nil {
		t.Fatal(err)
	}
	stop := run(t, n)
	expect := func(event Event, state State) Notice {
		t.Helper()
		one := got.next(t)
		if one.Event != event || one.State != state || one.Relay != "shop" || one.Holder != "me" || one.Since.IsZero() {
			t.Errorf("got %+v, want %s %s", one, event, state)
		}
		return one
	}

	n.Leads()
	open := []dispatch.OpenBreaker{{Endpoint: "/events", LastFailure: sink.Outcome{Class: sink.Unavailable, Detail: "503"}}, {Endpoint: "/idle", Idle: true}}
	n.Breakers("hooks", open)
	raised := expect(BreakerOpen, Raised)
	if d := raised.Details; d.Sink != "hooks" || d.Endpoint != "/events" || d.Class != "unavailable" || d.Error != "503" {
		t.Errorf("details %+v", d)
	}
	n.Breakers("hooks", nil)
	if cleared := expect(BreakerOpen, Cleared); !cleared.Since.Equal(raised.Since) || cleared.ID == raised.ID {
		t.Errorf("%+v clears %+v", cleared, raised)
	}
	n.Retained(90<<20, 100<<20)
	expect(LogNearLimit, Raised)
	n.Retained(10<<20, 100<<20)
	expect(LogNearLimit, Cleared)
	n.Breakers("hooks", open)
	expect(BreakerOpen, Raised)
	n.StandsBy()
	expect(BreakerOpen, Cleared)
	stop()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(string(text), `"event":"`); lines != 6 || strings.Contains(string(text), "secret") {
		t.Errorf("the command got %d notices, want 6:\n%s", lines, text)
	}
	for _, want := range []string{"webhook sent", "command sent"} {
		if _, ok := outcomes.Load(want); !ok {
			t.Errorf("no outcome %q", want)
		}
	}
}

// Rows are never in the way of a target that does not answer: its oldest notices are dropped. A
// command without an end is killed.
func TestHangingTarget(t *testing.T) {
	var log bytes.Buffer
	cfg := DefaultConfig()
	cfg.Command = &Command{Argv: []string{"/bin/sleep", "60"}, Timeout: 300 * time.Millisecond}
	cfg.Interval, cfg.ClearAfter = 0, time.Hour
	var mu sync.Mutex
	outcomes := map[string]int{}
	n := New(Options{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})), Sent: func(_, outcome string) {
		mu.Lock()
		defer mu.Unlock()
		outcomes[outcome]++
	}})
	if err := n.Configure(&cfg); err != nil {
		t.Fatal(err)
	}
	for range 2 * maxQueue {
		n.RowFailed("s", "orders", "7")
		n.step(func(*target) {})
	}
	if outcomes["dropped"] != maxQueue {
		t.Errorf("%v, want %d dropped", outcomes, maxQueue)
	}
	one := n.targets[0]
	m, _, _ := one.take()
	if err := one.deliver(t.Context(), m); err == nil || err.Error() != "run /bin/sleep: no end within 300ms" {
		t.Errorf("a command without an end: %v", err)
	}
}

// Rows that are late raise a notice, and a reload changes the threshold without clearing it.
func TestAgeAndReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started := time.Now()
		var mu sync.Mutex
		var all []Notice
		taken := func() []Notice {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(all)
		}
		n := New(Options{Log: slog.New(slog.DiscardHandler), Age: func() Age { return Age{Oldest: started, Rows: 3} }})
		cfg := DefaultConfig()
		cfg.MaxAge, cfg.RaiseAfter = time.Minute, 30*time.Second
		deliver := func(_ context.Context, m message) error {
			var one Notice
			err := json.Unmarshal(m.text, &one)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, one)
			return err
		}
		n.targetsOf = func(*Config) ([]*target, error) {
			return []*target{{deliver: deliver, close: func() {}, change: make(chan struct{}, 1)}}, nil
		}
		if err := n.Configure(&cfg); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); n.Run(ctx) }()
		time.Sleep(89 * time.Second)
		if got := taken(); len(got) != 0 {
			t.Errorf("after 89s: %+v", got)
		}
		time.Sleep(2 * time.Second)
		got := taken()
		if len(got) != 1 || got[0].Event != RowsLate || got[0].Details.Rows != 3 || got[0].Details.Seconds < 60 || got[0].Details.Seconds > 90 {
			t.Errorf("after 91s: %+v", got)
		}
		other := cfg
		other.MaxAge = time.Hour
		if err := n.Configure(&other); err != nil {
			t.Fatal(err)
		}
		time.Sleep(cfg.ClearAfter + 2*ageInterval)
		if got = taken(); len(got) != 2 || got[1].State != Cleared || !got[1].Since.Equal(got[0].Since) {
			t.Errorf("with another threshold: %+v", got)
		}
		cancel()
		<-done
	})
}
