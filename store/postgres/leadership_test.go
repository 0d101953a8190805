package postgres_test

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/postgres"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// proxy sits between a store and its server. It can stop forwarding the server's
// messages, as if the relay were frozen and stopped reading.
type proxy struct {
	url    string
	listen net.Listener
	server string
	work   sync.WaitGroup

	mu     sync.Mutex
	passes chan struct{} // closed while responses pass
	conns  []net.Conn
	ended  bool
}

func newProxy(t *testing.T, raw string) *proxy {
	t.Helper()
	at, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	listen, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listen: listen, server: at.Host, passes: make(chan struct{})}
	close(p.passes)
	at.Host = listen.Addr().String()
	p.url = at.String()
	p.work.Go(p.serve)
	t.Cleanup(p.end)
	return p
}

func (p *proxy) serve() {
	for {
		client, err := p.listen.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.server)
		if err != nil {
			_ = client.Close()
			return
		}
		if !p.add(client, server) {
			return
		}
		p.work.Go(func() { p.pipe(server, client, false) })
		p.work.Go(func() { p.pipe(client, server, true) })
	}
}

func (p *proxy) add(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = append(p.conns, conns...)
	if p.ended {
		for _, c := range conns {
			_ = c.Close()
		}
	}
	return !p.ended
}

// pipe copies until either side ends.
func (p *proxy) pipe(to, from net.Conn, answers bool) {
	defer func() { _, _ = to.Close(), from.Close() }()
	buf := make([]byte, 8<<10)
	for {
		if answers {
			p.mu.Lock()
			passes := p.passes
			p.mu.Unlock()
			<-passes
		}
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (p *proxy) freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.passes = make(chan struct{})
}

func (p *proxy) thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.passes:
	default:
		close(p.passes)
	}
}

func (p *proxy) end() {
	p.thaw()
	_ = p.listen.Close()
	p.mu.Lock()
	p.ended = true
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.work.Wait()
}

// await waits until a query returns true.
func (r *rig) await(t *testing.T, what, question string) {
	t.Helper()
	for deadline := time.Now().Add(testTimeout); !ask[bool](t, r.conn, question); {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting for: %s", what)
		}
	}
}

// TestAcquireTerminatesFrozenClaim: a relay frozen while the server sends it the payloads
// of a claim does not keep the next one from leading, and its claim is rolled back.
func TestAcquireTerminatesFrozenClaim(t *testing.T) {
	const rows, size = 64, 1 << 20 // more than the buffers of two sockets and the proxy hold
	aVersion(t, func(t *testing.T, url string) {
		p := newProxy(t, url)
		r := newRig(t, p.url, flowTable, 0, flowBox)
		r.conn = servers.Connect(t, url)
		r.insert(t, "first")
		r.exec(t, `INSERT INTO outbox_events (id, type, message_group, payload, status, created_at)
SELECT i, 'EVENT', 'g', repeat('x', $2), 'PENDING', now() FROM generate_series(1, $1) i`, rows, size)
		r.claim(t, row("first")) // opens the session; after a pause it would be tested
		var asked []store.ClaimRow
		for i := range rows {
			ask := row(fmt.Sprint(i + 1))
			ask.WantPayload = true
			asked = append(asked, ask)
		}
		p.freeze()
		claim := r.claimLater(t, asked...)
		r.await(t, "the server sends, and nobody reads", `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
AND application_name = 'sluicebox rig claims' AND wait_event = 'ClientWrite')`)
		rival := openStore(t, url, 0, flowBox)
		epoch, err := rival.AcquireLeadership(ctx(t))
		if err != nil || epoch != r.epoch+1 {
			t.Fatalf("next leader: got epoch %d, error %v", epoch, err)
		}
		const pending = "SELECT count(*) FROM outbox_events WHERE status = 'PENDING'"
		if n := ask[int](t, r.conn, pending); n != rows {
			t.Errorf("%d rows are pending, want %d", n, rows)
		}
		p.thaw()
		if a := <-claim; a.Err == nil {
			t.Error("the frozen claim returned")
		}
		if _, err := r.store.Claim(ctx(t), r.epoch, time.Now(), asked[:1]); !errors.Is(err, store.ErrNotLeader) {
			t.Errorf("resumed old leader: got error %v", err)
		}
		if n := ask[int](t, r.conn, pending); n != rows {
			t.Errorf("finally %d rows are pending, want %d", n, rows)
		}
	})
}

