package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/store"
)

// fakeLetters are FAILED rows in memory, for reading.
type fakeLetters struct {
	store.DeadLetters
	rows   []store.DeadLetter
	err    error
	asked  []store.DeadLetterFilter
	closed int
}

func (l *fakeLetters) choose(f store.DeadLetterFilter) (rows []store.DeadLetter) {
	l.asked = append(l.asked, f)
	for _, d := range l.rows {
		if d.Outbox == f.Outbox && (len(f.IDs) == 0 || slices.Contains(f.IDs, d.ID)) &&
			(f.Group == nil || *f.Group == d.Group) && strings.Contains(d.Error, f.Error) {
			rows = append(rows, d)
		}
	}
	return rows
}

func (l *fakeLetters) CountFailed(_ context.Context, f store.DeadLetterFilter) (int, error) {
	return len(l.choose(f)), l.err
}

func (l *fakeLetters) Failed(_ context.Context, f store.DeadLetterFilter, limit int, payload bool) ([]store.DeadLetter, error) {
	rows := l.choose(f)
	rows = slices.Clone(rows[:min(limit, len(rows))])
	for i := range rows {
		if !payload {
			rows[i].Payload = nil
		}
	}
	return rows, l.err
}

// reading returns a relay with these FAILED rows.
func reading(l *fakeLetters) backend {
	return backend{deadLetters: func(*config.Config) (store.DeadLetters, func(), error) {
		return l, func() { l.closed++ }, nil
	}}
}

func someLetters() *fakeLetters {
	at := time.Now().Add(-3*time.Hour - time.Minute)
	return &fakeLetters{rows: []store.DeadLetter{
		{
			Ref: store.Ref{Outbox: "outbox_events", ID: "0JPX1"}, Kind: "EVENT", Group: store.GroupOf("o-1"), RetryCount: 3,
			Error: "400: name\nis missing", FailedAt: at, Payload: []byte("{\"a\":\t\"\x1b[31mü\"}\n"), PayloadSize: 17,
		},
		{Ref: store.Ref{Outbox: "outbox_events", ID: "0JPX2"}, Kind: "EVENT", Payload: []byte{0xff, 0xfe}, PayloadSize: 2},
		{Ref: store.Ref{Outbox: "outbox_dispatch_jobs", ID: "0JPX1"}, Kind: "DISPATCH_JOB", Group: store.GroupOf(""), Payload: []byte{}},
	}}
}

func TestDeadLettersList(t *testing.T) {
	letters, path := someLetters(), file(t, good)
	got := try(t, reading(letters), nil, "deadletters", "list", "-c", path)
	want := `OUTBOX                KIND          GROUP   ID     AGE  RETRIES  BYTES  ERROR
outbox_events         EVENT         o-1     0JPX1  3h   3        17     400: name is missing
outbox_events         EVENT         (none)  0JPX2  -    0        2      ` + `
outbox_dispatch_jobs  DISPATCH_JOB  ""      0JPX1  -    0        0      ` + `
`
	if got.code != 0 || got.stdout != want || got.stderr != "" || letters.closed != 1 {
		t.Errorf("exit %d\n%s\nwant\n%s%s", got.code, got.stdout, want, got.stderr)
	}
	for args, says := range map[string]string{
		"--limit 1": "2 more; --limit shows them\n", "--limit 2": "1 more; --limit shows them\n", "--limit 3": "",
		"--error nowhere": "no FAILED row matches\n", "--group o-1": "", "--outbox outbox_dispatch_jobs": "",
	} {
		got := try(t, reading(letters), nil, append([]string{"deadletters", "list", "-c", path}, strings.Fields(args)...)...)
		if got.code != 0 || got.stderr != says {
			t.Errorf("%s: exit %d, says %q, want %q\n%s", args, got.code, got.stderr, says, got.stdout)
		}
	}
	got = try(t, reading(letters), nil, "deadletters", "list", "-c", path, "--json", "--no-group")
	var list admin.DeadLetterList
	if err := json.Unmarshal([]byte(got.stdout), &list); err != nil || len(list.DeadLetters) != 1 || list.DeadLetters[0].ID != "0JPX2" || list.DeadLetters[0].Bytes != nil {
		t.Errorf("%v: %s", err, got.stdout)
	}
	if got := try(t, reading(letters), nil, "deadletters", "list", "-c", path, "--json", "--error=nowhere"); got.stdout != "{\n  \"deadletters\": []\n}\n" || got.stderr != "" {
		t.Errorf("none are %q, %q", got.stdout, got.stderr)
	}
	letters.asked = nil
	try(t, reading(letters), nil, "deadletters", "list", "-c", path, "--outbox=outbox_events", "--kind=EVENT", "--group=", "--error=50%",
		"--since=2026-01-02T03:04:05Z", "--until=1h30m")
	f := letters.asked[0]
	if f.Kind != "EVENT" || f.Group == nil || *f.Group != store.GroupOf("") || f.Error != "50%" ||
		!f.Since.Equal(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)) || time.Since(f.Until).Round(time.Minute) != 90*time.Minute {
		t.Errorf("asks for %+v", f)
	}
}

