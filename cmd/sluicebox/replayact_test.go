package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/checkpoint/replay"
	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/store"
)

// TestReplayActs checks that a request is written and that the command waits until it is
// done.
func TestReplayActs(t *testing.T) {
	path := file(t, good)
	soon := func(first, then string) func(time.Duration) ([]admin.Replay, error) {
		return func(since time.Duration) ([]admin.Replay, error) {
			r := admin.Replay{ID: jobID, State: first, Rows: 2000, Sent: 1500, Remaining: 500}
			if since >= 3*time.Second {
				r.State = then
			}
			return []admin.Replay{r}, nil
		}
	}
	for _, tt := range []struct {
		action, requested, first, then string
		code                           int
		says                           string
	}{
		{"pause", "pause", "playing", "paused", 0, "replay " + jobID + ": paused; 1 500 rows sent, 500 left\n"},
		{"pause", "pause", "playing", "done", 0, "replay " + jobID + ": done; 1 500 rows sent\n"},
		{"pause", "pause", "playing", "playing", 1, "no leader accepted the request within 30s"},
		{"resume", "run", "paused", "playing", 0, "replay " + jobID + ": playing; 1 500 rows sent, 500 left\n"},
		{"resume", "run", "paused", "paused", 1, "no leader accepted the request within 30s"},
		{"cancel", "cancel", "paused", "cancelled", 0, "replay " + jobID + ": cancelled; 1 500 rows sent\n"},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := &fakeReplays{look: soon(tt.first, tt.then)}
			got := try(t, replaying(f), nil, "replay", tt.action, jobID, "-c", path)
			if got.code != tt.code || !strings.Contains(got.stdout+got.stderr, tt.says) || len(f.requested) != 1 || f.requested[0] != jobID+" "+tt.requested {
				t.Errorf("%s to %s: exit %d, %q, %q, %q", tt.action, tt.then, got.code, got.stdout, got.stderr, f.requested)
			}
		})
	}
	f := &fakeReplays{look: soon("done", "done"), err: fmt.Errorf("%w: it is done", admin.ErrReplayEnded)}
	got := try(t, replaying(f), nil, "replay", "cancel", jobID, "--json", "-c", path)
	if want := "sluicebox: the replay has ended: it is done\n  sluicebox replay list shows them\n"; got.code != 1 || got.stderr != want {
		t.Errorf("exit %d, %q", got.code, got.stderr)
	}
	f.err = nil
	got = try(t, replaying(f), nil, "replay", "cancel", jobID, "--json", "-c", path)
	var job admin.Replay
	if err := json.Unmarshal([]byte(got.stdout), &job); err != nil || got.code != 0 || job.State != "done" {
		t.Errorf("exit %d, %v: %s", got.code, err, got.stdout)
	}
}

func TestReplayList(t *testing.T) {
	path := file(t, good)
	ago := time.Now().Add(-3*time.Hour - time.Minute)
	f := &fakeReplays{look: func(time.Duration) ([]admin.Replay, error) {
		return []admin.Replay{
			{ID: jobID, State: "playing", DesiredState: store.DesiredCancel, Spec: replay.Spec{From: "before_deploy"}, Source: "log", Reason: "from\nthe log", Rows: 10, Sent: 5, Skipped: 1, Refused: 1, Remaining: 3, RequestedAt: ago},
			{ID: "second", State: "done", DesiredState: store.DesiredRun, Spec: replay.Spec{Since: time.Date(2026, 1, 31, 15, 4, 5, 0, time.UTC), DryRun: true}, Rows: 4, Remaining: 4},
		}, nil
	}}
	got := try(t, replaying(f), nil, "replay", "list", "-c", path)
	want := `ID             STATE               FROM                  SOURCE  ROWS  SENT  SKIPPED  REFUSED  LEFT  ASKED  REASON
abcdefghijklm  playing, to cancel  before_deploy         log     10    5     1        1        3     3h     from the log
second         done (dry run)      2026-01-31T15:04:05Z  -       4     0     0        0        4     -      ` + `
`
	if got.code != 0 || got.stdout != want || got.stderr != "" {
		t.Errorf("exit %d\n%s\nwant\n%s%s", got.code, got.stdout, want, got.stderr)
	}
	got = try(t, replaying(f), nil, "replay", "list", "--json", "-c", path)
	if !strings.HasPrefix(got.stdout, "{\n  \"replays\": [\n    {\n      \"id\": \"abcdefghijklm\",\n      \"state\": \"playing\",\n      \"desired_state\": \"cancel\",\n      \"reason\": \"from\\nthe log\",\n      \"spec\": {\n        \"from\": \"before_deploy\"\n      },\n") {
		t.Errorf("prints %s", got.stdout)
	}
	f.look = func(time.Duration) ([]admin.Replay, error) { return nil, nil }
	if got := try(t, replaying(f), nil, "replay", "list", "-c", path); got.code != 0 || got.stdout != "" || got.stderr != "no replays\n" {
		t.Errorf("none are %q, %q", got.stdout, got.stderr)
	}
	if got := try(t, replaying(f), nil, "replay", "list", "--json", "-c", path); got.stdout != "{\n  \"replays\": []\n}\n" {
		t.Errorf("none are %q", got.stdout)
	}
}

func TestReplayErrors(t *testing.T) {
	path := file(t, good)
	f := &fakeReplays{look: always(admin.Replay{ID: jobID, State: "done", Refused: 12_000})}
	for i := range 3 {
		f.refused = append(f.refused, store.ReplayError{
			N: int64(i + 7), Ref: store.Ref{Outbox: "outbox_events", ID: fmt.Sprint(i)}, Kind: "EVENT", Group: store.GroupOf("o-1"), Reason: "422: no\n\x1b[31m", At: time.Now().Add(-5 * time.Second),
		})
	}
	f.refused[2].Group = store.Group{}
	got := try(t, replaying(f), nil, "replay", "errors", jobID, "-c", path)
	want := "OUTBOX         KIND   GROUP   ID  AGE  ERROR\n" +
		"outbox_events  EVENT  o-1     0   5s   422: no \uFFFD[31m\noutbox_events  EVENT  o-1     1   5s   422: no \uFFFD[31m\noutbox_events  EVENT  (none)  2   5s   422: no \uFFFD[31m\n"
	if got.code != 0 || got.stdout != want || got.stderr != "11 997 more; --limit shows them, up to 10000\n" {
		t.Errorf("exit %d\n%s%s", got.code, got.stdout, got.stderr)
	}
	got = try(t, replaying(f), nil, "replay", "errors", jobID, "--json", "--limit=1", "-c", path)
	var list admin.ReplayErrorList
	if err := json.Unmarshal([]byte(got.stdout), &list); err != nil || len(list.Errors) != 1 || list.Errors[0].N != 7 {
		t.Errorf("%v: %s", err, got.stdout)
	}
	f.refused = nil
	if got := try(t, replaying(f), nil, "replay", "errors", jobID, "-c", path); got.code != 0 || got.stderr != "replay "+jobID+": no row was refused\n" {
		t.Errorf("exit %d, %q", got.code, got.stderr)
	}
	if got := try(t, replaying(f), nil, "replay", "errors", "other", "-c", path); got.code != 1 ||
		got.stderr != "sluicebox: replay other: replay not found\n  sluicebox replay list shows them\n" {
		t.Errorf("exit %d, %q", got.code, got.stderr)
	}
}
