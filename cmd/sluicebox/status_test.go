package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

// fakeStatus is a relay's status and checks, which tests change.
type fakeStatus struct {
	mu     sync.Mutex
	status admin.RelayStatus
	checks []sluicebox.Check
	asked  chan struct{} // if set, receives a value per request
}

func (r *fakeStatus) Report(context.Context, bool) admin.RelayStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asked != nil {
		select {
		case r.asked <- struct{}{}:
		default:
		}
	}
	return r.status
}

func (r *fakeStatus) Checks() []sluicebox.Check {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.checks
}

func (r *fakeStatus) change(do func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	do()
}

// leadingStatus returns the status of a leader with some problems.
func leadingStatus() admin.RelayStatus {
	ago := func(d time.Duration) *time.Time { t := time.Now().Add(-d); return &t }
	kept, bound, lag, failed := int64(13_002_342), int64(1<<30), 12.3, 4
	group := "o-1"
	return admin.RelayStatus{
		Name: "shop", Version: "1.2.3", Holder: "host process 7", Uptime: 7500, IsLeader: true, Epoch: 3, Leader: "host process 7",
		Mode: "stream", SourceDetail: "reading the log", Claims: sluicebox.ClaimsStatus{Mode: sluicebox.ClaimsLate, Reason: "configured"},
		Source:     sluicebox.SourceStatus{Connected: true, Position: "0/1A2B", LastReceivedAt: ago(1100 * time.Millisecond), RetainedBytes: &kept, RetainedLimitBytes: &bound},
		Checkpoint: sluicebox.CheckpointStatus{Position: "0/1A00", Seq: 17, SavedAt: ago(2100 * time.Millisecond)},
		Lag:        admin.Lag{Rows: 120, Seconds: &lag},
		Captured:   admin.Rates{TenSeconds: 250.4, Minute: 31.25},
		Sinks: []admin.SinkStatus{
			{Name: "platform", Waiting: 120, Rows: 100, Spilled: 20, InFlight: 2, Lanes: map[string]int{"waiting": 3, "blocked": 1, "ready": 0},
				Delivered: admin.Rates{TenSeconds: 12.34}, Retried: admin.Rates{TenSeconds: 1200},
				OpenBreakers: []admin.OpenBreaker{{Endpoint: "http://p/batch", Class: "unavailable", Since: *ago(3*time.Minute + time.Second), Error: "connection\n refused\x1b[31m"}}},
			{Name: "other"},
		},
		Lanes:      []dispatch.LaneInfo{{LaneKey: store.LaneKey{Outbox: "orders", Kind: "EVENT", Group: store.GroupOf(group)}, State: "blocked", Rows: 2, Spilled: 10, Since: *ago(2*time.Hour + time.Minute), Error: "400: no"}},
		LanesTotal: 9,
		Replays: admin.ReplayStatus{Waiting: 2, Paused: 1, Current: &admin.Replay{
			ID: "w3k7m2xq5r4ta", State: "playing", Reason: "from the log; waits for 1 paused\ngroup", Rows: 100_000, Sent: 51_200, Refused: 2, Remaining: 48_798,
		}},
		Failed: []admin.FailedRows{{Outbox: "orders", Rows: &failed, At: *ago(5100 * time.Millisecond)}, {Outbox: "bills", Error: "it takes too long"}},
	}
}

const leadingText = `relay       shop, version 1.2.3, up 2h, host process 7
state       ready, leading in epoch 3
source      reading the log, at 0/1A2B, last message 1s ago
retained    12.4 MiB of log, limit 1.0 GiB
claims      late, configured
checkpoint  at 0/1A00, saved 2s ago
waiting     120 rows, the oldest for 12s
captured    250 rows/s in 10s, 31.2 in 1m
FAILED      4 rows in orders, counted 5s ago
FAILED      bills: not counted: it takes too long
replay      w3k7m2xq5r4ta playing, 51 200 of 100 000 rows sent, 2 refused; waits for 1 paused group; 2 more waiting, 1 paused

SINK      WAITING  SPILLED  IN-FLIGHT  DELIVERED/S  FAILED/S  RETRIED/S
platform  120      20       2          12.3         0         1200
other     0        0        0          0            0         0
platform: lanes 1 blocked, 3 waiting
platform: circuit breaker open for 3m, unavailable at http://p/batch: connection refused` + "\uFFFD" + `[31m

held or failing lanes: 9, the first 1 shown (sluicebox lanes list)
OUTBOX  KIND   GROUP  STATE    ROWS  SINCE  REASON
orders  EVENT  o-1    blocked  12    2h     400: no
`

