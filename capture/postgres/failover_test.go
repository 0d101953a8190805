package postgres_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// failoverVersion is the first version with slots that a standby has too.
const failoverVersion = 17

// withFailoverSlots runs a test on each version with failover slots.
func withFailoverSlots(t *testing.T, test func(t *testing.T, version int)) {
	t.Helper()
	for _, version := range servers.Versions() {
		if version >= failoverVersion {
			t.Run(strconv.Itoa(version), func(t *testing.T) { test(t, version) })
		}
	}
}

// pair is a primary and its standby, and the URL of both.
type pair struct {
	primary, standby *servers.Server
	d                *database
}

func newPair(t *testing.T, version int) *pair {
	t.Helper()
	p := &pair{primary: servers.Start(t, version, nil)}
	p.standby = servers.Standby(t, p.primary, nil)
	both := strings.Replace(p.primary.URL, address(p.primary.URL), address(p.primary.URL)+","+address(p.standby.URL), 1)
	p.d = newDatabase(t, both+"&target_session_attrs=read-write")
	p.d.private = true
	return p
}

// load inserts rows one after the other, whatever happens to the servers, until it is
// stopped.
func (p *pair) load(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() {
		var conn *pgx.Conn
		pace := time.NewTicker(3 * time.Millisecond)
		defer pace.Stop()
		for n := 0; ctx.Err() == nil; n++ {
			<-pace.C
			var err error
			if conn == nil || conn.IsClosed() {
				if conn, err = pgx.Connect(ctx, p.d.url); err != nil {
					conn = nil
					continue
				}
			}
			_, _ = conn.Exec(ctx, insert(fmt.Sprintf("r%06d", n))) // the table shows which commits succeeded
		}
		if conn != nil {
			_ = conn.Close(context.Background())
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		work.Wait()
	})
	t.Cleanup(stop)
	return stop
}