func TestDeadLettersShow(t *testing.T) {
	letters, path := someLetters(), file(t, good)
	got := try(t, reading(letters), nil, "deadletters", "show", "-c", path, "0JPX2", "0JPX1")
	at := letters.rows[0].FailedAt.UTC().Format(time.RFC3339)
	want := fmt.Sprintf(`outbox   outbox_events
id       0JPX1
kind     EVENT
group    o-1
failed   %s (3h ago)
retries  3
error    400: name is missing
payload  17 bytes
{"a":	"�[31mü"}


outbox   outbox_events
id       0JPX2
kind     EVENT
group    (none)
failed   unknown
retries  0
error    
payload  2 bytes
(not text; --json has it in base64)

outbox   outbox_dispatch_jobs
id       0JPX1
kind     DISPATCH_JOB
group    ""
failed   unknown
retries  0
error    
payload  0 bytes


`, at)
	if got.code != 0 || got.stdout != want || got.stderr != "" || letters.closed != 1 {
		t.Errorf("exit %d\n%s\nwant\n%s%s", got.code, got.stdout, want, got.stderr)
	}
	got = try(t, reading(letters), nil, "deadletters", "show", "-c", path, "--json", "0JPX1", "0JPX2", "none", "nor this")
	var list admin.DeadLetterList
	if err := json.Unmarshal([]byte(got.stdout), &list); err != nil || len(list.DeadLetters) != 3 {
		t.Fatalf("%v: %s", err, got.stdout)
	}
	if first, second := list.DeadLetters[0], list.DeadLetters[1]; *first.Text != string(letters.rows[0].Payload) || !slices.Equal(second.Bytes, letters.rows[1].Payload) {
		t.Errorf("the payloads are %q and %q", *first.Text, second.Bytes)
	}
	if want := "sluicebox: no FAILED row has the id none, nor this in outbox_events, outbox_dispatch_jobs\n"; got.code != 1 || got.stderr != want {
		t.Errorf("exit %d, %q", got.code, got.stderr)
	}
	var many []string
	for i := range 60 { // more than one batch
		id := fmt.Sprintf("m%d", i)
		many = append(many, id)
		letters.rows = append(letters.rows, store.DeadLetter{Ref: store.Ref{Outbox: "outbox_events", ID: id}, Payload: []byte(id)})
	}
	got = try(t, reading(letters), nil, append([]string{"deadletters", "show", "-c", path, "--outbox=outbox_events"}, many...)...)
	if got.code != 0 || strings.Count(got.stdout, "\nid ") != 60 {
		t.Errorf("exit %d, %d rows, %s", got.code, strings.Count(got.stdout, "\nid "), got.stderr)
	}
}

// A table that stores FAILED without a retry count shows none. If it cannot store FAILED, the
// relay's record of the row has the count.
func TestDeadLettersWithoutRetryCount(t *testing.T) {
	letters := &fakeLetters{rows: []store.DeadLetter{{Ref: store.Ref{Outbox: "orders", ID: "17"}, RetryCount: 4, Error: "400", PayloadSize: 2}}}
	for state, retries := range map[string]string{"delivered: sent_at, failed: failed_at": "-", "delivered: sent_at": "4"} {
		path := file(t, `source: {url: "postgres://relay:canary@db/shop"}
outboxes:
  - table: orders
    kind: ORDER
    layout: custom
    state: timestamps
    columns: {id: id, group: none, payload: payload, `+state+`}
    order-by: [id]
    sink: hook
sinks:
  hook: {type: webhook, url: "https://hooks.example"}
`)
		for command, want := range map[string]string{
			"list":    "orders  \"\"    (none)  17  -    " + retries + "        2      400\n",
			"show 17": "\nretries  " + retries + "\n",
		} {
			got := try(t, reading(letters), nil, append(append([]string{"deadletters"}, strings.Fields(command)...), "-c", path)...)
			if got.code != 0 || !strings.Contains(got.stdout, want) {
				t.Errorf("%s of %s: exit %d, want %q in\n%s%s", command, state, got.code, want, got.stdout, got.stderr)
			}
		}
	}
}

