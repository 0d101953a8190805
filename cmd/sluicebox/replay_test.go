package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/checkpoint/replay"
	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/store"
)

// fakeReplays are replays with scripted states.
type fakeReplays struct {
	mu   sync.Mutex
	look func(since time.Duration) ([]admin.Replay, error) // time since the first call
	// began is the time of the first call.
	began     time.Time
	started   []replay.Spec
	requested []string
	refused   []store.ReplayError
	err       error
	closed    int
}

const jobID = "abcdefghijklm"

func (f *fakeReplays) Replays(context.Context) ([]admin.Replay, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.began.IsZero() {
		f.began = time.Now()
	}
	return f.look(time.Since(f.began))
}

func (f *fakeReplays) StartReplay(_ context.Context, spec *replay.Spec) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.started = append(f.started, *spec)
	return jobID, f.err
}

func (f *fakeReplays) ReplayErrors(_ context.Context, id string, limit int) ([]store.ReplayError, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if id != jobID {
		return nil, fmt.Errorf("replay %s: %w", id, store.ErrNoJob)
	}
	return f.refused[:min(limit, len(f.refused))], f.err
}

func (f *fakeReplays) ActOnReplay(_ context.Context, id string, desired store.DesiredState) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requested = append(f.requested, id+" "+string(desired))
	return f.err
}

// replaying returns a relay with these replays.
func replaying(f *fakeReplays) backend {
	return backend{requests: func(*config.Config, string) (admin.Requests, func(), error) {
		return fakeRequests{nil, f}, func() { f.closed++ }, nil
	}}
}

// always returns a replay that does not change.
func always(r admin.Replay) func(time.Duration) ([]admin.Replay, error) {
	return func(time.Duration) ([]admin.Replay, error) { return []admin.Replay{r}, nil }
}

const fromTheLog = "from the log: rows deleted since are sent too"

// course is a typical replay: it waits for 2 s, reads 100 000 rows in 3 s, and sends 1000
// rows/s.
func course(since time.Duration) ([]admin.Replay, error) {
	r := admin.Replay{ID: jobID, State: "waiting", DesiredState: store.DesiredRun}
	s := int64(since / time.Second)
	if s >= 2 {
		r.State, r.Source, r.Reason, r.Rows = "copying", "log", fromTheLog, (s-2)*30_000
	}
	if s >= 5 {
		r.State, r.Rows, r.Sent, r.Skipped = "playing", 100_000, max(0, (s-5)*1000-12), min(12, (s-5)*1000)
	}
	if s >= 105 {
		r.State, r.Sent = "done", 99_988
	}
	r.Remaining = r.Rows - r.Sent - r.Skipped
	return []admin.Replay{r}, nil
}

// TestReplayProgress checks the output without a terminal: a line for each change and
// then every 10 s.
func TestReplayProgress(t *testing.T) {
	path := file(t, good)
	synctest.Test(t, func(t *testing.T) {
		f := &fakeReplays{look: course}
		got := try(t, replaying(f), nil, "replay", "--from", "before_deploy", "-c", path)
		want := `replay abcdefghijklm
replay abcdefghijklm: waits for the leader
replay abcdefghijklm: from the log: rows deleted since are sent too
replay abcdefghijklm: reads; 0 rows so far
replay abcdefghijklm: [--------------------] 0%  0/100 000
replay abcdefghijklm: [##------------------] 10%  10 000/100 000  1 000/s  90s left
replay abcdefghijklm: [####----------------] 20%  20 000/100 000  1 000/s  80s left
`
		if got.code != 0 || !strings.HasPrefix(got.stderr, want) || strings.Count(got.stderr, "\n") != 14 || strings.Contains(got.stderr, "\x1b") {
			t.Errorf("exit %d, says\n%s", got.code, got.stderr)
		}
		if want := "replay abcdefghijklm: done; 99 988 rows sent, 12 skipped\n"; got.stdout != want || f.closed != 1 {
			t.Errorf("prints %q, want %q", got.stdout, want)
		}
		if spec := f.started[0]; !reflect.DeepEqual(spec, replay.Spec{From: "before_deploy"}) {
			t.Errorf("asks for %+v", spec)
		}
	})
}

