package admin_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/checkpoint/replay"
	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/store"
)

// requestRecorder is a Requests that records its calls.
type requestRecorder struct {
	recorder
	named   []admin.Checkpoint
	jobs    []admin.Replay
	refused []store.ReplayError
	spec    *replay.Spec
}

func (d *requestRecorder) Checkpoints(context.Context) ([]admin.Checkpoint, error) {
	return d.named, d.err
}

func (d *requestRecorder) CreateCheckpoint(_ context.Context, name string, keepLog bool) error {
	d.note("create %s %t", name, keepLog)
	return d.err
}

func (d *requestRecorder) DeleteCheckpoint(_ context.Context, name string) error {
	d.note("delete %s", name)
	return d.err
}

func (d *requestRecorder) Replays(context.Context) ([]admin.Replay, error) { return d.jobs, d.err }

func (d *requestRecorder) StartReplay(_ context.Context, spec *replay.Spec) (string, error) {
	d.note("start")
	d.spec = spec
	return "abc", d.err
}

func (d *requestRecorder) ReplayErrors(_ context.Context, id string, limit int) ([]store.ReplayError, error) {
	d.note("errors %s %d", id, limit)
	return d.refused, d.err
}

func (d *requestRecorder) ActOnReplay(_ context.Context, id string, desired store.DesiredState) error {
	d.note("%s %s", desired, id)
	return d.err
}

func serveRequests(t *testing.T, d *requestRecorder, token string) (base string) {
	t.Helper()
	return serve(t, admin.Config{Token: token, Requests: d}, &checks{})
}

var someDay = time.Date(2026, 3, 4, 5, 6, 7, 800_000_000, time.UTC)

func someNamed() []admin.Checkpoint {
	kept := store.Savepoint{Name: "a", RetainLog: true, State: store.SavepointRetained, At: someDay, Checkpoint: store.Checkpoint{Position: "0/1", Seq: 7}, RetainedBytes: 12}
	wanted := store.Savepoint{Name: "b", DeleteRequested: true, State: store.SavepointRequested, Reason: "waits"}
	return []admin.Checkpoint{admin.CheckpointOf(&kept, 34), admin.CheckpointOf(&wanted, 34)}
}

const (
	aIsWire = `{"name":"a","state":"retained","keep_log":true,"made_at":"2026-03-04T05:06:07.8Z","position":"0/1","seq":7,"retained_bytes":12,"max_retained_bytes":34}`
	bIsWire = `{"name":"b","state":"requested","reason":"waits","deleting":true,"keep_log":false,"position":"","seq":0,"retained_bytes":0}`
)

func TestCheckpointEndpoints(t *testing.T) {
	d := &requestRecorder{named: someNamed()}
	base := serveRequests(t, d, "") + "/api/v1/checkpoints"
	if got := ask(t, "GET", base); got.status != 200 || got.body != `{"checkpoints":[`+aIsWire+","+bIsWire+"]}\n" {
		t.Errorf("answers %d %s", got.status, got.body)
	}
	for _, tt := range []struct{ path, body, asked, answer string }{
		{"", `{"name":"a","keep_log":true}`, "create a true", aIsWire},
		{"", `{"name":"c"}`, "create c false", "{}"},
		{"/delete", `{"name":"b"}`, "delete b", bIsWire},
	} {
		got := post(t, base+tt.path, tt.body)
		if asked := d.said(); got.status != 200 || got.body != tt.answer+"\n" || !slices.Equal(asked, []string{tt.asked}) {
			t.Errorf("%s answers %d %s, asks %q", tt.body, got.status, got.body, asked)
		}
	}
	for _, tt := range []struct{ path, body, want string }{
		{"", `{}`, "name is required"}, {"", `{"name":null}`, "name is null"}, {"", `{"name":"a","keep":true}`, `unknown field "keep"`},
		{"/delete", `{"name":"a","keep_log":true}`, "keep_log is not allowed in a delete"}, {"/delete", ``, "request body is empty"},
	} {
		expectError(t, tt.body, post(t, base+tt.path, tt.body), 400, tt.want)
	}
	if asked := d.said(); len(asked) > 0 {
		t.Errorf("it asked %q", asked)
	}
	d.named = nil
	if got := ask(t, "GET", base); got.body != `{"checkpoints":[]}`+"\n" {
		t.Errorf("none are %s", got.body)
	}
	expectError(t, "a filter", ask(t, "GET", base+"?name=a"), 400, `unknown parameter "name"`)
}

func someJobs() []admin.Replay {
	return []admin.Replay{
		admin.ReplayOf(&store.Job{
			ID: "abc", State: store.JobPlaying, Desired: store.DesiredPause, Reason: "from the log", Spec: `{"from":"a","groups":["g"],"newer":1}`, Source: "log",
			Until: store.Checkpoint{Position: "0/2"}, UntilAt: someDay, Total: 10, Sent: 4, Skipped: 2, Refused: 1, RequestedAt: someDay, StartedAt: someDay,
		}),
		admin.ReplayOf(&store.Job{ID: "old", State: store.JobDone, Desired: store.DesiredRun, Spec: "not JSON", FinishedAt: someDay}),
	}
}

