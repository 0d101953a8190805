package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

func privateDatabase(t *testing.T, srv *servers.Server) *database {
	d := newDatabase(t, srv.URL)
	d.private = true
	return d
}

// TestSlotInvalidatedWhileRunning: the server discards the WAL while the source is
// paused.
func TestSlotInvalidatedWhileRunning(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		srv := servers.Start(t, version, map[string]string{"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"})
		d := privateDatabase(t, srv)
		f := follow(t, d, d.config(), store.Checkpoint{})
		servers.Exec(t, d.url, insert("a"))
		f.expect("a")
		for range 4 {
			servers.Exec(t, d.url, "INSERT INTO unrelated VALUES (1)", "SELECT pg_switch_wal()")
		}
		servers.Exec(t, d.url, "CHECKPOINT", insert("b"))
		f.expectLost(d.name)
		servers.Exec(t, d.url, insert("c"))
		again := follow(t, d, d.config(), store.Checkpoint{})
		servers.Exec(t, d.url, insert("d"))
		again.expect("a", "b", "c", "d")
	})
}

func TestWALLevelSetBack(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		levels := []string{"replica", "minimal"}
		if version == servers.Versions()[0] {
			levels = levels[:1] // the other one waits for a walsender, which takes time
		}
		for _, level := range levels {
			t.Run(level, func(t *testing.T) {
				srv := servers.Start(t, version, nil)
				d := privateDatabase(t, srv)
				f := follow(t, d, d.config(), store.Checkpoint{})
				servers.Exec(t, d.url, insert("a"))
				f.expect("a")
				script(dropSlot)(t, d)
				settings := map[string]string{"wal_level": level, "max_wal_senders": "50"}
				if level == "minimal" {
					settings["max_wal_senders"] = "0"
				}
				srv.Restart(settings)
				servers.Exec(t, d.url, insert("b"))
				// Which error it is depends on the duration of the restart.
				if err := f.waitForEnd(); !errors.As(err, new(*capture.LostError)) && !errors.As(err, new(*capture.NoStreamError)) {
					t.Fatalf("the source ended with %v", err)
				}
				src := newSource(t, d.config())
				defer src.Close()
				var no *capture.NoStreamError
				if err := src.Ready(t.Context()); !errors.As(err, &no) {
					t.Fatalf("ready: %v", err)
				} else {
					expectText(t, err, "wal_level is "+level, "ALTER SYSTEM SET wal_level = logical;")
				}
				expectText(t, openErr(t, d, d.config(), store.Checkpoint{}), "wal_level is "+level)
				srv.Restart(map[string]string{"wal_level": "logical", "max_wal_senders": "50"})
				if err := src.Ready(t.Context()); err != nil {
					t.Fatal(err)
				}
				servers.Exec(t, d.url, insert("c"))
				follow(t, d, d.config(), store.Checkpoint{}).expect("a", "b", "c")
			})
		}
	})
}

// copyFiles copies a server's data directory, as its user.
func copyFiles(t *testing.T, from, to string) {
	t.Helper()
	if out, err := exec.Command("sh", "-c", `rm -rf "$2" && cp -a "$1" "$2"`, "sh", from, to).CombinedOutput(); err != nil {
		t.Fatalf("copy %s: %v\n%s", from, err, out)
	}
}

// TestRestoredFromFiles: the server is restored to an earlier state of its files, with
// the same system and timeline, and WAL that ends before the position read. Everything
// committed after that must arrive, although its positions were passed before.
func TestRestoredFromFiles(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		srv := servers.Start(t, version, nil)
		d := privateDatabase(t, srv)
		f := follow(t, d, d.config(), store.Checkpoint{})
		servers.Exec(t, d.url, insert("a"))
		f.expect("a")
		srv.Stop("fast")
		backup := filepath.Join(filepath.Dir(srv.Dir), "backup")
		copyFiles(t, srv.Dir, backup)
		srv.Restart(nil)
		servers.Exec(t, d.url, insert("b"))
		f.expect("a", "b")
		for range 3 {
			servers.Exec(t, d.url, "SELECT pg_switch_wal()", "INSERT INTO unrelated VALUES (1)")
		}
		servers.Exec(t, d.url, insert("c"))
		f.expect("a", "b", "c")
		srv.Stop("fast")
		copyFiles(t, backup, srv.Dir)
		srv.Restart(nil)
		servers.Exec(t, d.url, insert("d"))
		f.expectLost("the server was restored")
		again := follow(t, d, d.config(), store.Checkpoint{Origin: f.o.Origin, Position: "7F/0"})
		expectText(t, errors.New(again.o.SnapshotReason), "the server was restored")
		servers.Exec(t, d.url, insert("e"))
		again.expect("a", "d", "e")
	})
}