// TestReplaySpec checks that flags become the spec.
func TestReplaySpec(t *testing.T) {
	f := &fakeReplays{look: always(admin.Replay{ID: jobID, State: "waiting"})}
	got := try(t, replaying(f), nil, "replay", "start", "--since=2026-01-02T03:04:05+01:00", "--until", "1h", "--outbox=a", "--outbox=b,c", "--kind=EVENT",
		"--group=g", "--group=", "--no-group", "--id=1", "--id=2", "--to-sink=far", "--rate=100", "--source=table", "--dry-run", "--detach", "-c", file(t, good))
	if got.code != 0 || got.stdout != jobID+"\n" || got.stderr != "" {
		t.Fatalf("exit %d, %q, %q", got.code, got.stdout, got.stderr)
	}
	spec := f.started[0]
	if ago := time.Since(spec.Until); ago < time.Hour || ago > 2*time.Hour {
		t.Errorf("until is %s", spec.Until)
	}
	spec.Until = time.Time{}
	want := replay.Spec{
		Since: time.Date(2026, 1, 2, 2, 4, 5, 0, time.UTC), Outboxes: []string{"a", "b,c"}, Kinds: []string{"EVENT"}, Groups: []string{"g", ""},
		NoGroup: true, IDs: []string{"1", "2"}, Sink: "far", Rate: 100, Read: replay.SourceTable, DryRun: true,
	}
	if !reflect.DeepEqual(spec, want) {
		t.Errorf("asks for %+v, want %+v", spec, want)
	}
	try(t, replaying(f), nil, "replay", "--from=a", "--detach", "--outbox=a", "--outbox=b", "--route=hooks", "-c", file(t, good))
	if got := f.started[1].Outboxes; !slices.Equal(got, []string{"a/hooks", "b/hooks"}) {
		t.Errorf("--route asks for %q", got)
	}
	got = try(t, replaying(f), nil, "replay", "--from=a", "--detach", "--json", "-c", file(t, good))
	var job admin.Replay
	if err := json.Unmarshal([]byte(got.stdout), &job); err != nil || job.ID != jobID || f.started[2].Read != replay.SourceAny {
		t.Errorf("%v: %s, %+v", err, got.stdout, f.started[2])
	}
}

// TestReplayEnds checks the output and the exit code.
func TestReplayEnds(t *testing.T) {
	until := time.Date(2026, 1, 31, 15, 4, 5, 120_000_000, time.UTC)
	path := file(t, good)
	for what, tt := range map[string]struct {
		job            admin.Replay
		code           int
		stdout, stderr string
	}{
		"done": {admin.Replay{State: "done", Rows: 1, Sent: 1, Reason: "from the table"}, 0, "replay " + jobID + ": done; 1 row sent, 0 skipped\n", "replay " + jobID + ": from the table\n"},
		"errors": {admin.Replay{State: "done", Rows: 1002, Sent: 1000, Refused: 2}, 1, "replay " + jobID + ": done; 1 000 rows sent, 0 skipped, 2 refused\n",
			"sluicebox: replay " + jobID + ": 2 rows refused\n  sluicebox replay errors " + jobID + " lists them, with the receiver's reasons\n"},
		"refused":   {admin.Replay{State: "refused", Reason: "position belongs to\nanother log"}, 78, "", "sluicebox: replay " + jobID + ": refused: position belongs to another log\n"},
		"failed":    {admin.Replay{State: "failed", Reason: "the binlog was purged", Rows: 9, Sent: 3, Remaining: 6}, 1, "", "sluicebox: replay " + jobID + ": failed: the binlog was purged; 3 rows sent before\n"},
		"cancelled": {admin.Replay{State: "cancelled", Sent: 1}, 1, "", "sluicebox: replay " + jobID + ": cancelled; 1 row sent before\n"},
		"dry run": {admin.Replay{State: "done", Spec: replay.Spec{DryRun: true}, Rows: 1_234_567, Skipped: 67, Remaining: 1_234_500, UntilAt: until}, 0,
			"replay " + jobID + ": dry run; 1 234 500 rows would be sent, 67 skipped\nto send only the rows up to this time: --until 2026-01-31T15:04:05.12Z\n", ""},
		"dry run to an end": {admin.Replay{State: "done", Spec: replay.Spec{DryRun: true, Until: until}, UntilAt: until}, 0,
			"replay " + jobID + ": dry run; 0 rows would be sent, 0 skipped\n", ""},
	} {
		tt.job.ID = jobID
		f := &fakeReplays{look: always(tt.job)}
		got := try(t, replaying(f), nil, "replay", "--since=1h", "-c", path)
		if want := "replay " + jobID + "\n" + tt.stderr; got.code != tt.code || got.stdout != tt.stdout || got.stderr != want {
			t.Errorf("%s: exit %d\n%s%s", what, got.code, got.stdout, got.stderr)
		}
		got = try(t, replaying(f), nil, "replay", "--since=1h", "--json", "-c", path)
		var job admin.Replay
		if err := json.Unmarshal([]byte(got.stdout), &job); err != nil || got.code != tt.code || !reflect.DeepEqual(job, tt.job) {
			t.Errorf("%s: exit %d, %v: %s", what, got.code, err, got.stdout)
		}
	}
}