func TestDeadLetterReadingFails(t *testing.T) {
	path := file(t, good)
	letters := &fakeLetters{err: errors.New("the disk is full")}
	for _, args := range [][]string{{"list"}, {"show", "1"}} {
		got := try(t, reading(letters), nil, slices.Concat([]string{"deadletters"}, args, []string{"-c", path})...)
		if got.code != 1 || got.stdout != "" || !strings.Contains(got.stderr, "FAILED rows of outbox_events: the disk is full") {
			t.Errorf("%q: exit %d, %q", args, got.code, got.stderr)
		}
		got = try(t, reading(letters), nil, slices.Concat([]string{"deadletters"}, args, []string{"-c", path, "--outbox=outbox_event"})...)
		if got.code != 64 || !strings.Contains(got.stderr, "unknown outbox \"outbox_event\"\n  the outboxes are outbox_events, outbox_dispatch_jobs\n") {
			t.Errorf("%q: exit %d, %q", args, got.code, got.stderr)
		}
	}
	setup := &store.SetupError{Problem: "no grant", Remedy: "GRANT SELECT"}
	got := try(t, backend{deadLetters: func(*config.Config) (store.DeadLetters, func(), error) { return nil, nil, setup }}, nil, "deadletters", "list", "-c", path)
	if got.code != 78 || got.stderr != "sluicebox: no grant\n  GRANT SELECT\n" {
		t.Errorf("exit %d, %q", got.code, got.stderr)
	}
}

func TestDeadLetterUsage(t *testing.T) {
	for args, want := range map[string]string{
		"list --since soon":                       `invalid time "soon": want a time such as 2026-01-31T15:04:05Z, or how long ago`,
		"list --since=-2h":                        `invalid time "-2h"`,
		"list --since 1h --until 2h":              "--since is not before --until",
		"list --limit 0":                          "--limit is 0, must be at least 1",
		"list --group a --no-group":               "--group and --no-group can't be used together",
		"show":                                    `expected "<id> ..."`,
		"discard --limit=-1":                      "--limit is -1",
		"requeue --all-outboxes --outbox a":       "--outbox and --all-outboxes can't be used together",
		"requeue --outbox a --yes":                "no rows selected; name their ids, filter by --kind",
		"discard --all-outboxes --yes":            "or use --all for every FAILED row",
		"discard --all 1":                         "--all selects every FAILED row",
		"discard --all --since 2h":                "--all selects every FAILED row",
		"requeue --all --no-group":                "--all selects every FAILED row",
		"requeue --all --admin 127.0.0.1:1":       "no outbox named and no configuration found",
		"requeue " + strings.Repeat("1 ", 2):      "no configuration",
		"discard " + strings.Join(ids(1001), " "): "1001 ids exceed the limit of 1000 per request",
	} {
		code := 64
		if want == "no configuration" {
			code = 78 // a repeated id counts once
		}
		got := try(t, backend{}, nil, append([]string{"deadletters"}, strings.Fields(args)...)...)
		if got.code != code || got.stdout != "" || !strings.Contains(got.stderr, want) {
			t.Errorf("%s: exit %d, %q; want %q", args[:min(60, len(args))], got.code, got.stderr, want)
		}
	}
}

func ids(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("id-%04d", i)
	}
	return list
}

// recordedLetters are FAILED rows of a relay that requeues and discards them.
type recordedLetters struct {
	mu      sync.Mutex
	rows    map[string][]string // ids by outbox
	timed   bool                // the table records times
	did     []string
	filters []store.DeadLetterFilter
	err     error
	failAt  int // the action with this number fails, from 1
}

