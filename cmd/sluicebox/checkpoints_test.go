package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/store"
)

// fakeRequests are the requests of a test.
type fakeRequests struct {
	*fakeCheckpoints
	*fakeReplays
}

// fakeCheckpoints are named checkpoints with scripted states.
type fakeCheckpoints struct {
	mu    sync.Mutex
	began time.Time
	look  func(since time.Duration) ([]admin.Checkpoint, error) // time since the first call
	asked []string
	err   error
}

func (f *fakeCheckpoints) Checkpoints(context.Context) ([]admin.Checkpoint, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.began.IsZero() {
		f.began = time.Now()
	}
	return f.look(time.Since(f.began))
}

func (f *fakeCheckpoints) CreateCheckpoint(_ context.Context, name string, keepLog bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, fmt.Sprintf("create %s %t", name, keepLog))
	return f.err
}

func (f *fakeCheckpoints) DeleteCheckpoint(_ context.Context, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, "delete "+name)
	return f.err
}

// checkpointing returns a relay with these checkpoints.
func checkpointing(f *fakeCheckpoints) backend {
	return backend{requests: func(*config.Config, string) (admin.Requests, func(), error) {
		return fakeRequests{f, nil}, func() {}, nil
	}}
}

// turning returns a checkpoint that changes after three seconds.
func turning(first, then []admin.Checkpoint) func(time.Duration) ([]admin.Checkpoint, error) {
	return func(since time.Duration) ([]admin.Checkpoint, error) {
		if since < 3*time.Second {
			return first, nil
		}
		return then, nil
	}
}

func TestCheckpointCreate(t *testing.T) {
	path, at := file(t, good), time.Date(2026, 1, 31, 15, 4, 5, 0, time.UTC)
	is := func(state, why string) []admin.Checkpoint {
		c := admin.Checkpoint{Name: "a", State: state, Reason: why}
		if state != "requested" && state != "refused" {
			c.MadeAt, c.Position, c.Seq = at, "0/1A2B", 17
		}
		return []admin.Checkpoint{{Name: "0", State: "made"}, c}
	}
	polled := is("made", "")
	polled[1].Position = ""
	for what, tt := range map[string]struct {
		look           func(time.Duration) ([]admin.Checkpoint, error)
		code           int
		stdout, stderr string
	}{
		"made": {turning(is("requested", ""), is("retained", "")), 0, "checkpoint a: retained, at 0/1A2B, 2026-01-31T15:04:05Z\n", ""},
		"polled": {turning(is("requested", "waits for\nthe log"), polled), 0, "checkpoint a: made, without a log position, because the relay polls, 2026-01-31T15:04:05Z\n",
			"checkpoint a: waits for the log\n"},
		"refused": {turning(is("requested", ""), is("refused", "no slot is\nfree")), 78, "",
			"sluicebox: checkpoint a was refused: no slot is free\n  sluicebox checkpoint delete a removes it, so that the name is free again\n"},
		"lost": {turning(is("requested", ""), is("lost", "too\nlarge")), 1, "", "sluicebox: checkpoint a was created, but its log is no longer retained: too large\n" +
			"  a replay from it reads the table; sluicebox checkpoint delete a frees the name\n"},
		"no leader": {turning(is("requested", ""), is("requested", "")), 1, "", "sluicebox: checkpoint a: no leader accepted the request within 30s; it stays queued\n" +
			"  sluicebox status shows the leader; sluicebox checkpoint delete a withdraws it\n"},
		"deleted": {turning(is("requested", ""), nil), 1, "", "sluicebox: checkpoint a: deleted by another request\n"},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := &fakeCheckpoints{look: tt.look}
			got := try(t, checkpointing(f), nil, "checkpoint", "create", "a", "--keep-log", "-c", path)
			if got.code != tt.code || got.stdout != tt.stdout || got.stderr != tt.stderr || len(f.asked) != 1 || f.asked[0] != "create a true" {
				t.Errorf("%s: exit %d, %q, %q, %q", what, got.code, got.stdout, got.stderr, f.asked)
			}
		})
	}
	got := try(t, checkpointing(&fakeCheckpoints{look: turning(is("refused", "no"), nil)}), nil, "checkpoint", "create", "a", "--json", "-c", path)
	var made admin.Checkpoint
	if err := json.Unmarshal([]byte(got.stdout), &made); err != nil || got.code != 78 || made.Reason != "no" {
		t.Errorf("exit %d, %v: %s", got.code, err, got.stdout)
	}
	synctest.Test(t, func(t *testing.T) {
		signals := make(chan os.Signal)
		go func() { signals <- os.Interrupt }()
		got := tryWith(t, program{relay: checkpointing(&fakeCheckpoints{look: turning(is("requested", ""), nil)}), signals: signals}, "checkpoint", "create", "a", "-c", path)
		if got.code != 1 || got.stderr != "sluicebox: checkpoint a: interrupted; it will still be created\n  sluicebox checkpoint delete a withdraws it\n" {
			t.Errorf("exit %d, %q", got.code, got.stderr)
		}
	})
}

