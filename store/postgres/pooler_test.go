package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// startupParams returns the startup parameters of the store's sessions that pgbouncer
// does not know.
func startupParams() []string {
	var names []string
	for _, set := range []map[string]string{commonSettings(), rowSettings(""), spillSettings(), viewSettings()} {
		for name := range set {
			names = append(names, name)
		}
	}
	return names
}

func poolerStore(t *testing.T, raw string) *Store {
	t.Helper()
	s, err := New(Config{URL: raw, Name: "pooled", Outboxes: []store.Outbox{
		{Name: "events", Table: "outbox_events", Kind: "EVENT", Layout: store.FlowCatalyst()},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func poolerContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// checkPooled returns the result of checkDirect for a connection of the store's own.
func checkPooled(t *testing.T, raw string) error {
	t.Helper()
	s, ctx := poolerStore(t, raw), poolerContext(t)
	var found error
	err := s.control.do(ctx, func(ctx context.Context, sess *session) error {
		found = s.checkDirect(ctx, sess.conn)
		var one int
		if err := sess.conn.QueryRow(ctx, "SELECT 1", pgx.QueryExecModeSimpleProtocol).Scan(&one); err != nil {
			t.Errorf("connection unusable: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func eachServer(t *testing.T, test func(t *testing.T, raw string)) {
	t.Helper()
	t.Parallel()
	for _, version := range servers.Spread(t, servers.Versions()) {
		t.Run(fmt.Sprintf("pg%d", version), func(t *testing.T) {
			t.Parallel()
			test(t, servers.Database(t, version))
		})
	}
}

func expectSetup(t *testing.T, err error, parts ...string) {
	t.Helper()
	if setup := (*store.SetupError)(nil); !errors.As(err, &setup) {
		t.Fatalf("got %v, want a *store.SetupError", err)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q lacks %q", err, part)
		}
	}
}

// TestPoolerIsDetected: a transaction pooler is detected, however it chooses among its
// server sessions; a session pooler is accepted.
func TestPoolerIsDetected(t *testing.T) {
	eachServer(t, func(t *testing.T, raw string) {
		for _, mode := range []string{"transaction", "statement"} {
			t.Run(mode, func(t *testing.T) {
				err := checkPooled(t, servers.Pooler(t, raw, mode, startupParams()...))
				expectSetup(t, err, "transaction pooler", "URL of the database itself", "5432")
				if Unreachable(err) {
					t.Error("the error counts as unreachable")
				}
			})
		}
		t.Run("several sessions", func(t *testing.T) {
			through := servers.Pooler(t, raw, "transaction", startupParams()...)
			openPoolSessions(t, through, 3)
			expectSetup(t, checkPooled(t, through), "transaction pooler")
		})
		t.Run("session", func(t *testing.T) {
			if err := checkPooled(t, servers.Pooler(t, raw, "session", startupParams()...)); err != nil {
				t.Errorf("session pooler refused: %v", err)
			}
		})
	})
}

// openPoolSessions makes a pooler open n sessions, which are free when it returns.
func openPoolSessions(t *testing.T, raw string, n int) {
	t.Helper()
	ctx := poolerContext(t)
	var open []pgx.Tx
	for range n {
		tx, err := servers.Connect(t, raw+"&default_query_exec_mode=simple_protocol").Begin(ctx)
		if err == nil {
			_, err = tx.Exec(ctx, "SELECT 1")
		}
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, tx)
	}
	for _, tx := range open {
		if err := tx.Rollback(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDirectConnectionAccepted: connections without a pooler are accepted, even through a
// proxy.
func TestDirectConnectionAccepted(t *testing.T) {
	eachServer(t, func(t *testing.T, raw string) {
		if err := checkPooled(t, raw); err != nil {
			t.Errorf("direct connection refused: %v", err)
		}
		if err := checkPooled(t, throughTCP(t, raw)); err != nil {
			t.Errorf("proxy refused: %v", err)
		}
	})
}

// throughTCP returns the URL of a proxy that copies bytes.
func throughTCP(t *testing.T, raw string) string {
	t.Helper()
	at, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	to := at.Host
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
				all.Go(func() {
					_, _ = io.Copy(pair[0], pair[1])
					_ = pair[0].Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		all.Wait() // the store has ended its sessions by now
	})
	at.Host = l.Addr().String()
	return at.String()
}

// TestPoolerRefuses: a pooler that refuses the store's parameters is named, whatever its
// mode.
func TestPoolerRefuses(t *testing.T) {
	eachServer(t, func(t *testing.T, raw string) {
		for _, mode := range []string{"transaction", "session"} {
			s := poolerStore(t, servers.Pooler(t, raw, mode))
			_, err := s.AcquireLeadership(poolerContext(t))
			expectSetup(t, err, "connection pooler", "unsupported startup parameter", "URL of the database itself")
			if Unreachable(err) {
				t.Errorf("%s: the error counts as unreachable", mode)
			}
		}
	})
}
