package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

// ready is a Status that is always ready.
type ready struct{}

func (ready) Checks() []sluicebox.Check { return nil }

// fakeLanes are lanes that record actions.
type fakeLanes struct {
	mu    sync.Mutex
	lanes []dispatch.LaneInfo
	total int
	err   error
	did   []string
}

func (l *fakeLanes) List(f dispatch.LaneFilter, limit int) ([]dispatch.LaneInfo, int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var chosen []dispatch.LaneInfo
	for _, in := range l.lanes {
		if (f.Outbox == "" || f.Outbox == in.Outbox) && (f.Kind == "" || f.Kind == in.Kind) &&
			(f.Group == nil || *f.Group == in.Group) && (f.State == "" || f.State == in.State) {
			chosen = append(chosen, in)
		}
	}
	return chosen[:min(limit, len(chosen))], len(chosen) + l.total, l.err
}

func (l *fakeLanes) act(format string, args ...any) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.did = append(l.did, fmt.Sprintf(format, args...))
	return l.err
}

// done returns the actions since the last call of done.
func (l *fakeLanes) done() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	did := l.did
	l.did = nil
	return did
}

func (l *fakeLanes) RetryNow(n dispatch.LaneName) error {
	return l.act("retry %s %s", n.LaneKey, n.RowID)
}

func (l *fakeLanes) Skip(_ context.Context, n dispatch.LaneName, reason string) error {
	return l.act("skip %s %s: %s", n.LaneKey, n.RowID, reason)
}

func (l *fakeLanes) Pause(_ context.Context, n dispatch.LaneName, reason string) error {
	return l.act("pause %s %s: %s", n.LaneKey, n.RowID, reason)
}

func (l *fakeLanes) Resume(_ context.Context, n dispatch.LaneName) error {
	return l.act("resume %s %s", n.LaneKey, n.RowID)
}

// serveAdmin serves a relay's admin endpoints until the test ends and returns their
// address.
func serveAdmin(t *testing.T, lanes admin.Lanes, letters admin.DeadLetters, token string) string {
	t.Helper()
	return serveConfig(t, admin.Config{Token: token, Lanes: lanes, DeadLetters: letters}, ready{})
}

// serveConfig is serveAdmin for any endpoints.
func serveConfig(t *testing.T, cfg admin.Config, status admin.Status) string {
	t.Helper()
	cfg.Listen = "127.0.0.1:0"
	return serveUntilEnd(t, admin.New(cfg, status))
}

// serveUntilEnd runs a server until the test ends and returns its address.
func serveUntilEnd(t *testing.T, s *admin.Server) string {
	t.Helper()
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s.Addr()
}

func key(outbox, kind, group string) store.LaneKey {
	return store.LaneKey{Outbox: outbox, Kind: kind, Group: store.GroupOf(group)}
}

func severalLanes() *fakeLanes {
	ago := time.Now().Add(-3*time.Minute - 10*time.Second)
	return &fakeLanes{lanes: []dispatch.LaneInfo{
		{
			LaneKey: key("outbox_events", "EVENT", "o-1"), State: "blocked", Rows: 12, Head: "0JPX1", Attempts: 4, RetryCount: 3,
			Error: "400: name\n is \x1b[31mmissing", Since: ago,
		},
		{LaneKey: key("outbox_jobs", "JOB", "o-1"), State: "paused", Rows: 1, Head: "7", Reason: "stock-taking", Error: "older", Since: ago},
		{LaneKey: key("outbox_events", "EVENT", "o-2"), State: "waiting", Rows: 1, Head: "8", NextAttempt: time.Now().Add(30*time.Second + 500*time.Millisecond)},
		{LaneKey: store.LaneKey{Outbox: "outbox_events", Kind: "EVENT"}, RowID: "9", State: "ready", Rows: 1, Head: "9"},
		{LaneKey: key("outbox_events", "EVENT", "two words"), State: "ready"},
	}}
}

