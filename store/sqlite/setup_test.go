package sqlite_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/sqlite"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
)

func asRefused(err error, target **store.RefusedError) bool { return errors.As(err, target) }

func TestParseURL(t *testing.T) {
	for raw, want := range map[string]string{
		"sqlite:///var/lib/shop.db": "/var/lib/shop.db", "sqlite:/var/lib/shop.db": "/var/lib/shop.db",
		"sqlite:shop.db": "shop.db", "sqlite:data/shop%20two%3F.db": "data/shop two?.db", "sqlite:///a%23b.db": "/a#b.db",
	} {
		if got, err := sqlite.ParseURL(raw); err != nil || got != filepath.FromSlash(want) {
			t.Errorf("%s: %q, %v", raw, got, err)
		}
	}
	for raw, part := range map[string]string{
		"": "not of the form", "postgres://db/shop": "not of the form", "shop.db": "not of the form", "sqlite://\x01": "not of the form",
		"sqlite://relative.db": "names a host", "sqlite://u:p@h/x": "names a host", "sqlite::memory:": "in memory", "sqlite:///:memory:": "in memory",
		"sqlite:": "no file", "sqlite:///": "no file", "sqlite:///data/": "no file",
		"sqlite:shop.db?mode=ro": "parameters", "sqlite:shop.db#x": "parameters", "sqlite:50%.db": "decoded",
	} {
		path, err := sqlite.ParseURL(raw)
		if path != "" {
			t.Errorf("%q gives %q", raw, path)
		}
		rigs.WantSetup(t, raw, err, part)
		if err != nil && strings.Contains(err.Error(), "u:p@") {
			t.Errorf("the error shows a password: %v", err)
		}
	}
}

func TestConfig(t *testing.T) {
	bad := flowBox()
	bad.Schema, bad.Table, bad.Layout.Columns.Claimed = "other", "", ""
	_, err := sqlite.New(sqlite.Config{URL: "x", Name: "No", Outboxes: []store.Outbox{bad, bad, {}}, TakeoverTimeout: time.Second})
	for _, part := range []string{"not of the form", `"No"`, `"other"`, "no table", "twice", "claim time column", "has no name"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not say %q: %v", part, err)
		}
	}
	if _, err := sqlite.New(sqlite.Config{URL: "sqlite:x", Name: "a", TakeoverTimeout: -1}); err == nil || !strings.Contains(err.Error(), "no outbox") || !strings.Contains(err.Error(), "negative") {
		t.Error(err)
	}
}