// TestAcquireTerminatesWaitingClaim: a claim of an earlier leader that waits for a row
// indefinitely is terminated; the store's own sessions are not.
func TestAcquireTerminatesWaitingClaim(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		r := newRig(t, withoutLockTimeout(url), flowTable, 0, flowBox)
		r.insert(t, "1", "2")
		// The row is locked only to make the claim wait; nothing is written.
		holder := r.begin(t, "SELECT 1 FROM outbox_events WHERE id = '1' FOR UPDATE")
		claim := r.claimLater(t, row("1"))
		r.waitBlocked(t, 1)
		rival := openStore(t, withoutLockTimeout(url), 0, flowBox)
		epoch, err := rival.AcquireLeadership(ctx(t))
		if err != nil || epoch != r.epoch+1 {
			t.Fatalf("next leader: got epoch %d, error %v", epoch, err)
		}
		if a := <-claim; a.Err == nil || !postgres.Unreachable(a.Err) {
			t.Errorf("old leader's claim: got %v, error %v", a.Value, a.Err)
		}
		end(t, holder, true)
		if got := r.status(t, "1"); got != "PENDING" {
			t.Errorf("the row is %s", got)
		}
		if _, err := r.store.Claim(ctx(t), r.epoch, time.Now(), []store.ClaimRow{row("1")}); !errors.Is(err, store.ErrNotLeader) {
			t.Errorf("claim after AcquireLeadership: %v", err)
		}

		holder = r.begin(t, "SELECT 1 FROM outbox_events WHERE id = '2' FOR UPDATE")
		r.store, r.epoch = rival, epoch
		claim = r.claimLater(t, row("2"))
		r.waitBlocked(t, 1)
		c := ctx(t)
		lead := rigs.Async(func() (store.Epoch, error) { return rival.AcquireLeadership(c) })
		r.waitBlocked(t, 2)
		end(t, holder, true)
		if a := <-claim; a.Err != nil || a.Value[0].Result != store.Claimed {
			t.Errorf("the store's own claim: got %v, error %v", a.Value, a.Err)
		}
		if l := <-lead; l.Err != nil || l.Value != epoch+1 {
			t.Errorf("AcquireLeadership during its own claim: got epoch %d, error %v", l.Value, l.Err)
		}
	})
}

// TestAcquireBesideManyWrites: an earlier leader that writes all the time, in three sessions, and so shares its row
// without a gap, does not keep the next one from leading.
func TestAcquireBesideManyWrites(t *testing.T) {
	const rows = 1000
	aVersion(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox)
		r.exec(t, `INSERT INTO outbox_events (id, type, payload, status, created_at)
SELECT i, 'EVENT', '{}', 'PENDING', now() FROM generate_series(0, $1::int) i`, 3*rows)
		var toSettle [2][]store.Outcome
		var toClaim []store.ClaimRow
		for i := range rows {
			for half := range toSettle {
				toSettle[half] = append(toSettle[half], store.Outcome{Ref: row(fmt.Sprint(half*rows + i)).Ref, Status: store.Pending})
			}
			toClaim = append(toClaim, row(fmt.Sprint(2*rows+i)))
		}
		c := ctx(t)
		var writers, warm sync.WaitGroup
		write := func(call func() error) {
			warm.Add(1)
			writers.Go(func() {
				for n := 0; ; n++ {
					err := call()
					if n == 3 || n < 3 && err != nil {
						warm.Done()
					}
					if err != nil {
						return
					}
				}
			})
		}
		for _, outcomes := range toSettle {
			write(func() error { _, err := r.store.Settle(c, r.epoch, outcomes); return err })
		}
		write(func() error { _, err := r.store.Claim(c, r.epoch, time.Now(), toClaim); return err })
		warm.Wait()
		epoch, err := openStore(t, url, 0, flowBox).AcquireLeadership(c)
		if err != nil || epoch != r.epoch+1 {
			t.Errorf("next leader: got epoch %d, error %v", epoch, err)
		}
		writers.Wait()
	})
}

// TestAcquireReportsBlockers: sessions of other programs, and sessions that the role may
// not terminate, stay. The error names the process and the statement to run.
func TestAcquireReportsBlockers(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts servers and waits for seconds")
	}
	for _, version := range servers.Spread(t, servers.Versions()) {
		t.Run(fmt.Sprintf("pg%d", version), func(t *testing.T) {
			t.Parallel()
			srv := servers.Start(t, version, nil) // transactions stay open for seconds
			r := newRig(t, withoutLockTimeout(srv.URL), flowTable, 0, flowBox)
			r.insert(t, "1")
			wantKept := func(what string, st *postgres.Store, pid int, part string) {
				t.Helper()
				_, err := st.AcquireLeadership(ctx(t))
				run := fmt.Sprintf("SELECT pg_terminate_backend(%d);", pid)
				if err == nil || !postgres.Unreachable(err) || errors.Is(err, store.ErrNotLeader) ||
					!strings.Contains(err.Error(), run) || !strings.Contains(err.Error(), part) {
					t.Errorf("%s: %v, want %q", what, err, run)
				}
			}
			stranger := r.begin(t, "SELECT 1 FROM sluicebox.leader FOR SHARE")
			pid := int(stranger.Conn().PgConn().PID())
			wantKept("an operator", openStore(t, srv.URL, 0, flowBox), pid, fmt.Sprintf("process %d ()", pid))
			end(t, stranger, true)

			holder := r.begin(t, "SELECT 1 FROM outbox_events FOR UPDATE")
			claim := r.claimLater(t, row("1"))
			r.waitBlocked(t, 1)
			role := openStore(t, asRole(t, srv.URL, "relay_lead"), 0, flowBox)
			servers.Exec(t, srv.URL, "GRANT USAGE ON SCHEMA sluicebox TO relay_lead", "GRANT ALL ON ALL TABLES IN SCHEMA sluicebox TO relay_lead")
			pid = ask[int](t, r.conn, "SELECT pid FROM pg_stat_activity WHERE application_name = 'sluicebox rig claims'")
			wantKept("a role that may not", role, pid, "may not terminate it")
			end(t, holder, true)
			if a := <-claim; a.Err != nil || a.Value[0].Result != store.Claimed {
				t.Errorf("claim that was not terminated: got %v, error %v", a.Value, a.Err)
			}
			if epoch, err := role.AcquireLeadership(ctx(t)); err != nil || epoch != r.epoch+1 {
				t.Errorf("afterwards: got epoch %d, error %v", epoch, err)
			}
		})
	}
}