func TestLanesList(t *testing.T) {
	lanes := severalLanes()
	at := "--admin=http://" + serveAdmin(t, lanes, nil, "")
	got := try(t, backend{}, nil, "lanes", "list", at)
	want := `OUTBOX         KIND   GROUP        STATE    ROWS  FIRST  TRIES  RETRIES  NEXT    SINCE  REASON
outbox_events  EVENT  o-1          blocked  12    0JPX1  4      3        -       3m     400: name is �[31mmissing
outbox_jobs    JOB    o-1          paused   1     7      0      0        -       3m     stock-taking
outbox_events  EVENT  o-2          waiting  1     8      0      0        in 30s  -      ` + `
outbox_events  EVENT  (none)       ready    1     9      0      0        -       -      ` + `
outbox_events  EVENT  "two words"  ready    0     -      0      0        -       -      ` + `
`
	if got.code != 0 || got.stdout != want || got.stderr != "" {
		t.Errorf("exit %d\n%s\nwant\n%s%s", got.code, got.stdout, want, got.stderr)
	}
	got = try(t, backend{}, nil, "lanes", "list", at, "--json", "--limit=1")
	if want := `{
  "lanes": [
    {
      "outbox": "outbox_events",
      "kind": "EVENT",
      "group": "o-1",
      "state": "blocked",
`; got.code != 0 || !strings.HasPrefix(got.stdout, want) || !strings.HasSuffix(got.stdout, "\"total\": 5\n}\n") {
		t.Errorf("exit %d, %s%s", got.code, got.stdout, got.stderr)
	}
	for args, lines := range map[string]int{
		"--outbox outbox_jobs": 2, "--kind EVENT --group o-1": 2, "--no-group": 2, "--state ready": 3, "--group=": 0, "--limit 2": 3,
	} {
		got := try(t, backend{}, nil, append([]string{"lanes", "list", at}, strings.Fields(args)...)...)
		if n := strings.Count(got.stdout, "\n"); got.code != 0 || n != lines {
			t.Errorf("%s: exit %d, %d lines:\n%s%s", args, got.code, n, got.stdout, got.stderr)
		}
		if want := map[string]string{"--group=": "no lane matches\n", "--limit 2": "3 more; --limit shows them\n"}[args]; got.stderr != want {
			t.Errorf("%s: says %q, want %q", args, got.stderr, want)
		}
	}
}

func TestLaneActions(t *testing.T) {
	lanes := severalLanes()
	at := "--admin=" + serveAdmin(t, lanes, nil, "")
	for _, tt := range []struct {
		args           []string
		did, said, why string
		code           int
	}{
		{[]string{"retry-now", "--group", "o-2"}, "retry outbox_events/EVENT/o-2 ", "lane outbox_events EVENT o-2: tried again; it is waiting, with 1 row\n", "", 0},
		{[]string{"skip", "--group", "o-1", "--kind", "EVENT", "--reason", "known bad"}, "skip outbox_events/EVENT/o-1 : known bad", "lane outbox_events EVENT o-1: skipped its first row; it is blocked, with 12 rows\n", "", 0},
		{[]string{"resume", "--group", "o-1", "--outbox", "outbox_jobs"}, "resume outbox_jobs/JOB/o-1 ", "lane outbox_jobs JOB o-1: resumed; it is paused, with 1 row\n", "", 0},
		{[]string{"retry-now", "--row", "9"}, "retry outbox_events/EVENT/(none) 9", "lane outbox_events EVENT (none) 9: tried again; it is ready, with 1 row\n", "", 0},
		{[]string{"pause", "--outbox", "elsewhere", "--kind", "", "--no-group", "--reason", "r"}, "pause elsewhere/(none) : r", "lane elsewhere \"\" (none): paused; no rows in memory\n", "", 0},
		{[]string{"pause", "--outbox", "elsewhere", "--kind", "K", "--group", "", "--reason", "r", "--json"}, "pause elsewhere/K/ : r", "{}\n", "", 0},
		{[]string{"skip", "--group", "o-1", "--reason", "r"}, "", "", "sluicebox: 2 lanes match; nothing was done\n  choose one with --outbox and --kind\n", 64},
		{[]string{"resume", "--no-group"}, "", "", "sluicebox: each row without a group has its own lane; nothing was done\n  choose one with --row ID (sluicebox lanes list --no-group)\n", 64},
		{[]string{"resume", "--group", "o-3"}, "", "", "sluicebox: the relay has no such lane; nothing was done\n", 1},
	} {
		got := try(t, backend{}, nil, slices.Concat([]string{"lanes"}, tt.args, []string{at})...)
		did := strings.Join(lanes.done(), ", ")
		if got.code != tt.code || did != tt.did || got.stdout != tt.said || !strings.Contains(got.stderr, tt.why) || tt.why == "" && got.stderr != "" {
			t.Errorf("%q: exit %d, did %q, %q, %q", tt.args, got.code, did, got.stdout, got.stderr)
		}
	}
	got := try(t, backend{}, nil, "lanes", "skip", "--group", "o-1", "--reason", "r", at)
	if !strings.Contains(got.stderr, "outbox_events  EVENT  o-1") || !strings.Contains(got.stderr, "outbox_jobs    JOB    o-1") {
		t.Errorf("the lanes that fit are not shown: %s", got.stderr)
	}
	got = try(t, backend{}, nil, "lanes", "resume", "--group", "o-1", "--kind", "JOB", "--json", at)
	if got.code != 0 || !strings.Contains(got.stdout, `"reason": "stock-taking"`) {
		t.Errorf("exit %d, %s", got.code, got.stdout)
	}
}