// TestReplayWithoutALeader checks that the command gives up on a replay that no leader
// starts, but not on a queued one, nor during a short database outage.
func TestReplayWithoutALeader(t *testing.T) {
	path := file(t, good)
	own := admin.Replay{ID: jobID, State: "waiting"}
	other := func(state string) admin.Replay { return admin.Replay{ID: "other", State: state} }
	away := errors.New("the connection is lost")
	for what, tt := range map[string]struct {
		look           func(since time.Duration) ([]admin.Replay, error)
		code           int
		least          time.Duration
		stderr, behind string
	}{
		"nobody leads": {always(own), 1, 30 * time.Second, "sluicebox: replay " + jobID + ": no leader accepted the request within 30s; it stays queued\n" +
			"  sluicebox status shows the leader; sluicebox replay list shows it, sluicebox replay cancel " + jobID + " ends it\n", "waits for the leader\n"},
		"behind one that nobody begins": {func(time.Duration) ([]admin.Replay, error) {
			return []admin.Replay{own, other("waiting"), {ID: "older", State: "done"}}, nil
		}, 1, 30 * time.Second, "no leader accepted the request within 30s", "waits for replay other to end\n"},
		"behind one that runs": {func(since time.Duration) ([]admin.Replay, error) {
			if since < 10*time.Minute {
				return []admin.Replay{own, other("playing")}, nil
			}
			if since < 10*time.Minute+20*time.Second {
				return []admin.Replay{own, other("done")}, nil
			}
			return always(admin.Replay{ID: jobID, State: "done"})(since)
		}, 0, 10*time.Minute + 20*time.Second, "", "waits for replay other to end\nreplay " + jobID + ": waits for the leader\n"},
		"one that says why it waits": {func(since time.Duration) ([]admin.Replay, error) {
			if since < time.Minute {
				return always(admin.Replay{ID: jobID, State: "waiting", Reason: "; waits for the log to be read"})(since)
			}
			return always(admin.Replay{ID: jobID, State: "done"})(since)
		}, 0, time.Minute, "", "replay " + jobID + ": waits for the log to be read\n"},
		"one that waits on its way": {func(since time.Duration) ([]admin.Replay, error) {
			if since < time.Minute {
				return always(admin.Replay{ID: jobID, State: "playing", Rows: 4, Sent: 1, Remaining: 3, Reason: fromTheLog + "; waits for 2 paused\ngroups"})(since)
			}
			return always(admin.Replay{ID: jobID, State: "done", Reason: fromTheLog})(since)
		}, 0, time.Minute, "replay " + jobID + ": " + fromTheLog + "\n", "[#####---------------] 25%  1/4  waits for 2 paused groups\n"},
		"a database that comes back": {func(since time.Duration) ([]admin.Replay, error) {
			if since > 0 && since < 29*time.Second {
				return nil, away
			}
			return course(since)
		}, 0, 100 * time.Second, "", "the connection is lost; retrying\n"},
		"a database that does not": {func(time.Duration) ([]admin.Replay, error) { return nil, away }, 1, 30 * time.Second,
			"sluicebox: replay " + jobID + ": state unknown, but it continues without this command: the connection is lost\n", ""},
		"a grant that is gone": {func(time.Duration) ([]admin.Replay, error) {
			return nil, &store.SetupError{Problem: "no SELECT", Remedy: "GRANT SELECT"}
		}, 78, 0, "no SELECT\n  GRANT SELECT\n", ""},
		"one that was forgotten": {func(time.Duration) ([]admin.Replay, error) { return []admin.Replay{other("done")}, nil }, 1, 0,
			"sluicebox: replay " + jobID + " is no longer among the latest 100\n", ""},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				got := try(t, replaying(&fakeReplays{look: tt.look}), nil, "replay", "--from=a", "-c", path)
				took := time.Since(began)
				if got.code != tt.code || !strings.Contains(got.stderr, tt.stderr) || !strings.Contains(got.stderr, tt.behind) || took < tt.least || took > tt.least+5*time.Second {
					t.Errorf("exit %d after %s\n%s", got.code, took, got.stderr)
				}
			})
		})
	}
}