const (
	abcIsWire = `{"id":"abc","state":"playing","desired_state":"pause","reason":"from the log","spec":{"from":"a","groups":["g"]},"source":"log",` +
		`"until_position":"0/2","until_at":"2026-03-04T05:06:07.8Z","rows":10,"sent":4,"skipped":2,"refused":1,"remaining":3,` +
		`"requested_at":"2026-03-04T05:06:07.8Z","started_at":"2026-03-04T05:06:07.8Z"}`
	oldIsWire = `{"id":"old","state":"done","desired_state":"run","spec":{},"source":"","rows":0,"sent":0,"skipped":0,"refused":0,"remaining":0,"ended_at":"2026-03-04T05:06:07.8Z"}`
)

func TestReplayEndpoints(t *testing.T) {
	refused := store.ReplayError{N: 3, Ref: store.Ref{Outbox: "o", ID: "1"}, Kind: "k", Group: store.GroupOf("g"), Reason: "422: <no>", At: someDay}
	d := &requestRecorder{jobs: someJobs(), refused: []store.ReplayError{refused}}
	base := serveRequests(t, d, "") + "/api/v1/replays"
	if got := ask(t, "GET", base); got.status != 200 || got.body != `{"replays":[`+abcIsWire+","+oldIsWire+"]}\n" {
		t.Errorf("answers %d %s", got.status, got.body)
	}
	want := `{"errors":[{"n":3,"outbox":"o","id":"1","kind":"k","group":"g","reason":"422: <no>","at":"2026-03-04T05:06:07.8Z"}]}` + "\n"
	if got := ask(t, "GET", base+"/errors?job=abc&limit=7"); got.status != 200 || got.body != want {
		t.Errorf("answers %d %s", got.status, got.body)
	}
	ask(t, "GET", base+"/errors?job=abc")
	post(t, base+"/pause", `{"job":"abc"}`)
	post(t, base+"/resume", `{"job":"abc"}`)
	if got := post(t, base+"/cancel", `{"job":"abc"}`); got.status != 200 || got.body != abcIsWire+"\n" {
		t.Errorf("answers %d %s", got.status, got.body)
	}
	if got := post(t, base+"/cancel", `{"job":"forgotten"}`); got.status != 200 || got.body != "{}\n" {
		t.Errorf("answers %d %s", got.status, got.body)
	}
	if asked := d.said(); !slices.Equal(asked, []string{"errors abc 7", "errors abc 100", "pause abc", "run abc", "cancel abc", "cancel forgotten"}) {
		t.Errorf("asked %q", asked)
	}
	got := post(t, base, `{"since":"2026-03-04T05:06:07.8Z","until":"2026-03-05T05:06:07Z","outboxes":["o"],"groups":[""],"no_group":true,"kinds":["k"],"ids":["1"],"sink":"s","rate":5,"read":"log","dry_run":true}`)
	spec := &replay.Spec{
		Since: someDay, Until: time.Date(2026, 3, 5, 5, 6, 7, 0, time.UTC), Outboxes: []string{"o"}, Groups: []string{""}, NoGroup: true,
		Kinds: []string{"k"}, IDs: []string{"1"}, Sink: "s", Rate: 5, Read: replay.SourceLog, DryRun: true,
	}
	if got.status != 200 || got.body != `{"id":"abc"}`+"\n" || !reflect.DeepEqual(d.spec, spec) {
		t.Errorf("answers %d %s to %+v", got.status, got.body, d.spec)
	}
	d.jobs, d.refused = nil, nil
	if got := ask(t, "GET", base); got.body != `{"replays":[]}`+"\n" {
		t.Errorf("none are %s", got.body)
	}
	if got := ask(t, "GET", base+"/errors?job=abc"); got.body != `{"errors":[]}`+"\n" {
		t.Errorf("none are %s", got.body)
	}
}

// TestReplayEndpointFaults checks that an invalid request starts no replay.
func TestReplayEndpointFaults(t *testing.T) {
	d := &requestRecorder{}
	base := serveRequests(t, d, "") + "/api/v1/replays"
	for _, tt := range []struct{ path, body, want string }{
		{"", `{}`, "replay start missing"}, {"", `{"from":"a","since":"2026-03-04T05:06:07Z"}`, "not both"}, {"", `{"from":"a","group":"g"}`, `unknown field "group"`},
		{"", `{"from":"a","groups":null}`, "groups is null"}, {"", `{"from":"a","groups":[]}`, "groups is empty"}, {"", `{"from":"a","rate":-1}`, "invalid rate -1"},
		{"", `{"from":"A"}`, "invalid checkpoint name"}, {"", `{"since":"2h"}`, "read request body"},
		{"/cancel", `{}`, "job is required"}, {"/pause", `{"job":null}`, "job is null"}, {"/resume", `{"id":"abc"}`, `unknown field "id"`},
	} {
		expectError(t, tt.path+" "+tt.body, post(t, base+tt.path, tt.body), 400, tt.want)
	}
	expectError(t, "no job", ask(t, "GET", base+"/errors"), 400, "job is required")
	expectError(t, "too many", ask(t, "GET", base+"/errors?job=abc&limit=10001"), 400, "must be between 1 and 10000")
	locked := serveRequests(t, d, "right") + "/api/v1/"
	for _, path := range []string{"checkpoints", "replays", "replays/errors?job=abc"} {
		expectError(t, path, ask(t, "GET", locked+path), 401, "admin token required")
	}
	for _, path := range []string{"checkpoints", "checkpoints/delete", "replays", "replays/pause", "replays/resume", "replays/cancel"} {
		expectError(t, path, post(t, locked+path, `{"name":"a"}`), 401, "admin token required")
		if got := post(t, locked+path, `{"name":"a"}`, "Authorization", "Bearer right", "Sec-Fetch-Site", "cross-site"); got.status != 403 {
			t.Errorf("%s from another site answers %d", path, got.status)
		}
	}
	if asked := d.said(); len(asked) > 0 {
		t.Errorf("it asked %q", asked)
	}
}