func (m *recordedLetters) Count(_ context.Context, f store.DeadLetterFilter) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil && m.failAt == 0 {
		return 0, m.err
	}
	if !f.Until.IsZero() && !m.timed {
		return 0, errors.New("the table keeps no times")
	}
	n := 0
	for _, id := range m.rows[f.Outbox] {
		if len(f.IDs) == 0 || slices.Contains(f.IDs, id) {
			n++
		}
	}
	return n, nil
}

func (m *recordedLetters) List(context.Context, store.DeadLetterFilter, int, bool) ([]store.DeadLetter, error) {
	return nil, errors.New("the command reads the database itself")
}

func (m *recordedLetters) act(name string, f store.DeadLetterFilter, limit int) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.did, m.filters = append(m.did, fmt.Sprintf("%s %s %d", name, f.Outbox, limit)), append(m.filters, f)
	if len(m.did) == m.failAt {
		return 0, m.err
	}
	n := min(limit, len(m.rows[f.Outbox]))
	m.rows[f.Outbox] = m.rows[f.Outbox][n:]
	return n, nil
}

func (m *recordedLetters) Requeue(_ context.Context, f store.DeadLetterFilter, limit int) (int, error) {
	return m.act("requeue", f, limit)
}

func (m *recordedLetters) Discard(_ context.Context, f store.DeadLetterFilter, limit int) (int, error) {
	return m.act("discard", f, limit)
}

// serveLetters serves such rows and returns a configuration of their relay.
func serveLetters(t *testing.T, m *recordedLetters) (path string) {
	t.Helper()
	address := serveAdmin(t, nil, m, "right")
	return file(t, good+"admin: {listen: '"+address+"', token: right}\n")
}

func TestDeadLetterActions(t *testing.T) {
	for _, tt := range []struct {
		args         string
		events, jobs int // number of FAILED rows
		did          []string
		stdout       string
		stderr       []string // parts
		code         int
	}{
		{"requeue --all --outbox outbox_events --yes", 3, 5, []string{"requeue outbox_events 3"},
			"outbox_events: 3 rows requeued\n", []string{"outbox_events: 3 FAILED rows will be reset to PENDING"}, 0},
		{"discard --all --outbox outbox_events -y", 1, 0, []string{"discard outbox_events 1"},
			"outbox_events: 1 row discarded\n", []string{"outbox_events: 1 FAILED row will be DELETED from the outbox table"}, 0},
		{"discard --all --all-outboxes --yes", 2, 1, []string{"discard outbox_events 2", "discard outbox_dispatch_jobs 1"},
			"outbox_events: 2 rows discarded\noutbox_dispatch_jobs: 1 row discarded\n", nil, 0},
		{"requeue --all-outboxes --yes --limit 3", 2, 4, []string{"requeue outbox_events 2", "requeue outbox_dispatch_jobs 1"},
			"outbox_events: 2 rows requeued\noutbox_dispatch_jobs: 1 row requeued\n", nil, 0},
		{"requeue --all --outbox outbox_events --yes", 2500, 0, []string{"requeue outbox_events 1000", "requeue outbox_events 1000", "requeue outbox_events 500"},
			"outbox_events: 2500 rows requeued\n", []string{"outbox_events: 1000 of 2500 requeued\noutbox_events: 2000 of 2500 requeued\noutbox_events: 2500 of 2500 requeued\n"}, 0},
		{"requeue --all-outboxes --dry-run", 2, 0, nil,
			"outbox_events: 2 FAILED rows would be requeued\noutbox_dispatch_jobs: 0 FAILED rows would be requeued\n", nil, 0},
		{"requeue --all --outbox outbox_events --yes", 0, 5, nil, "outbox_events: no FAILED row matches\n", nil, 0},
		{"discard --all --outbox outbox_events --yes --json", 3, 0, []string{"discard outbox_events 3"},
			"{\n  \"dry_run\": false,\n  \"outboxes\": [\n    {\n      \"outbox\": \"outbox_events\",\n      \"chosen\": 3,\n      \"done\": 3\n    }\n  ]\n}\n", nil, 0},
		{"requeue --all --yes", 1, 1, nil, "", []string{"several outboxes: outbox_events, outbox_dispatch_jobs\n  name one with --outbox, or use --all-outboxes\n"}, 64},
		{"requeue --all --outbox outbox_events", 1, 1, nil, "", []string{"stdin is not a terminal; nothing was changed\n  use --yes"}, 64},
		{"requeue --outbox outbox_events id-0000 id-0009 --yes", 3, 0, []string{"requeue outbox_events 1"}, "outbox_events: 1 row requeued\n", nil, 0},
		{"requeue --outbox outbox_events id-0009 --yes", 3, 0, nil, "", []string{"no FAILED row has one of these ids; nothing was changed\n"}, 1},
	} {
		m := &recordedLetters{rows: map[string][]string{"outbox_events": ids(tt.events), "outbox_dispatch_jobs": ids(tt.jobs)}, timed: true}
		path := serveLetters(t, m)
		got := try(t, backend{}, nil, append([]string{"deadletters"}, append(strings.Fields(tt.args), "-c", path)...)...)
		if got.code != tt.code || got.stdout != tt.stdout || !slices.Equal(m.did, tt.did) {
			t.Errorf("%s: exit %d, did %q\n%s%s", tt.args, got.code, m.did, got.stdout, got.stderr)
		}
		for _, part := range tt.stderr {
			if !strings.Contains(got.stderr, part) {
				t.Errorf("%s: %q lacks %q", tt.args, got.stderr, part)
			}
		}
	}
}

