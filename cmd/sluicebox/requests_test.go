package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/checkpoint/replay"
	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/cmd/internal/app"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/store"
	sqlitestore "github.com/sluicebox/sluicebox/store/sqlite"
	"github.com/sluicebox/sluicebox/store/storetest/ddl"
)

// requestDatabase is a real database of a relay that does not run.
type requestDatabase struct {
	t      *testing.T
	config string // path
	store  *sqlitestore.Store
	epoch  store.Epoch
}

func newRequestDatabase(t *testing.T) *requestDatabase {
	t.Helper()
	path := filepath.Join(t.TempDir(), "shop.db")
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=journal_mode(wal)")
	if err != nil {
		t.Fatal(err)
	}
	_, err = db.ExecContext(t.Context(), ddl.SQLite().Messages())
	if err != nil || db.Close() != nil {
		t.Fatal(err)
	}
	w := &requestDatabase{t: t, config: file(t, fmt.Sprintf(`source: {url: "sqlite://%s"}
outboxes: [{table: outbox_messages, layout: outbox-messages, sink: near}]
sinks:
  near: {type: webhook, url: "https://near"}
  far: {type: webhook, url: "https://far"}
`, path))}
	cfg, err := config.Load(w.config, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := w.try("checkpoint", "list"); got.code != 78 || !strings.Contains(got.stderr, "sluicebox init") {
		t.Errorf("without own tables: exit %d, %q", got.code, got.stderr)
	}
	if err := app.Init(t.Context(), cfg, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	if w.store, err = sqlitestore.New(sqlitestore.Config{URL: "sqlite://" + path, Name: cfg.Settings.Name, Outboxes: cfg.Outboxes()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.store.Close)
	return w
}

// try runs a command on the database.
func (w *requestDatabase) try(args ...string) result {
	w.t.Helper()
	return try(w.t, backend{requests: app.OpenRequests}, nil, append(args, "-c", w.config)...)
}

// expect runs a command and checks its exit code and output.
func (w *requestDatabase) expect(code int, says string, args ...string) {
	w.t.Helper()
	if got := w.try(args...); got.code != code || !strings.Contains(got.stdout+got.stderr, says) {
		w.t.Errorf("%q: exit %d, %q, %q; want %d, %q", args, got.code, got.stdout, got.stderr, code, says)
	}
}

// lead acts as the leader.
func (w *requestDatabase) lead(do func(ctx context.Context, st *sqlitestore.Store, epoch store.Epoch) error) {
	w.t.Helper()
	var err error
	if w.epoch == 0 {
		if w.epoch, err = w.store.AcquireLeadership(w.t.Context()); err != nil {
			w.t.Fatal(err)
		}
	}
	if err := do(w.t.Context(), w.store, w.epoch); err != nil {
		w.t.Fatal(err)
	}
}

// TestCheckpointRequests checks that the commands write requests for the leader and show
// its results.
func TestCheckpointRequests(t *testing.T) {
	w := newRequestDatabase(t)
	w.expect(0, "no named checkpoints\n", "checkpoint", "list")
	w.expect(1, "checkpoint a: no leader accepted the request within 0s; it stays queued\n", "checkpoint", "create", "a", "--wait=0s")
	w.expect(1, "checkpoint already exists\n  use another name", "checkpoint", "create", "a", "--wait=0s")
	w.expect(64, "keep_log: SQLite has no log to retain", "checkpoint", "create", "b", "--keep-log")
	w.expect(1, "checkpoint not found\n  sluicebox checkpoint list shows them", "checkpoint", "delete", "b")
	w.expect(64, "checkpoint a is pending", "replay", "--from=a")
	at := time.Date(2026, 1, 31, 15, 4, 5, 0, time.UTC)
	w.lead(func(ctx context.Context, st *sqlitestore.Store, epoch store.Epoch) error {
		return st.SaveSavepoint(ctx, epoch, store.Savepoint{Name: "a", Checkpoint: store.Checkpoint{Origin: "o", Position: "12", Seq: 34}, At: at, State: store.SavepointMade})
	})
	got := w.try("checkpoint", "list", "--json")
	want := `{
  "checkpoints": [
    {
      "name": "a",
      "state": "made",
      "keep_log": false,
      "made_at": "2026-01-31T15:04:05Z",
      "position": "12",
      "seq": 34,
      "retained_bytes": 0
    }
  ]
}
`
	if got.code != 0 || got.stdout != want {
		t.Errorf("exit %d\n%s%s", got.code, got.stdout, got.stderr)
	}
	w.expect(1, "until then its log is retained", "checkpoint", "delete", "a", "--wait=0s")
	w.expect(0, "a     made, to be deleted  2026-01-31T15:04:05Z  34   -         12        \n", "checkpoint", "list")
	w.expect(1, "replay from a: checkpoint not found", "replay", "--from=a")
}

// TestReplayRequests does the same for replays.
func TestReplayRequests(t *testing.T) {
	w := newRequestDatabase(t)
	w.expect(0, "no replays\n", "replay", "list")
	w.expect(1, "replay from a: checkpoint not found\n  sluicebox checkpoint list shows them\n", "replay", "--from=a")
	w.expect(64, `unknown outbox "outbox_message"; the outboxes are outbox_messages`, "replay", "--since=1h", "--outbox=outbox_message")
	w.expect(64, `unknown sink "fra"; the sinks are far, near`, "replay", "--since=1h", "--to-sink=fra")
	w.expect(64, "is in the future", "replay", "--since=1h", "--until=2099-01-01T00:00:00Z")
	if jobs, err := w.store.Jobs(t.Context()); err != nil || len(jobs) > 0 {
		t.Fatalf("asked for %+v, %v", jobs, err)
	}
	w.expect(1, "no leader accepted the request within 0s", "replay", "--since=1h", "--wait=0s")
	got := w.try("replay", "--since=2026-01-02T03:04:05Z", "--outbox=outbox_messages", "--group=g", "--to-sink=far", "--dry-run", "--detach")
	id := strings.TrimSuffix(got.stdout, "\n")
	if got.code != 0 || !regexp.MustCompile(`^[a-z2-7]{13}$`).MatchString(id) {
		t.Fatalf("exit %d, %q, %q", got.code, got.stdout, got.stderr)
	}
	jobs, err := w.store.Jobs(t.Context())
	if err != nil || len(jobs) != 2 || jobs[0].ID != id {
		t.Fatalf("asked for %+v, %v", jobs, err)
	}
	spec, err := replay.ParseSpec(jobs[0].Spec)
	asked := &replay.Spec{Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Outboxes: []string{"outbox_messages"}, Groups: []string{"g"}, Sink: "far", DryRun: true}
	if err != nil || !reflect.DeepEqual(spec, asked) {
		t.Errorf("asked for %+v, %v", spec, err)
	}
	w.expect(1, "no leader accepted the request within 0s", "replay", "pause", id, "--wait=0s")
	w.expect(1, "replay nobody: replay not found", "replay", "pause", "nobody")
	w.expect(0, id+"  waiting (dry run), to pause  2026-01-02T03:04:05Z", "replay", "list")
	w.refuseOne(id)
	w.expect(1, "the replay has ended: it is done\n", "replay", "cancel", id)
	w.expect(0, "outbox_messages  EVENT  g      1   ", "replay", "errors", id)
	w.expect(0, "no row was refused", "replay", "errors", jobs[1].ID)
	w.expect(1, "replay nobody: replay not found", "replay", "errors", "nobody")
	got = w.try("replay", "list", "--json")
	var list admin.ReplayList
	if err := json.Unmarshal([]byte(got.stdout), &list); err != nil || len(list.Replays) != 2 {
		t.Fatalf("%v: %s", err, got.stdout)
	}
	if r := list.Replays[0]; r.State != "done" || r.Reason != "from the table" || r.Source != "table" || r.Rows != 2 || r.Refused != 1 || r.Remaining != 1 || r.EndedAt.IsZero() {
		t.Errorf("it is %+v", r)
	}
}

// refuseOne finishes a replay of two rows, of which one was refused.
func (w *requestDatabase) refuseOne(id string) {
	w.t.Helper()
	item := func(id string) store.Item {
		return store.Item{Ref: store.Ref{Outbox: "outbox_messages", ID: id}, Kind: "EVENT", Group: store.GroupOf("g")}
	}
	w.lead(func(ctx context.Context, st *sqlitestore.Store, epoch store.Epoch) error {
		one := item("1")
		err := st.CopyRows(ctx, epoch, id, []store.ReplayRow{{N: 1, Item: one}, {N: 2, Item: item("2")}}, store.ReplayCursor{})
		if err == nil {
			err = st.FinishRows(ctx, epoch, id, []store.FinishedRow{{N: 1, Lane: one.Lane(), ID: "1", Result: store.ReplayRefused, Error: "422: no"}})
		}
		if err == nil {
			err = st.SaveJob(ctx, epoch, store.Job{ID: id, State: store.JobDone, Reason: "from the table", Source: "table"})
		}
		return err
	})
}

// TestRequestsToRelay checks that with --admin the commands use a relay instead of the
// database, and need no configuration.
func TestRequestsToRelay(t *testing.T) {
	named := &fakeCheckpoints{look: turning([]admin.Checkpoint{{Name: "a", State: "made", Position: "7"}}, nil)}
	jobs := &fakeReplays{look: always(admin.Replay{ID: jobID, State: "done", Rows: 3, Sent: 3}), refused: []store.ReplayError{{Ref: store.Ref{ID: "1"}}}}
	at := "--admin=" + serveConfig(t, admin.Config{Requests: fakeRequests{named, jobs}}, ready{})
	for args, want := range map[string]struct {
		code int
		says string
	}{
		"checkpoint create a --keep-log":  {0, "checkpoint a: made, at 7"},
		"checkpoint list":                 {0, "a     made"},
		"replay --from=a --group=g":       {0, "done; 3 rows sent, 0 skipped\n"},
		"replay list":                     {0, jobID + "  done"},
		"replay errors " + jobID:          {0, "OUTBOX"},
		"replay errors other":             {1, "sluicebox: replay other: replay not found\n"},
		"replay cancel " + jobID:          {0, "replay " + jobID + ": done"},
		"replay pause " + jobID:           {0, "replay " + jobID + ": done"},
		"replay list --admin=127.0.0.1:1": {1, "no relay responds at http://127.0.0.1:1"},
	} {
		got := try(t, backend{}, nil, append(strings.Fields(args), at)...)
		if strings.Contains(args, "--admin") {
			got = try(t, backend{}, nil, strings.Fields(args)...)
		}
		if got.code != want.code || !strings.Contains(got.stdout+got.stderr, want.says) {
			t.Errorf("%s: exit %d, %q, %q", args, got.code, got.stdout, got.stderr)
		}
	}
	if len(named.asked) != 1 || named.asked[0] != "create a true" || len(jobs.requested) != 2 || !reflect.DeepEqual(jobs.started, []replay.Spec{{From: "a", Groups: []string{"g"}}}) {
		t.Errorf("asked for %q, %+v, %q", named.asked, jobs.started, jobs.requested)
	}
	named.err, jobs.err = sluicebox.ErrNotLeading, &sluicebox.RequestError{Problem: "there is no sink \"x\""}
	if got := try(t, backend{}, nil, "checkpoint", "create", "b", at); got.code != 1 || !strings.Contains(got.stderr, "is not the leader") {
		t.Errorf("exit %d, %q", got.code, got.stderr)
	}
	if got := try(t, backend{}, nil, "replay", "--from=a", at); got.code != 64 || got.stderr != "sluicebox: refused by the relay: there is no sink \"x\"\n" {
		t.Errorf("exit %d, %q", got.code, got.stderr)
	}
}