func ids(t *testing.T, url, condition string) []string {
	t.Helper()
	rows, err := servers.Connect(t, url).Query(t.Context(), "SELECT id FROM outbox_events WHERE "+condition+" ORDER BY id COLLATE \"C\"")
	if err != nil {
		t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// await waits until a query returns true.
func await(t *testing.T, url, sql string) {
	t.Helper()
	conn := servers.Connect(t, url)
	for deadline := time.Now().Add(testTimeout); ; <-time.After(10 * time.Millisecond) {
		var done bool
		if err := conn.QueryRow(t.Context(), sql).Scan(&done); err != nil {
			t.Fatal(err)
		}
		if done {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting for: %s", sql)
		}
	}
}

// TestFailover: the primary dies under load. The standby has the slot. The rows arrive in
// commit order from the checkpoint, none is missing, and no snapshot is taken.
func TestFailover(t *testing.T) {
	withFailoverSlots(t, func(t *testing.T, version int) {
		p := newPair(t, version)
		// A commit is acknowledged when the standby has it.
		servers.Exec(t, p.primary.URL, "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
		f := follow(t, p.d, p.d.config(), store.Checkpoint{})
		servers.Exec(t, p.primary.URL, insert("a"))
		early := f.next().Position
		p.moveSlot(t, f)
		p.standby.SyncSlot(p.d.name)
		stop := p.load(t)
		p.acknowledge(t, f, f.next().Position)
		p.standby.SyncSlot(p.d.name)
		last := f.next()
		at := store.Checkpoint{Origin: f.o.Origin, Position: last.Position}
		// Everything up to the checkpoint is on the standby, as the checkpoint's own row
		// would be.
		p.standby.CatchUp()
		p.primary.Stop("immediate")
		p.standby.Promote()
		await(t, p.standby.URL, fmt.Sprintf("SELECT count(*) >= %d FROM outbox_events", len(ids(t, p.standby.URL, "true"))+20))
		f.expectTimelineChange()
		again := resumeFrom(t, p.d, at)
		again.next()
		stop()
		again.expectInOrder(ids(t, p.standby.URL, "id > '"+last.Items[len(last.Items)-1].ID+"'")...)
		again.cancelRun()
		expectSnapshot(t, p.d, store.Checkpoint{Origin: f.o.Origin, Position: early}, "ahead of checkpoint").
			expect(ids(t, p.standby.URL, "true")...)
	})
}

// moveSlot moves the slot, and the WAL it retains, up to the primary's position. A
// standby synchronizes a slot only from a position without older transactions.
func (p *pair) moveSlot(t *testing.T, f *following) {
	t.Helper()
	for range 3 { // each is a position that the slot may move to once the next is acknowledged
		servers.Exec(t, p.primary.URL, "SELECT pg_log_standby_snapshot()")
		var end string
		if err := servers.Connect(t, p.primary.URL).QueryRow(t.Context(), "SELECT pg_current_wal_flush_lsn()::text").Scan(&end); err != nil {
			t.Fatal(err)
		}
		p.acknowledge(t, f, f.receiveUpTo(store.Position(end)))
	}
}

// receiveUpTo receives up to a position, and returns the position reached.
func (f *following) receiveUpTo(at store.Position) store.Position {
	f.t.Helper()
	timeout := time.After(testTimeout)
	for {
		select {
		case b := <-f.out:
			if f.take(b); f.src.Compare(b.Position, at) >= 0 {
				return b.Position
			}
		case err := <-f.done:
			f.done = nil
			f.t.Fatalf("the source ended with %v", err)
		case <-timeout:
			f.t.Fatalf("position %s not reached; connections lost: %v", at, f.disconnects())
		}
	}
}

// acknowledge returns when the primary has the acknowledgement.
func (p *pair) acknowledge(t *testing.T, f *following, at store.Position) {
	t.Helper()
	f.src.Acknowledge(at)
	await(t, p.primary.URL, fmt.Sprintf("SELECT confirmed_flush_lsn >= '%s' FROM pg_replication_slots WHERE slot_name = '%s'", at, p.d.name))
}

// TestFailoverWithoutSlot: if the standby lacks the slot, nothing is lost, because the
// tables are read.
func TestFailoverWithoutSlot(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		p := newPair(t, version)
		f := follow(t, p.d, p.d.config(), store.Checkpoint{})
		servers.Exec(t, p.d.url, insert("a"))
		at := store.Checkpoint{Origin: f.o.Origin, Position: f.next().Position}
		servers.Exec(t, p.d.url, insert("b"))
		f.expect("a", "b")
		p.standby.CatchUp()
		p.primary.Stop("immediate")
		p.standby.Promote()
		servers.Exec(t, p.d.url, insert("c"))
		f.expectTimelineChange()
		again := expectSnapshot(t, p.d, at, "is gone")
		servers.Exec(t, p.d.url, insert("d"))
		again.expect("a", "b", "c", "d")
	})
}

// TestFailoverThatLosesRows: the standby, at the same address, lacks rows that were read.
// The source waits while it is a standby. The checkpoint is of rows that it does not
// have.
func TestFailoverThatLosesRows(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		p := newPair(t, version)
		way := newSwitchProxy(t, address(p.primary.URL))
		p.d.url = strings.Replace(p.primary.URL, address(p.primary.URL), way.l.Addr().String(), 1)
		f := follow(t, p.d, p.d.config(), store.Checkpoint{})
		servers.Exec(t, p.d.url, insert("a"))
		f.expect("a")
		p.standby.CatchUp()
		p.standby.Stop("fast")
		servers.Exec(t, p.d.url, insert("gone"))
		at := store.Checkpoint{Origin: f.o.Origin, Position: f.next().Position}
		p.primary.Stop("immediate")
		p.standby.Restart(nil)
		way.switchTo(address(p.standby.URL))
		f.waitForRetry("is a standby")
		p.standby.Promote()
		servers.Exec(t, p.d.url, insert("b"))
		f.expectTimelineChange()
		again := expectSnapshot(t, p.d, at, "timeline 1 is after", "timeline 2 branched off")
		servers.Exec(t, p.d.url, insert("c"))
		again.expect("a", "b", "c")
	})
}

// waitForRetry receives until the source has retried after an error that contains text.
func (f *following) waitForRetry(text string) {
	f.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(testTimeout)
	for {
		for _, err := range f.disconnects() {
			if strings.Contains(err.Error(), text) {
				return
			}
		}
		select {
		case <-tick.C:
		case b := <-f.out:
			f.take(b)
		case err := <-f.done:
			f.done = nil
			f.t.Fatalf("the source ended with %v", err)
		case <-timeout:
			f.t.Fatalf("got only the errors %v", f.disconnects())
		}
	}
}