// TestAcquireNeedsHeldLock: a relay frozen between Lock and AcquireLeadership
// does not depose its successor when it resumes.
func TestAcquireNeedsHeldLock(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		newRig(t, url, flowTable, 0, flowBox)
		frozen, successor := locker(t, url, "frozen"), locker(t, url, "successor")
		lost := takeLock(t, frozen)
		servers.Exec(t, url, "SELECT pg_terminate_backend(pid, 10000) "+leaderSessions)
		held := takeLock(t, successor)
		epoch, err := successor.AcquireLeadership(ctx(t))
		if err != nil {
			t.Fatal(err)
		}
		if woken, err := frozen.AcquireLeadership(ctx(t)); !errors.Is(err, store.ErrNotLeader) || postgres.Unreachable(err) {
			t.Errorf("got epoch %d, error %v", woken, err)
		}
		if err := successor.SaveCheckpoint(ctx(t), epoch, store.Checkpoint{Position: "0/10"}); err != nil {
			t.Error(err)
		}
		lost.Release()
		held.Release()
		again := takeLock(t, frozen)
		if next, err := frozen.AcquireLeadership(ctx(t)); err != nil || next <= epoch {
			t.Errorf("with the lock again: got epoch %d, error %v", next, err)
		}
		again.Release()
	})
}

// TestCommitsWait changes synchronous_standby_names of a running server. The store sees the
// change, also while a commit of its own waits for a standby that is missing.
func TestCommitsWait(t *testing.T) {
	t.Parallel()
	for _, version := range servers.Spread(t, servers.Versions()) {
		t.Run(fmt.Sprintf("pg%d", version), func(t *testing.T) {
			t.Parallel()
			server := servers.Start(t, version, nil)
			r := newRig(t, server.URL, flowTable, 0, flowBox)
			rigs.AwaitCommitsWait(t, r.store, "")
			set := func(names string) {
				servers.Exec(t, server.URL, "ALTER SYSTEM SET synchronous_standby_names = '"+names+"'", "SELECT pg_reload_conf()")
			}
			set("FIRST 1 (s1, s2)")
			const want = "synchronous_standby_names = 'FIRST 1 (s1, s2)'"
			rigs.AwaitCommitsWait(t, r.store, want)
			rigs.CheckCommitsWait(t, r.store, want, func() (n int) {
				return ask[int](t, r.conn, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
			}, func() { set("") })
		})
	}
}

// TestStandbysThatMatchTheRelay: a list of synchronous standbys that names every walsender gives
// advice, because the relay's stream is one of them. Named standbys give none.
func TestStandbysThatMatchTheRelay(t *testing.T) {
	t.Parallel()
	server := servers.Start(t, servers.Spread(t, servers.Versions())[0], nil)
	r := newRig(t, server.URL, flowTable, 0, flowBox)
	for names, want := range map[string]int{"": 0, "FIRST 1 (s1, s2)": 0, "*": 1, "ANY 1 (s1, *)": 1} {
		servers.Exec(t, server.URL, "ALTER SYSTEM SET synchronous_standby_names = '"+names+"'", "SELECT pg_reload_conf()")
		setting := ""
		if names != "" {
			setting = "synchronous_standby_names = '" + names + "'"
		}
		rigs.AwaitCommitsWait(t, r.store, setting)
		found, err := r.store.Diagnose(ctx(t))
		if err != nil {
			t.Fatal(err)
		}
		advice := 0
		for _, f := range found {
			if f.Subject == "standbys" {
				advice++
				if f.Grade != store.GradeAdvice || !strings.Contains(f.Text, setting+" matches the relay's stream") {
					t.Errorf("%q: %+v", names, f)
				}
			}
		}
		if advice != want {
			t.Errorf("%q: %d findings about standbys, want %d", names, advice, want)
		}
	}
}