func TestLaneUsage(t *testing.T) {
	for args, want := range map[string]string{
		"skip --group g":                       "missing flags: --reason=TEXT",
		"pause --no-group":                     "missing flags: --reason=TEXT",
		"skip --reason r":                      "name the lane with --group GROUP, or --no-group",
		"resume --group g --no-group":          "--group and --no-group can't be used together",
		"resume --group g --row 1":             "--row is for rows without a group",
		"list --limit 0":                       "--limit is 0, must be at least 1",
		"resume --group g --admin ftp://relay": "--admin: invalid relay address: want a URL such as http://127.0.0.1:8090",
		"list extra":                           "unexpected argument extra",
	} {
		got := try(t, backend{}, nil, append([]string{"lanes"}, strings.Fields(args)...)...)
		if got.code != 64 || got.stdout != "" || !strings.Contains(got.stderr, want) {
			t.Errorf("%s: exit %d, %q; want %q", args, got.code, got.stderr, want)
		}
	}
}

// TestRelayAnswers checks the texts and exit codes for a relay's errors.
func TestRelayAnswers(t *testing.T) {
	lanes := severalLanes()
	at := "--admin=" + serveAdmin(t, lanes, nil, "")
	for _, tt := range []struct {
		err  error
		code int
		want string
	}{
		{dispatch.ErrNoLane, 1, "sluicebox: lane o K g: lane not found\n  sluicebox lanes list shows"},
		{fmt.Errorf("%w: lane is not paused", dispatch.ErrLaneState), 1, "lane is not paused"},
		{sluicebox.ErrNotLeading, 1, "this relay is not the leader"},
		{&sluicebox.RequestError{Problem: `there is no outbox "o"; the outboxes are a, b`}, 64, "refused by the relay: there is no outbox \"o\"; the outboxes are a, b\n"},
		{fmt.Errorf("the disk is full"), 1, "sluicebox: the disk is full\n"},
	} {
		lanes.err = tt.err
		got := try(t, backend{}, nil, "lanes", "resume", "--outbox=o", "--kind=K", "--group=g", at)
		if got.code != tt.code || got.stdout != "" || !strings.Contains(got.stderr, tt.want) {
			t.Errorf("%v: exit %d, %q", tt.err, got.code, got.stderr)
		}
	}
}

