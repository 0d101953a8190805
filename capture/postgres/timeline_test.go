package postgres_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// expectTimelineChange expects the error of another timeline. It does not invalidate the
// checkpoint, and running again does not fix it.
func (f *following) expectTimelineChange() {
	f.t.Helper()
	err := f.waitForEnd()
	if errors.As(err, new(*capture.LostError)) || errors.As(err, new(*capture.NoStreamError)) ||
		errors.As(err, new(*store.SetupError)) || !errors.Is(err, store.ErrInterrupted) {
		f.t.Fatalf("the source ended with %v", err)
	}
	expectText(f.t, err, "timeline 2", "timeline 1")
}

// cancelRun ends the source as its caller does.
func (f *following) cancelRun() {
	f.t.Helper()
	f.stop()
	if err := <-f.done; err != nil && !strings.Contains(err.Error(), "context canceled") {
		f.t.Errorf("the source ended with %v", err)
	}
	f.done = nil
	f.src.Close()
}

// resumeFrom follows from a checkpoint of the previous timeline, without a snapshot.
func resumeFrom(t *testing.T, d *database, at store.Checkpoint) *following {
	t.Helper()
	f := follow(t, d, d.config(), at)
	if f.o.View != nil || f.o.SnapshotReason != "" || f.o.From != at.Position {
		t.Fatalf("not resumed at %s: got position %s, snapshot reason %s", at.Position, f.o.From, f.o.SnapshotReason)
	}
	system, _, _ := strings.Cut(at.Origin, "/")
	if !strings.HasPrefix(f.o.Origin, system+"/2/") {
		t.Errorf("got origin %s, before %s", f.o.Origin, at.Origin)
	}
	return f
}

// expectSnapshot follows from an unusable checkpoint, and checks the reason.
func expectSnapshot(t *testing.T, d *database, at store.Checkpoint, why ...string) *following {
	t.Helper()
	f := follow(t, d, d.config(), at)
	if f.o.View == nil {
		t.Fatalf("resumed at %s, want a snapshot", f.o.From)
	}
	expectText(t, errors.New(f.o.SnapshotReason), why...)
	return f
}

// writable waits until a started server accepts writes.
func writable(t *testing.T, url string) {
	t.Helper()
	conn := servers.Connect(t, url)
	for deadline := time.Now().Add(testTimeout); ; <-time.After(10 * time.Millisecond) {
		var standby bool
		if err := conn.QueryRow(t.Context(), "SELECT pg_is_in_recovery()").Scan(&standby); err != nil {
			t.Fatal(err)
		}
		if !standby {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the server stays a standby")
		}
	}
}

func signal(t *testing.T, srv *servers.Server) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(srv.Dir, "recovery.signal"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
}

// TestOtherTimeline: a server that was its own standby, as cluster managers do after a
// crash, kept its slot. The log continues where the new timeline left the old one.
func TestOtherTimeline(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		srv := servers.Start(t, version, nil)
		d := privateDatabase(t, srv)
		f := follow(t, d, d.config(), store.Checkpoint{})
		servers.Exec(t, d.url, insert("b"))
		at := store.Checkpoint{Origin: f.o.Origin, Position: f.next().Position}
		servers.Exec(t, d.url, insert("a"))
		f.expect("a", "b")
		srv.Stop("immediate")
		signal(t, srv)
		srv.Restart(map[string]string{"restore_command": "false", "hot_standby": "off"})
		servers.Exec(t, d.url, insert("d"))
		f.expectTimelineChange()
		servers.Exec(t, d.url, insert("c"))
		again := resumeFrom(t, d, at)
		again.expectInOrder("a", "d", "c")
		again.cancelRun()
		// A log of an unknown or later timeline does not belong to this server.
		for _, timeline := range []string{"7", "x", ""} {
			other := at
			other.Origin = strings.Replace(at.Origin, "/1/", "/"+timeline+"/", 1)
			expectSnapshot(t, d, other, "checkpoint is of").cancelRun()
		}
	})
}

// expectInOrder receives exactly these rows in this order.
func (f *following) expectInOrder(want ...string) {
	f.t.Helper()
	f.expect(slices.Clone(want)...)
	if !slices.Equal(f.ids, want) {
		f.t.Fatalf("got rows %q, want %q", f.ids, want)
	}
}

// TestRestoredToPointInTime: a backup is restored to a point in time, with the slot. A
// checkpoint from before that point is found in the tables, and the log continues there.
// A checkpoint from after it is of rows that are gone, replaced by others.
func TestRestoredToPointInTime(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		srv := servers.Start(t, version, nil)
		d := privateDatabase(t, srv)
		f := follow(t, d, d.config(), store.Checkpoint{})
		servers.Exec(t, d.url, insert("a"))
		f.expect("a")
		srv.Stop("fast")
		backup, archive := filepath.Join(filepath.Dir(srv.Dir), "backup"), filepath.Join(filepath.Dir(srv.Dir), "archive")
		copyFiles(t, srv.Dir, backup)
		srv.Restart(nil)
		servers.Exec(t, d.url, insert("b"))
		before := store.Checkpoint{Origin: f.o.Origin, Position: f.next().Position}
		servers.Exec(t, d.url, insert("c"), "SELECT pg_switch_wal()", insert("d"), "SELECT pg_create_restore_point('here')", insert("e"))
		f.next()
		f.next()
		behind := store.Checkpoint{Origin: f.o.Origin, Position: f.next().Position}
		f.cancelRun()
		srv.Stop("fast")
		copyFiles(t, filepath.Join(srv.Dir, "pg_wal"), archive)
		copyFiles(t, backup, srv.Dir)
		signal(t, srv)
		srv.Restart(map[string]string{
			"restore_command": "cp " + archive + "/%f %p", "recovery_target_name": "here", "recovery_target_action": "promote",
		})
		writable(t, d.url)
		servers.Exec(t, d.url, insert("z"))
		again := resumeFrom(t, d, before)
		servers.Exec(t, d.url, insert("y"))
		again.expectInOrder("c", "d", "z", "y")
		again.cancelRun()
		again = expectSnapshot(t, d, behind, "timeline 1 is after", "timeline 2 branched off")
		servers.Exec(t, d.url, insert("x"))
		again.expect("a", "b", "c", "d", "z", "y", "x")
	})
}