func TestFileFaults(t *testing.T) {
	dir := t.TempDir()
	absent := openStore(t, filepath.Join(dir, "absent.db"), "rig", 0, flowBox())
	rigs.WantSetup(t, "no file", absent.Install(ctx(t)), "does not exist", "absent.db")
	if _, err := absent.View(ctx(t), ""); err == nil {
		t.Error("a view of no file")
	}
	if _, err := os.Stat(filepath.Join(dir, "absent.db")); err == nil {
		t.Error("the file was made")
	}
	rigs.WantSetup(t, "a directory", openStore(t, dir, "rig", 0, flowBox()).Check(ctx(t)), "is not a file")
	text := filepath.Join(dir, "text.db")
	if err := os.WriteFile(text, []byte(strings.Repeat("no database ", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	rigs.WantSetup(t, "another file", openStore(t, text, "rig", 0, flowBox()).Install(ctx(t)), "not a SQLite database")
}

// TestJournalMode: a file in another mode is switched to WAL, once no other connection uses
// it.
func TestJournalMode(t *testing.T) {
	path := newFile(t)
	db := openSQL(t, path)
	db.SetMaxOpenConns(1)
	if _, err := db.Exec(flowTable); err != nil {
		t.Fatal(err)
	}
	if mode := ask[string](t, db, "PRAGMA journal_mode"); mode != "delete" {
		t.Fatalf("the journal mode is %s; nothing is proven", mode)
	}
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx(t), 100*time.Millisecond)
	defer cancel()
	if err := openStore(t, path, "rig", 0, flowBox()).Install(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while another transaction is open: %v", err)
	}
	done := make(chan error, 1)
	st := openStore(t, path, "rig", 0, flowBox())
	go func() { done <- st.Install(ctx(t)) }()
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if mode := ask[string](t, openSQL(t, path), "PRAGMA journal_mode"); mode != "wal" {
		t.Errorf("the journal mode is %s", mode)
	}
}

func TestCheckTables(t *testing.T) {
	path := newFile(t)
	db := openSQL(t, path)
	for _, sql := range []string{
		flowTable, "CREATE VIEW shown AS SELECT * FROM outbox_events",
		strings.NewReplacer("outbox_events", "loose", "PRIMARY KEY", "").Replace(flowTable),
		strings.NewReplacer("outbox_events", "reals", "id VARCHAR(13)", "id REAL", "processed_at TIMESTAMP", "processed_at DOUBLE").Replace(flowTable),
		strings.NewReplacer("outbox_events", "partly", "PRIMARY KEY", "").Replace(flowTable) + "CREATE INDEX p ON partly (id) WHERE status = 'PENDING'; CREATE INDEX q ON partly (status, id)",
	} {
		if _, err := db.Exec(sql); err != nil {
			t.Fatal(err)
		}
	}
	for table, parts := range map[string][]string{
		"shown": {"is a view"}, "loose": {"no index", `CREATE UNIQUE INDEX "loose_id" ON "loose" ("id")`}, "partly": {"no index"},
		"reals": {"no exact text", "processed_at", "DOUBLE"}, "sqlite_sequence": {"sluicebox init"},
	} {
		box := flowBox()
		box.Table = table
		rigs.WantSetup(t, table, openStore(t, path, "rig", 0, box).Check(ctx(t)), parts...)
	}
}

// TestVersion: the relay's tables of a newer program are not changed.
func TestVersion(t *testing.T) {
	r := newRig(t, flowTable, 0, flowBox())
	r.exec(t, "UPDATE sluicebox_meta SET version = 99")
	rigs.WantSetup(t, "install", r.store.Install(ctx(t)), "version 99", "newer release")
	rigs.WantSetup(t, "check", r.store.Check(ctx(t)), "version 99", "newer release")
	r.exec(t, "UPDATE sluicebox_meta SET version = 1; DROP TABLE sluicebox_queue")
	rigs.WantSetup(t, "check", r.store.Check(ctx(t)), "sluicebox_queue")
}

// TestUnreleasedTables: tables of an unreleased version are not taken for current ones.
func TestUnreleasedTables(t *testing.T) {
	for _, version := range []int{1, 6} {
		path := newFile(t)
		rigs.Exec(t, openSQL(t, path), flowTable+`
CREATE TABLE sluicebox_meta (one INTEGER PRIMARY KEY DEFAULT 1, version INTEGER NOT NULL);
CREATE TABLE sluicebox_leader (name TEXT PRIMARY KEY, epoch INTEGER NOT NULL)`)
		rigs.Exec(t, openSQL(t, path), "INSERT INTO sluicebox_meta (version) VALUES (?)", version)
		st := openStore(t, path, "rig", 0, flowBox())
		rigs.WantSetup(t, "install", st.Install(ctx(t)), "sluicebox_record", "drop every table", "sluicebox init")
		rigs.WantSetup(t, "check", st.Check(ctx(t)), "sluicebox_record", "drop every table")
	}
}

// TestBeforeInit: without the relay's tables every call returns the remedy. Several relays may
// then create them at once.
func TestBeforeInit(t *testing.T) {
	path := newFile(t)
	r := &rig{path: path, db: openSQL(t, path)}
	r.exec(t, flowTable+"INSERT INTO outbox_events (id) VALUES ('1');")
	r.store = openStore(t, path, "rig", 0, flowBox())
	rigs.WantSetup(t, "check", r.store.Check(ctx(t)), "relay tables do not exist", "sluicebox init")
	if may, err := r.store.MayInstall(ctx(t)); err != nil || !may {
		t.Errorf("MayInstall before Install: got %t, %v", may, err)
	}
	_, err := r.store.Leader(ctx(t))
	rigs.WantSetup(t, "leader", err, "sluicebox init")
	_, err = r.store.AcquireLeadership(ctx(t))
	rigs.WantSetup(t, "acquire leadership", err, "sluicebox init")
	_, err = r.store.Claim(ctx(t), 41, time.Now(), []store.ClaimRow{row("1")})
	rigs.WantSetup(t, "claim", err, "sluicebox init")
	_, err = r.store.LoadHolds(ctx(t))
	rigs.WantSetup(t, "holds", err, "sluicebox init")
	_, err = r.store.LoadCheckpoint(ctx(t))
	rigs.WantSetup(t, "checkpoint", err, "sluicebox init")
	rigs.WantSetup(t, "spill", r.store.Spill(ctx(t), 41, []store.Item{r.spillItem("2", "a", 1)}), "sluicebox init")
	for what, err := range rigs.Replay(ctx(t), r.store, 41, "events") {
		if what != "states" { // they are in the outbox
			rigs.WantSetup(t, what, err, "sluicebox init")
		}
	}

	installed := make(chan error, 3)
	c := ctx(t)
	for range cap(installed) {
		st := openStore(t, path, "rig", 0, flowBox())
		go func() { installed <- st.Install(c) }()
	}
	for range cap(installed) {
		if err := <-installed; err != nil {
			t.Error(err)
		}
	}
	if may, err := r.store.MayInstall(ctx(t)); err != nil || may {
		t.Errorf("MayInstall after Install: got %t, %v", may, err)
	}
	r.epoch = rigs.InstallAndLead(t, r.store)
	r.spill(t, r.spillItem("2", "a", 1))
	wantIDs(t, "spilled", r.spilled(t, laneOf("a")), "2")
	r.claim(t, row("1"))
	r.checkLetter(t, "1")
}

// TestScript: the script creates the same objects as Install, in any version of SQLite.
func TestScript(t *testing.T) {
	r := newRig(t, flowTable, 0, flowBox())
	const schema = "SELECT group_concat(sql, ';') FROM (SELECT sql FROM sqlite_schema WHERE name LIKE 'sluicebox%' ORDER BY name)"
	want := ask[string](t, r.db, schema)
	path := newFile(t)
	if shell, err := exec.LookPath("sqlite3"); err == nil {
		cmd := exec.Command(shell, path)
		cmd.Stdin = strings.NewReader(r.store.Script())
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	} else if _, err := openSQL(t, path).Exec(r.store.Script()); err != nil {
		t.Fatal(err)
	}
	if got := ask[string](t, openSQL(t, path), schema); got != want {
		t.Errorf("the script makes\n%s\nInstall makes\n%s", got, want)
	}
}

func TestSnapshotNames(t *testing.T) {
	r := newRig(t, flowTable, 0, flowBox())
	if _, err := r.store.View(ctx(t), "00000003-1"); err == nil || !strings.Contains(err.Error(), "no named snapshots") {
		t.Errorf("a named snapshot: %v", err)
	}
	v, err := r.store.View(ctx(t), "")
	if err != nil || v.Position() != "" {
		t.Errorf("without a log the position is %q, %v", v.Position(), err)
	}
	v.Close()
	r.exec(t, "CREATE TABLE sluicebox_log_rig (seq INTEGER PRIMARY KEY AUTOINCREMENT); INSERT INTO sluicebox_log_rig VALUES (41), (42); DELETE FROM sluicebox_log_rig")
	if v, err = r.store.View(ctx(t), ""); err != nil || v.Position() != "42" {
		t.Errorf("with a log the position is %q, %v", v.Position(), err)
	}
	v.Close()
}

func TestReadOnly(t *testing.T) {
	if runtime.GOOS == "windows" || os.Getuid() == 0 {
		t.Skip("this user may write to every file")
	}
	r := newRig(t, flowTable, 0, flowBox())
	if err := os.Chmod(r.path, 0o400); err != nil {
		t.Fatal(err)
	}
	rigs.WantSetup(t, "check", openStore(t, r.path, "rig", 0, flowBox()).Check(ctx(t)), "may not write")
}
