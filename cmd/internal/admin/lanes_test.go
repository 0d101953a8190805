package admin_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
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

// recorder is a Lanes and a DeadLetters that records its calls.
type recorder struct {
	mu      sync.Mutex
	asked   []string
	lanes   []dispatch.LaneInfo
	total   int
	filter  dispatch.LaneFilter
	letters []store.DeadLetter
	chosen  store.DeadLetterFilter
	count   func(store.DeadLetterFilter) (int, error)
	err     error
}

func (d *recorder) note(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = append(d.asked, fmt.Sprintf(format, args...))
}

// said returns the calls since the last call of said.
func (d *recorder) said() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	asked := d.asked
	d.asked = nil
	return asked
}

type laneRecorder struct{ *recorder }

func (d laneRecorder) List(f dispatch.LaneFilter, limit int) ([]dispatch.LaneInfo, int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.filter = f
	return d.lanes[:min(limit, len(d.lanes))], d.total, d.err
}

func (d laneRecorder) RetryNow(lane dispatch.LaneName) error {
	d.note("retry %s %q", lane.LaneKey, lane.RowID)
	return d.err
}

func (d laneRecorder) Skip(_ context.Context, lane dispatch.LaneName, reason string) error {
	d.note("skip %s %q: %s", lane.LaneKey, lane.RowID, reason)
	return d.err
}

func (d laneRecorder) Pause(_ context.Context, lane dispatch.LaneName, reason string) error {
	d.note("pause %s %q: %s", lane.LaneKey, lane.RowID, reason)
	return d.err
}

func (d laneRecorder) Resume(_ context.Context, lane dispatch.LaneName) error {
	d.note("resume %s %q", lane.LaneKey, lane.RowID)
	return d.err
}

// serveRecorder serves both parts of the API.
func serveRecorder(t *testing.T, d *recorder, token string) (base string) {
	t.Helper()
	return serve(t, admin.Config{Token: token, Lanes: laneRecorder{d}, DeadLetters: letterRecorder{d}}, &checks{})
}

// post sends a body unchanged.
func post(t *testing.T, url, body string, header ...string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "POST", url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return do(t, req, header...)
}

// expectError compares a response with a status and a part of its error.
func expectError(t *testing.T, what string, got answer, status int, want string) {
	t.Helper()
	var body struct{ Error string }
	if err := json.Unmarshal([]byte(got.body), &body); err != nil {
		t.Errorf("%s: %v in %q", what, err, got.body)
	}
	if got.status != status || !strings.Contains(body.Error, want) || got.header.Get("Content-Type") != "application/json" {
		t.Errorf("%s: answers %d %q, want %d %q", what, got.status, got.body, status, want)
	}
}

func someLanes() []dispatch.LaneInfo {
	at := time.Date(2026, 3, 4, 5, 6, 7, 800_000_000, time.UTC)
	return []dispatch.LaneInfo{
		{
			LaneKey: store.LaneKey{Outbox: "o", Kind: "EVENT", Group: store.GroupOf("<g>")}, State: "blocked", Rows: 3, Spilled: 7,
			Head: "id-1", Attempts: 4, RetryCount: 3, Error: "400: no", Since: at,
		},
		{LaneKey: store.LaneKey{Outbox: "o", Kind: "EVENT"}, RowID: "id-9", State: "waiting", Rows: 1, Head: "id-9", NextAttempt: at},
		{LaneKey: store.LaneKey{Outbox: "o", Kind: "JOB", Group: store.GroupOf("")}, State: "paused", Reason: "stock-taking"},
	}
}