func TestCheckpointList(t *testing.T) {
	at := time.Date(2026, 1, 31, 15, 4, 5, 0, time.UTC)
	f := &fakeCheckpoints{look: turning([]admin.Checkpoint{
		{Name: "a", State: "retained", KeepLog: true, MadeAt: at, Position: "0/1A2B", Seq: 17, RetainedBytes: 13_002_342, MaxRetainedBytes: 10 << 30},
		{Name: "b", State: "requested", Deleting: true},
		{Name: "c", State: "lost", KeepLog: true, MadeAt: at, Position: strings.Repeat("9", 40), Seq: 18, RetainedBytes: 7, MaxRetainedBytes: 8, Reason: "its log was\nlarger than checkpoint.max-kept"},
	}, nil)}
	got := try(t, checkpointing(f), nil, "checkpoint", "list", "-c", file(t, good))
	want := `NAME  STATE                     MADE                  SEQ  RETAINED              POSITION                          REASON
a     retained                  2026-01-31T15:04:05Z  17   12.4 MiB of 10.0 GiB  0/1A2B                            ` + `
b     requested, to be deleted  -                     -    -                     -                                 ` + `
c     lost                      2026-01-31T15:04:05Z  18   -                     9999999999999999999999999999999…  its log was larger than checkpoint.max-kept
`
	if got.code != 0 || got.stdout != want || got.stderr != "" {
		t.Errorf("exit %d\n%s\nwant\n%s%s", got.code, got.stdout, want, got.stderr)
	}
	f.look = turning(nil, nil)
	if got := try(t, checkpointing(f), nil, "checkpoint", "list", "--json", "-c", file(t, good)); got.code != 0 || got.stdout != "{\n  \"checkpoints\": []\n}\n" {
		t.Errorf("none are %q", got.stdout)
	}
	f.look = func(time.Duration) ([]admin.Checkpoint, error) { return nil, errors.New("the disk is full") }
	if got := try(t, checkpointing(f), nil, "checkpoint", "list", "-c", file(t, good)); got.code != 1 || got.stderr != "sluicebox: the disk is full\n" {
		t.Errorf("exit %d, %q", got.code, got.stderr)
	}
}

func TestCheckpointDelete(t *testing.T) {
	path := file(t, good)
	there, other := admin.Checkpoint{Name: "a", State: "made", Deleting: true}, admin.Checkpoint{Name: "b", State: "made"}
	synctest.Test(t, func(t *testing.T) {
		f := &fakeCheckpoints{look: turning([]admin.Checkpoint{there, other}, []admin.Checkpoint{other})}
		got := try(t, checkpointing(f), nil, "checkpoint", "delete", "a", "-c", path)
		if got.code != 0 || got.stdout != "checkpoint a: deleted\n" || got.stderr != "" || f.asked[0] != "delete a" {
			t.Errorf("exit %d, %q, %q", got.code, got.stdout, got.stderr)
		}
		f.look = turning([]admin.Checkpoint{there}, []admin.Checkpoint{there})
		got = try(t, checkpointing(f), nil, "checkpoint", "delete", "a", "-c", path)
		if got.code != 1 || !strings.Contains(got.stderr, "no leader accepted the request within 30s") || !strings.Contains(got.stderr, "until then its log is retained\n") {
			t.Errorf("exit %d, %q", got.code, got.stderr)
		}
	})
	f := &fakeCheckpoints{err: fmt.Errorf("request deletion of checkpoint a: %w", store.ErrNoSavepoint)}
	got := try(t, checkpointing(f), nil, "checkpoint", "delete", "a", "-c", path)
	if got.code != 1 || got.stderr != "sluicebox: request deletion of checkpoint a: checkpoint not found\n  sluicebox checkpoint list shows them\n" {
		t.Errorf("exit %d, %q", got.code, got.stderr)
	}
}

func TestCheckpointUsage(t *testing.T) {
	for args, want := range map[string]string{
		"":                          "expected one of",
		"create":                    `expected "<name>"`,
		"create Before":             `invalid checkpoint name "Before": use 1 to 63`,
		"create a --wait=soon":      "--wait",
		"create a --token-file=f":   "--token-file needs --admin",
		"list extra":                "unexpected argument extra",
		"delete":                    `expected "<name>"`,
		"delete a --admin=ftp://db": "invalid relay address",
	} {
		got := try(t, backend{}, nil, append([]string{"checkpoint"}, strings.Fields(args)...)...)
		if got.code != 64 || got.stdout != "" || !strings.Contains(got.stderr, want) {
			t.Errorf("%q: exit %d, %q, want %q", args, got.code, got.stderr, want)
		}
	}
}