// TestRequestErrors checks the status and the text of each error, also through the
// client.
func TestRequestErrors(t *testing.T) {
	d := &requestRecorder{}
	base := serveRequests(t, d, "")
	c := newClient(t, base, "")
	for _, tt := range []struct {
		err    error
		status int
		want   string
	}{
		{fmt.Errorf("delete: %w", store.ErrNoSavepoint), 404, "checkpoint not found"},
		{store.ErrSavepointExists, 409, "already"},
		{fmt.Errorf("pause: %w", store.ErrNoJob), 404, "replay not found"},
		{fmt.Errorf("%w: it is done", admin.ErrReplayEnded), 409, "it is done"},
		{sluicebox.ErrNotLeading, 503, "not the leader"},
		{&sluicebox.RequestError{Problem: "unknown sink"}, 400, "unknown sink"},
		{&store.SetupError{Problem: "no grant", Remedy: "GRANT"}, 500, "no grant; GRANT"},
	} {
		d.err = tt.err
		for path, body := range map[string]string{"checkpoints": `{"name":"a"}`, "replays": `{"from":"a"}`, "checkpoints/delete": `{"name":"a"}`, "replays/pause": `{"job":"a"}`} {
			expectError(t, path, post(t, base+"/api/v1/"+path, body), tt.status, tt.want)
		}
		for _, path := range []string{"checkpoints", "replays", "replays/errors?job=a"} {
			expectError(t, path, ask(t, "GET", base+"/api/v1/"+path), tt.status, tt.want)
		}
		_, err := c.StartReplay(t.Context(), &replay.Spec{From: "a"})
		var refused *admin.APIError
		if !errors.As(err, &refused) || refused.Status != tt.status {
			t.Errorf("the client gets %v", err)
		}
	}
}

// TestRequestClient checks that requests and responses survive the way between client and
// server.
func TestRequestClient(t *testing.T) {
	d := &requestRecorder{named: someNamed(), jobs: someJobs(), refused: []store.ReplayError{{N: 1, Ref: store.Ref{ID: "x"}, Reason: "ü"}}}
	c := newClient(t, serveRequests(t, d, "right"), "right")
	ctx := t.Context()
	named, err := c.Checkpoints(ctx)
	if err != nil || !reflect.DeepEqual(named, d.named) {
		t.Errorf("%+v, %v", named, err)
	}
	jobs, err := c.Replays(ctx)
	if err != nil || !reflect.DeepEqual(jobs, d.jobs) {
		t.Errorf("%+v, %v", jobs, err)
	}
	refused, err := c.ReplayErrors(ctx, "a&b", 9)
	if err != nil || !reflect.DeepEqual(refused, d.refused) {
		t.Errorf("%+v, %v", refused, err)
	}
	spec := &replay.Spec{From: "a", Groups: []string{"", "g"}, IDs: []string{"x"}}
	id, err := c.StartReplay(ctx, spec)
	if err != nil || id != "abc" || !reflect.DeepEqual(d.spec, spec) {
		t.Errorf("%q, %v, %+v", id, err, d.spec)
	}
	err = errors.Join(c.CreateCheckpoint(ctx, "a", true), c.DeleteCheckpoint(ctx, "b"),
		c.ActOnReplay(ctx, "j", store.DesiredPause), c.ActOnReplay(ctx, "j", store.DesiredRun), c.ActOnReplay(ctx, "j", store.DesiredCancel))
	if asked := d.said(); err != nil || !slices.Equal(asked, []string{"errors a&b 9", "start", "create a true", "delete b", "pause j", "run j", "cancel j"}) {
		t.Errorf("asked %q, %v", asked, err)
	}
	if err := c.ActOnReplay(ctx, "j", "stop"); err == nil {
		t.Error("there is no such action")
	}
	_, err = newClient(t, serve(t, admin.Config{}, &checks{}), "").Replays(ctx)
	var none *admin.APIError
	if !errors.As(err, &none) || none.Status != 404 {
		t.Errorf("a relay without replays answers %v", err)
	}
}