// TestStatusOfOpenBreaker checks that a lane is not shown as ready while its sink
// receives only probes.
func TestStatusOfOpenBreaker(t *testing.T) {
	s := leadingStatus()
	s.Sinks[0].Lanes["ready"], s.Lanes[0].State = 7, "ready"
	text := statusText(&s, time.Now())
	if !strings.Contains(text, "platform: lanes 1 blocked, 7 waiting for the sink, 3 waiting\n") || !strings.Contains(text, "o-1    ready ") {
		t.Errorf("with a sink that is well:\n%s", text)
	}
	s.Sinks = s.Sinks[:1]
	if text := statusText(&s, time.Now()); !strings.Contains(text, "o-1    waiting for the sink ") {
		t.Errorf("with none that is well:\n%s", text)
	}
	s.Sinks[0].OpenBreakers[0].Named = true
	if text := statusText(&s, time.Now()); !strings.Contains(text, ", 7 ready, ") || !strings.Contains(text, "o-1    ready ") {
		t.Errorf("with an endpoint that rows name:\n%s", text)
	}
	s.Sinks[0].OpenBreakers[0].Named, s.Sinks[0].OpenBreakers[0].Endpoint = false, ""
	if text := statusText(&s, time.Now()); !strings.Contains(text, "platform: circuit breaker open for 3m, unavailable: connection refused") {
		t.Errorf("with an endpoint without a name:\n%s", text)
	}
	s.Sinks[0].OpenBreakers = nil
	if text := statusText(&s, time.Now()); !strings.Contains(text, ", 7 ready, ") || !strings.Contains(text, "o-1    ready ") {
		t.Errorf("with none that is suspect:\n%s", text)
	}
}

// serveStatus serves a status until the test ends and returns the --admin flag for it.
func serveStatus(t *testing.T, from *fakeStatus) string {
	t.Helper()
	return "--admin=" + serveConfig(t, admin.Config{Report: from}, from)
}

func TestStatusText(t *testing.T) {
	from := &fakeStatus{status: leadingStatus()}
	at := serveStatus(t, from)
	got := try(t, backend{}, nil, "status", at)
	if got.code != 0 || got.stdout != leadingText || got.stderr != "" {
		t.Errorf("exit %d\n%s\nwant\n%s%s", got.code, got.stdout, leadingText, got.stderr)
	}
	from.change(func() {
		from.checks = []sluicebox.Check{{Name: "database", OK: true}, {Name: "source", Detail: "the server has\nsaid nothing"}}
	})
	got = try(t, backend{}, nil, "status", at)
	if got.code != 1 || !strings.Contains(got.stdout, "state       not ready, leading in epoch 3\nNOT READY   source: the server has said nothing\n") ||
		got.stderr != "sluicebox: the relay is not ready: source: the server has said nothing\n" {
		t.Errorf("exit %d\n%s%s", got.code, got.stdout, got.stderr)
	}
	from.change(func() {
		from.status, from.checks = admin.RelayStatus{Name: "shop", Version: "1.2.3", Leader: "other process 8", Uptime: 3}, nil
	})
	got = try(t, backend{}, nil, "status", at)
	if got.code != 0 || !strings.HasSuffix(got.stdout, "state       ready, standing by; other process 8 leads\n") {
		t.Errorf("exit %d\n%s%s", got.code, got.stdout, got.stderr)
	}
}

