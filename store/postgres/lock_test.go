package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/postgres"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// locker opens a store of the relay "rig" with the holder host.
func locker(t *testing.T, url, host string) *postgres.Store {
	t.Helper()
	st, err := postgres.New(postgres.Config{URL: url, Name: "rig", Holder: host, Outboxes: []store.Outbox{flowBox}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	return st
}

func takeLock(t *testing.T, st *postgres.Store) store.Lock {
	t.Helper()
	lock, err := st.Lock(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(lock.Release)
	return lock
}

// awaitLock tries until it gets the lock.
func awaitLock(t *testing.T, st *postgres.Store) store.Lock {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(testTimeout); ; <-tick.C {
		lock, err := st.Lock(ctx(t))
		if err == nil {
			t.Cleanup(lock.Release)
			return lock
		}
		if !errors.As(err, new(*store.LockedError)) || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

const leaderSessions = "FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'sluicebox rig leader'"

// TestLockSessionEnded: a lock whose session an administrator ends is lost at once, and
// another store gets it.
func TestLockSessionEnded(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox)
		for _, asks := range []string{"watch", "ping"} {
			first := takeLock(t, r.store)
			c := ctx(t)
			lost := make(chan error, 1)
			if asks == "watch" {
				go func() { lost <- first.Watch(c) }()
			}
			r.exec(t, "SELECT pg_terminate_backend(pid, 10000) "+leaderSessions)
			if asks == "ping" {
				lost <- first.Ping(c)
			}
			if err := <-lost; err == nil || c.Err() != nil || asks == "watch" && !strings.Contains(err.Error(), "57P01") {
				t.Errorf("%s: %v, %v", asks, err, c.Err())
			}
			if err := errors.Join(first.Ping(ctx(t))); err == nil {
				t.Errorf("%s: Ping of a lost lock succeeded", asks)
			}
			second := takeLock(t, locker(t, url, ""))
			if err := second.Ping(ctx(t)); err != nil {
				t.Errorf("%s: the other store: %v", asks, err)
			}
			second.Release()
			first.Release()
		}
	})
}

// TestLockSilence: pings keep a lock. Without them the server gives it to another store,
// but not before store.MinLockLease has passed.
func TestLockSilence(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for seconds")
	}
	for _, version := range servers.Spread(t, servers.Versions()) {
		t.Run(fmt.Sprintf("pg%d", version), func(t *testing.T) {
			t.Parallel()
			url := servers.Database(t, version)
			first, second := locker(t, url, "first"), locker(t, url, "second")
			held := takeLock(t, first)
			for began := time.Now(); time.Since(began) < store.MinLockLease+time.Second; {
				watch, end := context.WithTimeout(ctx(t), 500*time.Millisecond)
				err := errors.Join(held.Watch(watch), held.Ping(ctx(t)))
				end()
				if err != nil {
					t.Fatalf("after %s: %v", time.Since(began), err)
				}
				if _, err := second.Lock(ctx(t)); !errors.As(err, new(*store.LockedError)) {
					t.Fatalf("while it is pinged: %v", err)
				}
			}
			pinged := time.Now()
			if err := held.Ping(ctx(t)); err != nil {
				t.Fatal(err)
			}
			awaitLock(t, second)
			if silence := time.Since(pinged); silence < store.MinLockLease {
				t.Errorf("the lock was lost after %s", silence)
			}
			if err := held.Watch(ctx(t)); err == nil || !strings.Contains(err.Error(), "57P05") { // idle_session_timeout
				t.Errorf("silent holder: got error %v", err)
			}
		})
	}
}

// TestLockCandidate: attempts share a session, and a session that ended between two
// attempts is replaced without an error.
func TestLockCandidate(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox)
		takeLock(t, r.store)
		const last = "SELECT pid " + leaderSessions + " ORDER BY backend_start DESC LIMIT 1"
		rival, before := locker(t, url, "rival"), 0
		for i := range 6 {
			if _, err := rival.Lock(ctx(t)); !errors.As(err, new(*store.LockedError)) {
				t.Fatal(err)
			}
			pid := ask[int](t, r.conn, last)
			if i%3 != 0 && pid != before {
				t.Errorf("attempt %d used session %d, the previous one session %d", i, pid, before)
			}
			if before = pid; i%3 == 2 {
				r.exec(t, "SELECT pg_terminate_backend($1, 10000)", pid)
			}
		}
	})
}

// TestLockReleasedMeanwhile: a release ends the call in progress, and when it returns the
// lock is free.
func TestLockReleasedMeanwhile(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		stores := []*postgres.Store{locker(t, url, "first"), locker(t, url, "second")}
		for i := range 20 {
			held := takeLock(t, stores[i%2])
			ended := make(chan error, 1)
			begun := make(chan struct{})
			c := ctx(t)
			go func() {
				close(begun)
				if i%4 < 2 {
					ended <- held.Watch(c)
					return
				}
				var err error
				for err == nil {
					err = held.Ping(c)
				}
				ended <- err
			}()
			<-begun
			held.Release()
			if err := <-ended; err == nil || c.Err() != nil {
				t.Errorf("round %d: %v, %v", i, err, c.Err())
			}
		}
		// Closing the store ends it too.
		held := takeLock(t, stores[0])
		c := ctx(t)
		ended := make(chan error, 1)
		go func() { ended <- held.Watch(c) }()
		stores[0].Close()
		if err := <-ended; err == nil || c.Err() != nil {
			t.Errorf("watch of a closed store's lock: got error %v, context error %v", err, c.Err())
		}
		takeLock(t, stores[1])
	})
}

// TestLockTLS: a watch ended by its context leaves a TLS session usable.
func TestLockTLS(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a server")
	}
	srv := servers.Start(t, 15, nil)
	ca := srv.TLS()
	held := takeLock(t, locker(t, strings.Replace(srv.URL, "sslmode=disable", "sslmode=verify-full&sslrootcert="+url.QueryEscape(ca), 1), ""))
	for i := range 20 {
		watch, end := context.WithTimeout(ctx(t), time.Duration(i)*time.Millisecond)
		if err := errors.Join(held.Watch(watch), held.Ping(ctx(t))); err != nil {
			t.Errorf("round %d: %v", i, err)
		}
		end()
	}
	crashed := make(chan error, 1)
	c := ctx(t)
	go func() { crashed <- held.Watch(c) }()
	srv.Stop("immediate")
	if err := <-crashed; err == nil || !postgres.Unreachable(err) {
		t.Errorf("the server crashed: %v", err)
	}
}

// TestLockInRecovery: a standby grants no lock until it is promoted.
func TestLockInRecovery(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts servers")
	}
	for _, version := range servers.Spread(t, servers.Versions()) {
		t.Run(fmt.Sprintf("pg%d", version), func(t *testing.T) {
			t.Parallel()
			srv := servers.Start(t, version, nil)
			srv.Stop("fast")
			if err := os.WriteFile(filepath.Join(srv.Dir, "standby.signal"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			srv.Restart(nil)
			st := locker(t, srv.URL, "")
			for range 2 {
				if _, err := st.Lock(ctx(t)); err == nil || !postgres.Unreachable(err) || !strings.Contains(err.Error(), "recovery") {
					t.Errorf("standby: got error %v", err)
				}
			}
			if !ask[bool](t, servers.Connect(t, srv.URL), "SELECT pg_promote()") {
				t.Fatal("the standby was not promoted")
			}
			held := takeLock(t, st)
			if err := held.Ping(ctx(t)); err != nil {
				t.Error(err)
			}
		})
	}
}