func TestLanesList(t *testing.T) {
	d := &recorder{lanes: someLanes(), total: 7}
	base := serveRecorder(t, d, "")
	got := ask(t, "GET", base+"/api/v1/lanes")
	want := `{"lanes":[` +
		`{"outbox":"o","kind":"EVENT","group":"<g>","state":"blocked","rows":3,"spilled":7,"unwritten":0,"head":"id-1","attempts":4,"retry_count":3,"error":"400: no","since":"2026-03-04T05:06:07.8Z"},` +
		`{"outbox":"o","kind":"EVENT","group":null,"row_id":"id-9","state":"waiting","rows":1,"spilled":0,"unwritten":0,"head":"id-9","attempts":0,"retry_count":0,"next_attempt":"2026-03-04T05:06:07.8Z"},` +
		`{"outbox":"o","kind":"JOB","group":"","state":"paused","rows":0,"spilled":0,"unwritten":0,"head":"","attempts":0,"retry_count":0,"reason":"stock-taking"}` +
		`],"total":7}` + "\n"
	if got.status != 200 || got.body != want || got.header.Get("Content-Type") != "application/json" {
		t.Errorf("answers %d %s\nwant %s", got.status, got.body, want)
	}
	if got := ask(t, "GET", base+"/api/v1/lanes?limit=1"); strings.Count(got.body, `"outbox"`) != 1 {
		t.Errorf("limit=1 answers %s", got.body)
	}
	d.lanes = nil
	if got := ask(t, "GET", base+"/api/v1/lanes"); got.body != `{"lanes":[],"total":7}`+"\n" {
		t.Errorf("no lanes are %s", got.body)
	}
	for query, want := range map[string]dispatch.LaneFilter{
		"":                             {},
		"outbox=o&kind=EVENT":          {Outbox: "o", Kind: "EVENT"},
		"group=a%2Fb%26c":              {Group: &store.Group{Name: "a/b&c", Valid: true}},
		"group=":                       {Group: &store.Group{Valid: true}},
		"no-group":                     {Group: &store.Group{}},
		"no-group=true":                {Group: &store.Group{}},
		"state=spilled":                {State: "spilled"},
		"no-group=false&state=blocked": {State: "blocked"},
	} {
		ask(t, "GET", base+"/api/v1/lanes?"+query)
		same := (want.Group == nil) == (d.filter.Group == nil) && (want.Group == nil || *want.Group == *d.filter.Group)
		if want.Group, d.filter.Group = nil, nil; !same || d.filter != want {
			t.Errorf("%q asks for %+v, want %+v", query, d.filter, want)
		}
	}
}

func TestQueryFaults(t *testing.T) {
	base := serveRecorder(t, &recorder{}, "")
	for query, want := range map[string]string{
		"lanes?limit=0":                 `limit is "0", must be between 1 and 10000`,
		"lanes?limit=10001":             "must be between 1 and 10000",
		"lanes?limit=many":              `limit is "many"`,
		"lanes?state=stuck":             `state is "stuck", must be one of ready, claiming, sending, writing, waiting, stalled, blocked, paused`,
		"lanes?group=a&no-group":        "group and no-group are both given",
		"lanes?group=a&group=b":         "group is given more than once",
		"lanes?no-group=maybe":          `no-group is "maybe", must be true or false`,
		"lanes?grp=a":                   `unknown parameter "grp"; the parameters are outbox, kind, group, no-group, state, limit`,
		"lanes?group=%zz":               "parse query parameters",
		"deadletters?since=yesterday":   `since is "yesterday", must be a time such as 2026-01-31T15:04:05Z`,
		"deadletters?limit=1001":        "must be between 1 and 1000",
		"deadletters?payload&limit=26":  "must be between 1 and 25",
		"deadletters?dry_run=true":      `unknown parameter "dry_run"`,
		"deadletters/count?limit=5":     `unknown parameter "limit"`,
		"deadletters/count?id=1&grp=id": `unknown parameter "grp"`,
	} {
		expectError(t, query, ask(t, "GET", base+"/api/v1/"+query), 400, want)
	}
}

func TestLaneActions(t *testing.T) {
	d := &recorder{lanes: someLanes(), total: 3}
	base := serveRecorder(t, d, "") + "/api/v1/lanes/"
	for _, tt := range []struct{ action, body, asked, answer string }{
		{"retry-now", `{"outbox":"o","kind":"EVENT","group":"<g>"}`, `retry o/EVENT/<g> ""`, `"state":"blocked"`},
		{"skip", `{"outbox":"o","kind":"EVENT","group":"<g>","reason":"known bad"}`, `skip o/EVENT/<g> "": known bad`, `"head":"id-1"`},
		{"pause", `{"outbox":"o","kind":"JOB","group":"","reason":"r"}`, `pause o/JOB/ "": r`, `"reason":"stock-taking"`},
		{"resume", `{"outbox":"o","kind":"","group":null}`, `resume o/(none) ""`, `{}`},
		{"retry-now", `{"outbox":"o","kind":"EVENT","row_id":"id-9"}`, `retry o/EVENT/(none) "id-9"`, `"row_id":"id-9"`},
	} {
		got := post(t, base+tt.action, tt.body)
		if got.status != 200 || !strings.Contains(got.body, tt.answer) {
			t.Errorf("%s %s answers %d %s", tt.action, tt.body, got.status, got.body)
		}
		if asked := d.said(); !slices.Equal(asked, []string{tt.asked}) {
			t.Errorf("%s %s asks %q, want %q", tt.action, tt.body, asked, tt.asked)
		}
	}
	d.lanes = nil // its rows have left it
	if got := post(t, base+"skip", `{"outbox":"o","kind":"EVENT","group":"<g>","reason":"r"}`); got.status != 200 || got.body != "{}\n" {
		t.Errorf("a lane that is gone answers %d %s", got.status, got.body)
	}
}