// TestRelayAddress checks where the relay's address and token come from.
func TestRelayAddress(t *testing.T) {
	address := serveAdmin(t, severalLanes(), nil, "right")
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	config := func(admin string) string { return write("relay.yaml", good+"admin: "+admin+"\n") }
	token := write("token", "right\n")
	const refused = "sluicebox: admin token missing or refused by the relay\n  give it with --token-file FILE"
	for _, tt := range []struct {
		name    string
		environ []string
		args    []string
		code    int
		want    string
	}{
		{"configuration", nil, []string{"-c", config("{listen: '" + address + "', token: right}")}, 0, ""},
		{"token file", nil, []string{"--admin", address, "--token-file", token}, 0, ""},
		{"environment", []string{
			"SLUICEBOX_SOURCE_URL=postgres://db/shop", "SLUICEBOX_FLOWCATALYST_API_BASE_URL=https://platform",
			"SLUICEBOX_ADMIN_LISTEN=" + address, "SLUICEBOX_ADMIN_TOKEN=right",
		}, nil, 0, ""},
		{"no token", nil, []string{"--admin", address}, 78, refused},
		{"wrong token", nil, []string{"--admin", address, "--token-file", write("wrong", "wrong")}, 78, refused},
		{"no token file", nil, []string{"--admin", address, "--token-file", dir + "/none"}, 78, "cannot read --token-file " + dir + "/none: no such file or directory"},
		{"no token in it", nil, []string{"--admin", address, "--token-file", write("two", "right\nsecret\n")}, 78, "two holds no bearer token"},
		{"no configuration", nil, nil, 78, "no configuration: -c FILE is missing"},
		{"a broken one", nil, []string{"--admin", address, "-c", write("broken.yaml", "nam: x")}, 78, "nam: unknown key"},
	} {
		got := try(t, backend{}, tt.environ, append([]string{"lanes", "list", "--limit=1"}, tt.args...)...)
		if got.code != tt.code || !strings.Contains(got.stderr, tt.want) || strings.Contains(got.stderr, "secret") {
			t.Errorf("%s: exit %d, %q", tt.name, got.code, got.stderr)
		}
	}
	for admin, want := range map[string]string{
		"{listen: ''}":              "admin.listen is empty: the relay of this configuration has no admin endpoints\n  set admin.listen",
		"{listen: '127.0.0.1:0'}":   "admin.listen: 127.0.0.1:0 picks a free port, which is unknown to clients\n  name the relay's address with --admin",
		"{listen: '127.0.0.1:111'}": "sluicebox: no relay responds at http://127.0.0.1:111: connect: connection refused\n",
	} {
		code := 78
		if strings.Contains(admin, ":111") {
			code = 1
		}
		got := try(t, backend{}, nil, "lanes", "list", "-c", config(admin))
		if got.code != code || !strings.Contains(got.stderr, want) {
			t.Errorf("%s: exit %d, %q", admin, got.code, got.stderr)
		}
	}
	got := try(t, backend{}, nil, "lanes", "list", "--admin", "127.0.0.1:111")
	if !strings.Contains(got.stderr, "connection refused\n  the relay (sluicebox run) must be running, with this address in admin.listen") {
		t.Errorf("says %q", got.stderr)
	}
}

// TestLanesInterrupted checks that a signal before the response is no success.
func TestLanesInterrupted(t *testing.T) {
	signals := make(chan os.Signal, 1)
	lanes := &hangingLanes{fakeLanes: severalLanes(), asked: func() { signals <- os.Interrupt }}
	at := "--admin=" + serveAdmin(t, lanes, nil, "")
	got := tryWith(t, program{signals: signals}, "lanes", "skip", "--outbox=o", "--kind=K", "--group=g", "--reason=r", at)
	if got.code != 1 || got.stdout != "" || !strings.Contains(got.stderr, "interrupted before the relay responded") {
		t.Errorf("exit %d, %q, %q", got.code, got.stdout, got.stderr)
	}
}

// hangingLanes never finish a skip.
type hangingLanes struct {
	*fakeLanes
	asked func()
}

func (l *hangingLanes) Skip(ctx context.Context, _ dispatch.LaneName, _ string) error {
	l.asked()
	<-ctx.Done()
	return ctx.Err()
}