// TestReplaysText checks that progress is shown only for phases that a replay has
// reached.
func TestReplaysText(t *testing.T) {
	for _, c := range []struct {
		replays admin.ReplayStatus
		want    string
	}{
		{admin.ReplayStatus{}, ""},
		{admin.ReplayStatus{Paused: 1}, "1 paused"},
		{admin.ReplayStatus{Current: &admin.Replay{ID: "a", State: "waiting", Reason: "; waits for checkpoint x to be made"}}, "a waiting; waits for checkpoint x to be made"},
		{admin.ReplayStatus{Current: &admin.Replay{ID: "a", State: "copying", Rows: 1}, Waiting: 1}, "a copying, 1 row so far; 1 more waiting"},
		{admin.ReplayStatus{Current: &admin.Replay{ID: "a", State: "copying", Rows: 3000, Sent: 1000, Skipped: 7}}, "a copying, 3 000 rows so far, 1 000 sent, 7 skipped"},
	} {
		if got := replaysText(&c.replays); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// fakeSources are the sources of a process.
type fakeSources struct {
	list  admin.SourceList
	asked chan struct{} // if set, receives a value per request
}

func (f fakeSources) List() admin.SourceList {
	if f.asked != nil {
		select {
		case f.asked <- struct{}{}:
		default:
		}
	}
	return f.list
}

func (fakeSources) Handler(string) http.Handler { return nil }

func serveSources(t *testing.T, from fakeSources) string {
	t.Helper()
	return "--admin=" + serveUntilEnd(t, admin.NewSources(admin.Config{Listen: "127.0.0.1:0", Log: slog.New(slog.DiscardHandler)}, from))
}

// The status of a process with several sources has a summary and a line for each source: first those that
// are not ready, then those whose rows have waited longest.
func TestStatusOfSources(t *testing.T) {
	ago := func(d time.Duration) *time.Time { at := time.Now().Add(-d); return &at }
	ready := func(name string, leads bool, rows int, oldest *time.Time) admin.SourceStatus {
		return admin.SourceStatus{Name: name, Ready: true, IsLeader: leads, Mode: "stream", Detail: "fine", Lag: admin.Lag{Rows: rows, Oldest: oldest}, Captured: admin.Rates{Minute: 2}}
	}
	from := fakeSources{asked: make(chan struct{}, 100), list: admin.SourceList{Process: "relay-0 process 7", Sources: []admin.SourceStatus{
		ready("idle", false, 0, nil), ready("busy", true, 3, ago(5500*time.Millisecond)), ready("late", true, 20, ago(3*time.Minute+time.Second)),
		{Name: "broken", Detail: "relay ended:\ndatabase is missing"}, ready("more", false, 7, nil),
	}}}
	at := serveSources(t, from)
	const want = `5 sources in relay-0 process 7: 2 led here, 2 standing by, 1 not ready; 30 rows waiting, the oldest for 3m; 8.0 rows/s

SOURCE  STATE      MODE    WAITING  OLDEST  ROWS/S  DETAIL
broken  not ready          0        -       0       relay ended: database is missing
late    leader     stream  20       3m      2.0     fine
busy    leader     stream  3        5s      2.0     fine
more    standby    stream  7        -       2.0     fine
idle    standby    stream  0        -       2.0     fine
`
	got := try(t, backend{}, nil, "status", at)
	if got.code != 1 || got.stdout != want || got.stderr != "sluicebox: 1 of 5 sources are not ready\n  sluicebox status --source-name broken shows its checks\n" {
		t.Errorf("exit %d\n%s\nwant\n%s%s", got.code, got.stdout, want, got.stderr)
	}
	var list admin.SourceList
	got = try(t, backend{}, nil, "status", at, "--json")
	if err := json.Unmarshal([]byte(got.stdout), &list); err != nil || got.code != 1 || len(list.Sources) != 5 || list.Sources[0].Name != "idle" {
		t.Errorf("exit %d, %v\n%s%s", got.code, err, got.stdout, got.stderr)
	}

	var out, why lockedBuffer
	for len(from.asked) > 0 {
		<-from.asked
	}
	interrupt := watching(&out, &why, at)
	for range 3 {
		waitFor(t, from.asked)
	}
	if code := interrupt(); code != 0 || strings.Count(out.String(), "broken  not ready ") < 2 || why.String() != "" {
		t.Errorf("watched: exit %d\n%s%s", code, out.String(), why.String())
	}

	from.list.Sources = from.list.Sources[:3]
	if got := try(t, backend{}, nil, "status", serveSources(t, from)); got.code != 0 || got.stderr != "" {
		t.Errorf("all are ready: exit %d\n%s%s", got.code, got.stdout, got.stderr)
	}
}

// With scale, a source is a shard of the process, by its number. The roles have no endpoints.
func TestStatusOfShards(t *testing.T) {
	at := serveSources(t, fakeSources{list: admin.SourceList{Process: "relay-0 process 7", Sources: []admin.SourceStatus{
		{Name: "capture", Role: true, Detail: "the topic does not acknowledge records"}, {Name: "3", Ready: true, Detail: "fine"},
	}}})
	path := filepath.Join(t.TempDir(), "scale.yaml")
	text := `source: {url: "postgres://relay@db/shop"}
scale: {engine: kafka, brokers: ["kafka:9092"], topic: shop, partitions: 4}
outboxes: [{table: orders, layout: outbox-messages, sink: hooks}]
sinks: {hooks: {type: webhook, url: "https://hooks.example/rows"}}
`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"status"}, 1, "sluicebox: 1 of 2 sources are not ready\n"},
		{[]string{"status", "--source-name", "2"}, 64, `unknown source "2"; the sources are 3`},
		{[]string{"lanes", "list"}, 64, "the sources are 3"},
		{[]string{"lanes", "list", "--source-name", "capture"}, 64, `no shard "capture"`},
		{[]string{"explain", "17", "--source-name", "4"}, 64, "0 to 3"},
	} {
		got := try(t, backend{}, nil, append(c.args, at, "-c", path)...)
		if got.code != c.code || !strings.Contains(got.stderr, c.want) {
			t.Errorf("%q: exit %d, want %d and %q\n%s", c.args, got.code, c.code, c.want, got.stderr)
		}
	}
}