// TestLaneBesideAReplay checks that an action responds with the group's live lane, not
// with a replay's.
func TestLaneBesideAReplay(t *testing.T) {
	lane := someLanes()[0]
	own, shadow := lane, lane
	own.State, own.Reason, shadow.State, shadow.Job = "replaying", "held by replay abc", "sending", "abc"
	d := &recorder{lanes: []dispatch.LaneInfo{shadow, own}, total: 2}
	base := serveRecorder(t, d, "") + "/api/v1/lanes"
	if got := ask(t, "GET", base+"?state=replaying"); got.status != 200 || d.filter.State != "replaying" || strings.Count(got.body, `"replay":"abc"`) != 1 {
		t.Errorf("answers %d %s to %+v", got.status, got.body, d.filter)
	}
	got := post(t, base+"/pause", `{"outbox":"o","kind":"EVENT","group":"<g>","reason":"r"}`)
	if got.status != 200 || !strings.Contains(got.body, `"state":"replaying"`) || strings.Contains(got.body, `"replay":`) {
		t.Errorf("answers %d %s", got.status, got.body)
	}
}

// TestActionFaults checks that an invalid request changes nothing.
func TestActionFaults(t *testing.T) {
	d := &recorder{lanes: someLanes()}
	base := serveRecorder(t, d, "") + "/api/v1/"
	for _, tt := range []struct{ path, body, want string }{
		{"lanes/skip", ``, "request body is empty"},
		{"lanes/skip", `{`, "read request body: unexpected EOF"},
		{"lanes/skip", `[]`, "request body is a JSON array; send an object"},
		{"lanes/skip", `null`, "outbox is required"},
		{"lanes/skip", `{"outbox":"o","kind":"k","reason":"r"} {}`, "data after the JSON object"},
		{"lanes/skip", `{"outbox":"o","kind":"k","grp":"g","reason":"r"}`, `unknown field "grp"`},
		{"lanes/skip", `{"outbox":"o","kind":"k","Group":"g","reason":"r"}`, `unknown field "Group"; did you mean "group"?`},
		{"lanes/skip", `{"outbox":"o","kind":"k","group":7,"reason":"r"}`, "group cannot be a number"},
		{"lanes/skip", `{"outbox":"o","kind":"k"}`, "skip needs a reason"},
		{"lanes/pause", `{"outbox":"o","kind":"k","reason":" "}`, "pause needs a reason"},
		{"lanes/skip", `{"kind":"k","reason":"r"}`, "outbox is required"},
		{"lanes/skip", `{"outbox":"o","reason":"r"}`, "kind is required"},
		{"lanes/skip", `{"outbox":"o","kind":"k","group":"g","row_id":"1","reason":"r"}`, "row_id is only for rows without a group"},
		{"lanes/skip", `{"outbox":"o","kind":"k","reason":"` + strings.Repeat("☃", 501) + `"}`, "reason is longer than 500 characters"},
		{"lanes/skip", `{"outbox":"o","kind":"k","reason":"a\u0000b"}`, "control character"},
		{"deadletters/discard", `{"outbox":"o","group":null}`, "group is null; omit it"},
		{"deadletters/discard", `{"outbox":"o","group":"g","no_group":true}`, "group and no_group are both given"},
		{"deadletters/discard", `{"outbox":"o","ids":[]}`, "ids is empty"},
		{"deadletters/discard", `{"outbox":"o","limit":1001}`, "limit is 1001, must be between 1 and 1000"},
		{"deadletters/discard", `{"outbox":"o","limit":-1}`, "limit is -1"},
		{"deadletters/discard", `{"outbox":"o","since":"soon"}`, "read request body"},
		{"deadletters/discard", `{"outbox":"o","dryrun":true}`, `unknown field "dryrun"`},
		{"deadletters/discard", `{"outbox":"o","ids":["` + strings.Repeat(`1","`, 1000) + `"]}`, "exceed the limit of 1000"},
	} {
		expectError(t, tt.path+" "+tt.body, post(t, base+tt.path, tt.body), 400, tt.want)
	}
	expectError(t, "a large body", post(t, base+"deadletters/requeue", `{"outbox":"`+strings.Repeat("x", 1<<20)+`"}`), 413, "request body larger than 1048576 bytes")
	if asked := d.said(); len(asked) > 0 {
		t.Errorf("it asked %q", asked)
	}
}