// runProgram runs one of the server's programs as the server's user.
func runProgram(t *testing.T, version int, name string, args ...string) {
	t.Helper()
	args = append([]string{filepath.Join(os.Getenv(fmt.Sprintf("SLUICEBOX_TEST_PG%d_BIN", version)), name)}, args...)
	if os.Geteuid() == 0 {
		args = append([]string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"}, args...)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+os.Getenv(fmt.Sprintf("SLUICEBOX_TEST_PG%d_LIB", version)))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
}

func TestLogReset(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		srv := servers.Start(t, version, nil)
		d := privateDatabase(t, srv)
		f := follow(t, d, d.config(), store.Checkpoint{})
		servers.Exec(t, d.url, insert("a"))
		f.expect("a")
		srv.Stop("fast") // data outside the files would be lost with the WAL
		runProgram(t, version, "pg_resetwal", "-f", "-D", srv.Dir)
		srv.Restart(nil)
		servers.Exec(t, d.url, insert("b"))
		f.expectLost()
		servers.Exec(t, d.url, insert("c"))
		follow(t, d, d.config(), store.Checkpoint{}).expect("a", "b", "c")
	})
}

func address(url string) string {
	return url[strings.Index(url, "@")+1 : strings.LastIndex(url, "/")]
}

func TestOtherServer(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		one, two := servers.Start(t, version, nil), servers.Start(t, version, nil)
		servers.Exec(t, two.URL, createTable)
		p := newSwitchProxy(t, address(one.URL))
		d := newDatabase(t, one.URL)
		d.private = true
		d.url = strings.Replace(one.URL, address(one.URL), p.l.Addr().String(), 1)
		f := follow(t, d, d.config(), store.Checkpoint{})
		servers.Exec(t, one.URL, insert("a"))
		f.expect("a")
		p.switchTo(address(two.URL))
		servers.Exec(t, two.URL, insert("b"))
		f.expectLost("server, timeline and database are")
		p.switchTo(address(one.URL))
	})
}

// TestNoWalsenderForLong: another client holds the last walsender for long. The source
// waits a while and then returns an error.
func TestNoWalsenderForLong(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		srv := servers.Start(t, version, map[string]string{"max_wal_senders": "1"})
		d := privateDatabase(t, srv)
		f := follow(t, d, d.config(), store.Checkpoint{})
		servers.Exec(t, d.url, insert("a"))
		f.expect("a")
		var thief *pgconn.PgConn
		for thief == nil { // the source may be faster
			d.Disconnect(t)
			thief, _ = pgconn.Connect(t.Context(), d.url+"&replication=database")
		}
		defer func() { _ = thief.Close(context.Background()) }()
		began := time.Now()
		f.expectNoStream("no free walsender", "max_wal_senders")
		if took := time.Since(began); took < 8*time.Second {
			t.Errorf("it gave up after %s", took)
		}
		src := newSource(t, d.config())
		defer src.Close()
		var no *capture.NoStreamError
		if err := src.Ready(t.Context()); !errors.As(err, &no) {
			t.Errorf("ready: %v", err)
		}
		if err := openErr(t, d, d.config(), store.Checkpoint{}); !errors.As(err, &no) {
			t.Errorf("open: %v", err)
		}
		servers.Exec(t, d.url, insert("b"))
		if err := thief.Close(t.Context()); err != nil {
			t.Error(err)
		}
		conn := servers.Connect(t, d.url)
		for left := 1; left > 0; { // the server may not have noticed yet
			if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_replication").Scan(&left); err != nil {
				t.Fatal(err)
			}
		}
		follow(t, d, d.config(), store.Checkpoint{}).expect("a", "b")
	})
}

// TestSlotHeldForLong: another program reads the slot for long and acknowledges nothing.
// Only a leader may poll then.
func TestSlotHeldForLong(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		d, other := newDatabase(t, servers.Database(t, version)), newDatabase(t, servers.Database(t, version))
		leader, single := d.config(), other.config()
		leader.TakeOver = true
		f, g := follow(t, d, leader, store.Checkpoint{}), follow(t, other, single, store.Checkpoint{})
		servers.Exec(t, d.url, insert("a"))
		f.expect("a")
		thief := stealSlot(t, d)
		stealSlot(t, other)
		held := []string{`application "thief"`, fmt.Sprintf("SELECT pg_terminate_backend(%d);", thief.PID())}
		f.expectNoStream(held...)
		if err := g.waitForEnd(); !errors.As(err, new(*store.SetupError)) || errors.As(err, new(*capture.NoStreamError)) {
			t.Errorf("unexpected *capture.NoStreamError while another relay may run: %v", err)
		}
		src := newSource(t, d.config())
		defer src.Close()
		if err := src.Ready(t.Context()); err == nil {
			t.Error("ready, though the slot is held")
		} else {
			expectText(t, err, held...)
		}
		leads := newSource(t, leader)
		defer leads.Close()
		if err := leads.Ready(t.Context()); err != nil {
			t.Errorf("not ready, though the session may be terminated: %v", err)
		}
		servers.Exec(t, d.url, insert("b"))
		follow(t, d, leader, store.Checkpoint{Origin: f.o.Origin, Position: f.o.From}).expect("a", "b")
	})
}

// stealSlot takes the slot from the source that reads it.
func stealSlot(t *testing.T, d *database) *pgconn.PgConn {
	t.Helper()
	thief, err := pgconn.Connect(t.Context(), d.url+"&replication=database&application_name=thief")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = thief.Close(context.Background()) })
	for err = errors.New("not yet"); err != nil; { // the source may be faster
		d.Disconnect(t)
		err = pglogrepl.StartReplication(t.Context(), thief, d.name, 0, pglogrepl.StartReplicationOptions{
			PluginArgs: []string{"proto_version '1'", "publication_names '" + d.name + "'"},
		})
	}
	return thief
}