// TestReplayInterrupted checks that Ctrl-C ends the command, not the replay.
func TestReplayInterrupted(t *testing.T) {
	path := file(t, good)
	synctest.Test(t, func(t *testing.T) {
		f := &fakeReplays{look: course}
		signals := make(chan os.Signal)
		go func() {
			time.Sleep(20 * time.Second) // by the bubble's clock
			signals <- os.Interrupt
		}()
		got := tryWith(t, program{relay: replaying(f), signals: signals}, "replay", "--from=a", "-c", path)
		want := "sluicebox: replay " + jobID + ": interrupted; it continues without this command\n" +
			"  sluicebox replay list shows it, sluicebox replay cancel " + jobID + " ends it\n"
		if got.code != 1 || got.stdout != "" || !strings.HasSuffix(got.stderr, want) || len(f.requested) > 0 {
			t.Errorf("exit %d, %q, %q, %q", got.code, got.stdout, got.stderr, f.requested)
		}
	})
}

func TestReplayUsage(t *testing.T) {
	for args, want := range map[string]string{
		"":                                   "replay start missing: use --from NAME or --since TIME",
		"start":                              "replay start missing",
		"--from a --since 1h":                "--from and --since can't be used together",
		"--from Before":                      `invalid checkpoint name "Before"`,
		"--since 1h --until 2h":              "--since is not before --until",
		"--since soon":                       `invalid time "soon"`,
		"--from a --route hooks":             "--route needs --outbox",
		"--from a --rate=-1":                 "--rate is -1, must be at least 1",
		"--from a --source=binlog":           `must be one of "auto","log","table"`,
		"--from a --token-file f":            "--token-file needs --admin",
		"--from a list":                      "--from applies to the default command",
		"errors":                             `expected "<id>"`,
		"errors " + jobID + " --limit=10001": "at most 10000 refused rows are recorded",
		"errors " + jobID + " --limit=0":     "--limit is 0, must be at least 1",
		"pause":                              `expected "<id>"`,
		"resume a b":                         "unexpected argument b",
	} {
		got := try(t, backend{}, nil, append([]string{"replay"}, strings.Fields(args)...)...)
		if got.code != 64 || got.stdout != "" || !strings.Contains(got.stderr, want) {
			t.Errorf("%q: exit %d, %q, want %q", args, got.code, got.stderr, want)
		}
	}
}