func TestStatusJSON(t *testing.T) {
	from := &fakeStatus{status: leadingStatus(), checks: []sluicebox.Check{{Name: "source", Detail: "silent"}}}
	got := try(t, backend{}, nil, "status", serveStatus(t, from), "--json")
	var s admin.RelayStatus
	if err := json.Unmarshal([]byte(got.stdout), &s); err != nil {
		t.Fatal(err)
	}
	if got.code != 1 || s.Ready || s.Lag.Rows != 120 || *s.Failed[0].Rows != 4 || !strings.Contains(got.stderr, "not ready: source: silent") {
		t.Errorf("exit %d\n%s%s", got.code, got.stdout, got.stderr)
	}
}

func TestStatusUsage(t *testing.T) {
	for args, want := range map[string]struct {
		code int
		says string
	}{
		"--watch=soon":            {64, `invalid interval "soon"`},
		"--watch=1ms":             {64, "at least 100ms"},
		"--watch=-1s":             {64, "at least 100ms"},
		"extra":                   {64, "unexpected argument extra"},
		"--admin ftp://relay":     {64, "invalid relay address"},
		"--admin 127.0.0.1:1":     {1, "no relay responds"},
		"-c nosuchfile.yaml":      {78, "nosuchfile.yaml"},
		"--token-file nosuchfile": {78, ""},
	} {
		got := try(t, backend{}, nil, append([]string{"status"}, strings.Fields(args)...)...)
		if got.code != want.code || got.stdout != "" || !strings.Contains(got.stderr, want.says) {
			t.Errorf("%s: exit %d, %q, %q", args, got.code, got.stdout, got.stderr)
		}
	}
}

// lockedBuffer is written by a command and read by its test.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// watching runs `sluicebox status --watch`. interrupt sends a signal and returns the exit
// code.
func watching(stdout, stderr io.Writer, args ...string) (interrupt func() (code int)) {
	signals, code := make(chan os.Signal, 1), make(chan int, 1)
	p := program{stdout: stdout, stderr: stderr, signals: signals, exit: os.Exit}
	go func() { code <- p.main(append([]string{"status", "--watch=100ms"}, args...)) }()
	return func() int {
		signals <- os.Interrupt
		return <-code
	}
}

// Without a terminal, --watch prints one block after the other, survives an unreachable
// relay, and exits with 0 on Ctrl-C.
func TestStatusWatched(t *testing.T) {
	from := &fakeStatus{status: leadingStatus(), checks: []sluicebox.Check{{Name: "source", Detail: "silent"}}, asked: make(chan struct{}, 100)}
	var out, why lockedBuffer
	interrupt := watching(&out, &why, serveStatus(t, from))
	for range 3 {
		waitFor(t, from.asked)
	}
	if code := interrupt(); code != 0 || strings.Count(out.String(), "NOT READY   source: silent\n") < 2 || strings.Contains(out.String(), "\x1b") || why.String() != "" {
		t.Errorf("exit %d\n%s%s", code, out.String(), why.String())
	}

	out, why = lockedBuffer{}, lockedBuffer{}
	interrupt = watching(&out, &why, "--admin=127.0.0.1:1")
	end := time.After(30 * time.Second)
	for strings.Count(why.String(), "no relay responds at http://127.0.0.1:1") < 2 {
		select {
		case <-end:
			t.Fatal(why.String())
		case <-time.After(10 * time.Millisecond):
		}
	}
	if code := interrupt(); code != 0 || out.String() != "" {
		t.Errorf("exit %d\n%s%s", code, out.String(), why.String())
	}
	got := try(t, backend{}, nil, "status", "--watch", "--admin="+serveConfig(t, admin.Config{Token: "x", Report: from}, from))
	if got.code != 78 || !strings.Contains(got.stderr, "admin token") {
		t.Errorf("without its token: exit %d\n%s%s", got.code, got.stdout, got.stderr)
	}
}

func waitFor(t *testing.T, signal <-chan struct{}) {
	t.Helper()
	select {
	case <-signal:
	case <-time.After(30 * time.Second):
		t.Fatal("the relay was not asked")
	}
}