func TestAPIErrors(t *testing.T) {
	d := &recorder{}
	base := serveRecorder(t, d, "")
	for _, tt := range []struct {
		err    error
		status int
		want   string
	}{
		{dispatch.ErrNoLane, 404, "lane not found"},
		{fmt.Errorf("%w: lane is not paused", dispatch.ErrLaneState), 409, "lane is not paused"},
		{sluicebox.ErrNotLeading, 503, "not the leader"},
		{store.ErrNotLeader, 503, "not the leader"},
		{&sluicebox.RequestError{Problem: "unknown outbox"}, 400, "unknown outbox"},
		{&store.SetupError{Problem: "no grant", Remedy: "GRANT DELETE"}, 500, "no grant; GRANT DELETE"},
		{fmt.Errorf("in the end: %w", context.DeadlineExceeded), 504, "may still complete"},
		{context.Canceled, 503, "shutting down"},
		{errors.New("the disk is full"), 500, "the disk is full"},
	} {
		d.err = tt.err
		what := tt.err.Error()
		expectError(t, what, ask(t, "GET", base+"/api/v1/lanes"), tt.status, tt.want)
		for _, action := range []string{"retry-now", "skip", "pause", "resume"} {
			expectError(t, action+": "+what, post(t, base+"/api/v1/lanes/"+action, `{"outbox":"o","kind":"k","reason":"r"}`), tt.status, tt.want)
		}
		for _, path := range []string{"deadletters", "deadletters/count"} {
			expectError(t, path+": "+what, ask(t, "GET", base+"/api/v1/"+path), tt.status, tt.want)
		}
		for _, action := range []string{"requeue", "discard"} {
			expectError(t, action+": "+what, post(t, base+"/api/v1/deadletters/"+action, `{"outbox":"o"}`), tt.status, tt.want)
		}
	}
}

// TestAPIGuards checks the token, the Origin and the Host of requests.
func TestAPIGuards(t *testing.T) {
	d := &recorder{}
	open, locked := serveRecorder(t, d, ""), serveRecorder(t, d, "right")
	paths := map[string]string{"/api/v1/lanes": "GET", "/api/v1/deadletters": "GET", "/api/v1/deadletters/count": "GET"}
	for _, p := range []string{"lanes/retry-now", "lanes/skip", "lanes/pause", "lanes/resume", "deadletters/requeue", "deadletters/discard"} {
		paths["/api/v1/"+p] = "POST"
	}
	send := func(base, path string, header ...string) answer {
		if paths[path] == "POST" {
			body := `{"outbox":"o","kind":"k"}`
			if strings.Contains(path, "/lanes/") {
				body = `{"outbox":"o","kind":"k","reason":"r"}`
			}
			return post(t, base+path, body, header...)
		}
		req, err := http.NewRequestWithContext(t.Context(), "GET", base+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		return do(t, req, header...)
	}
	for path, method := range paths {
		got := send(locked, path)
		expectError(t, path, got, 401, "admin token required")
		if !strings.HasPrefix(got.header.Get("WWW-Authenticate"), "Bearer") {
			t.Errorf("%s: no challenge", path)
		}
		expectError(t, path, send(locked, path, "Authorization", "Bearer wrong"), 401, "admin token required")
		if got := send(locked, path, "Authorization", "Bearer right", "Host", "relay.example"); got.status != 200 {
			t.Errorf("%s with the token answers %d", path, got.status)
		}
		expectError(t, path, send(open, path, "Host", "evil.example:8090"), 403, "Host evil.example:8090 is refused")
		for _, host := range []string{"localhost", "127.0.0.1:1", "[::1]", "[::1]:8090"} {
			if got := send(open, path, "Host", host); got.status != 200 {
				t.Errorf("%s by the name %s answers %d %s", path, host, got.status, got.body)
			}
		}
		d.said()
		if method == "POST" {
			if got := send(locked, path, "Authorization", "Bearer right", "Sec-Fetch-Site", "cross-site"); got.status != 403 {
				t.Errorf("%s from another site answers %d", path, got.status)
			}
			if got := ask(t, "GET", open+path); got.status != 405 {
				t.Errorf("GET %s answers %d", path, got.status)
			}
			if asked := d.said(); len(asked) > 0 {
				t.Errorf("it asked %q", asked)
			}
		}
	}
	if got := post(t, open+"/api/v1/lanes/stop", "{}"); got.status != 404 {
		t.Errorf("an unknown action answers %d", got.status)
	}
	if got := ask(t, "GET", serve(t, admin.Config{}, &checks{})+"/api/v1/lanes"); got.status != 404 {
		t.Errorf("without lanes their list answers %d", got.status)
	}
}