// TestActionsAffectOnlyCountedRows checks that an action is guarded by a time bound if the
// table records times, else by the number of rows.
func TestActionsAffectOnlyCountedRows(t *testing.T) {
	began := time.Now()
	m := &recordedLetters{rows: map[string][]string{"outbox_events": ids(1200)}, timed: true}
	got := try(t, backend{}, nil, "deadletters", "requeue", "--all", "--outbox=outbox_events", "--yes", "-c", serveLetters(t, m))
	if got.code != 0 || len(m.filters) != 2 || m.filters[0].Until.Before(began) || !m.filters[1].Until.Equal(m.filters[0].Until) {
		t.Errorf("exit %d, %+v, %s", got.code, m.filters, got.stderr)
	}
	m = &recordedLetters{rows: map[string][]string{"outbox_events": ids(1200)}}
	got = try(t, backend{}, nil, "deadletters", "requeue", "--all", "--outbox=outbox_events", "--yes", "-c", serveLetters(t, m))
	if got.code != 0 || len(m.filters) != 2 || !m.filters[0].Until.IsZero() {
		t.Errorf("exit %d, %+v, %s", got.code, m.filters, got.stderr)
	}
}

// TestPartialFailureOfAction checks the report of a partial failure.
func TestPartialFailureOfAction(t *testing.T) {
	for what, tt := range map[string]struct {
		m    *recordedLetters
		want string
		code int
	}{
		"counting": {&recordedLetters{err: sluicebox.ErrNotLeading}, "is not the leader; ask the leader or retry (/readyz?verbose shows the reason); the rows stay FAILED\n", 1},
		"first":    {&recordedLetters{err: errors.New("the disk is full"), failAt: 1}, "sluicebox: the disk is full; the rows stay FAILED\n", 1},
		"second":   {&recordedLetters{err: errors.New("the disk is full"), failAt: 2}, "sluicebox: the disk is full; 1000 of 1500 done, the others stay FAILED\n", 1},
		"grant":    {&recordedLetters{err: &store.SetupError{Problem: "no DELETE", Remedy: "GRANT DELETE"}, failAt: 1}, "sluicebox: no DELETE; GRANT DELETE; the rows stay FAILED\n", 1},
	} {
		tt.m.rows, tt.m.timed = map[string][]string{"outbox_events": ids(1500)}, true
		got := try(t, backend{}, nil, "deadletters", "discard", "--all", "--outbox=outbox_events", "--yes", "-c", serveLetters(t, tt.m))
		if got.code != tt.code || got.stdout != "" || !strings.HasSuffix(got.stderr, tt.want) {
			t.Errorf("%s: exit %d, %q", what, got.code, got.stderr)
		}
	}
	got := try(t, backend{}, nil, "deadletters", "requeue", "--all", "--outbox=o", "--yes", "--admin=127.0.0.1:111")
	if got.code != 1 || !strings.Contains(got.stderr, "no relay responds at http://127.0.0.1:111: ") || !strings.Contains(got.stderr, "; the rows stay FAILED\n  the relay (sluicebox run) must be running") {
		t.Errorf("exit %d, %q", got.code, got.stderr)
	}
}
