package mysql_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestLongPause checks that a receiver that pauses for longer than the connection is kept
// loses nothing, and that Follow sees no lost connection.
func TestLongPause(t *testing.T) {
	eachFlavour(t, func(t *testing.T, f servers.Flavour) {
		d := newDatabase(t, f, f.Start(t, map[string]string{"net-write-timeout": "1"}).Database())
		cfg := d.config()
		cfg.MaxBatchRows = 10
		fo, _, _ := follow(t, d, cfg, store.Checkpoint{})
		var want []string
		for i := range 40 {
			var rows []capturetest.Row
			for j := range 25 {
				id := fmt.Sprintf("%02d-%02d", i, j)
				rows = append(rows, capturetest.Row{ID: id, Payload: strings.Repeat("x", 20<<10)})
				want = append(want, id)
			}
			d.Begin(t, rows...)(true)
		}

		fo.Rows(15)
		<-time.After(13 * time.Second) // the pause itself
		fo.Rows(len(want))
		fo.Expect(want...)
		fo.End()
		if len(fo.Disconnects()) > 0 {
			t.Errorf("the pause cost the connection: %v", fo.Disconnects())
		}
	})
}

// TestSilentServer checks that a silent server counts as a lost connection.
func TestSilentServer(t *testing.T) {
	eachFlavour(t, func(t *testing.T, f servers.Flavour) {
		srv := f.Start(t, nil)
		d := newDatabase(t, f, srv.Database())
		src := newSource(t, d.config())
		defer src.Close()
		o := capturetest.OpenWithoutCheckpoint(t, src, d.tables())
		d.exec(t, insert("first"))
		out, done := make(chan capture.Batch), make(chan error, 1)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go func() { done <- src.Run(ctx, capture.Span{From: o.From}, out) }()
		<-out
		srv.Signal(syscall.SIGSTOP)
		defer srv.Signal(syscall.SIGCONT)
		began := time.Now()

		for {
			select {
			case <-out:
			case err := <-done:
				t.Logf("after %s: %v", time.Since(began), err)
				if err == nil || errors.Is(err, context.Canceled) {
					t.Errorf("the run ended with %v", err)
				}
				return
			case <-time.After(40 * time.Second):
				t.Error("a silent server was not noticed")
				cancel()
				drain(done)
				return
			}
		}
	})
}

// TestUnreadStream checks that an open stream without a reader does not prevent
// the relay's next stream from starting.
func TestUnreadStream(t *testing.T) {
	eachFlavour(t, func(t *testing.T, f servers.Flavour) {
		d := newDatabase(t, f, f.Start(t, nil).Database()) // the shared server's binlog has no room for that much
		way := servers.NewProxy(t, d.stream)
		cut := d.config()
		cut.StreamURL = way.URL(d.stream)
		first, _, o := follow(t, d, cut, store.Checkpoint{})
		d.exec(t, "CREATE TABLE large (payload longblob)", insert("one"))
		first.Rows(1)
		way.Disconnect()

		for range 40 { // more than the buffers on the way hold
			d.exec(t, "INSERT INTO large VALUES (REPEAT('x', 1 << 20))")
		}

		d.exec(t, insert("two"))
		fo, _, _ := follow(t, d, d.config(), store.Checkpoint{Origin: o.Origin, Position: o.From})
		fo.Rows(2)
		const stuck = "SELECT COUNT(*) FROM information_schema.processlist WHERE state IN ('Writing to net', 'Sending to client') AND user = ?"
		var n int
		if err := d.db.QueryRow(stuck, d.role).Scan(&n); err != nil || n == 0 {
			t.Errorf("%d streams wait for a reader, %v", n, err)
		}
	})
}

// TestServerIDClash runs two relays with one server id. MariaDB ends the older stream,
// and both would reconnect forever; MySQL lets both read.
func TestServerIDClash(t *testing.T) {
	eachFlavour(t, func(t *testing.T, f servers.Flavour) {
		d := newDatabase(t, f, f.Database(t))
		cfg := d.config()
		cfg.ServerID = 4711
		one, _, _ := follow(t, d, cfg, store.Checkpoint{})
		two, _, _ := follow(t, d, cfg, store.Checkpoint{})
		if f == servers.MySQL {
			d.exec(t, insert("both"))
			one.Rows(1)
			two.Rows(1)
			return
		}

		var err error
		select {
		case <-one.Done():
			err = one.Err()
		case <-two.Done():
			err = two.Err()
		case <-time.After(40 * time.Second):
			one.End()
			two.End()
			t.Fatalf("no source noticed the clash: %q, %q", one.Disconnects(), two.Disconnects())
		}

		var no *capture.NoStreamError
		if !errors.As(err, &no) || !strings.Contains(no.Error(), "4711") {
			t.Errorf("one of the two ended with %v", err)
		}
		t.Log(err)
	})
}

// TestTLSAndGrants checks that the stream uses the URL's TLS settings and a role with
// minimal rights.
func TestTLSAndGrants(t *testing.T) {
	eachFlavour(t, func(t *testing.T, f servers.Flavour) {
		srv := f.Start(t, nil)
		ca := srv.TLS()
		d := newDatabase(t, f, srv.Database())
		d.exec(t, "ALTER USER '"+d.role+"'@'%' REQUIRE SSL")
		client := "REPLICATION CLIENT"
		if f == servers.MariaDB {
			client = "BINLOG MONITOR"
		}

		app := d.name + "a"
		control := d.newRole(t, app, "GRANT SELECT, INSERT, UPDATE ON "+databaseOf(t, d.url)+".* TO '"+app+"'@'%'", "GRANT "+client+" ON *.* TO '"+app+"'@'%'")
		secure := "tls-ca=" + url.QueryEscape(ca)
		cfg := d.config()
		cfg.URL, cfg.StreamURL = strings.Replace(control, "tls=false", secure, 1), strings.Replace(d.stream, "tls=false", secure, 1)
		fo, _, _ := follow(t, d, cfg, store.Checkpoint{})
		d.exec(t, insert("one"))
		fo.Rows(1)

		cfg.StreamURL = d.stream // without TLS
		src := newSource(t, cfg)
		defer src.Close()
		err := ready(t, src)
		var no *capture.NoStreamError
		if !errors.As(err, &no) {
			t.Errorf("without the TLS that the role needs: %v", err)
		}
	})
}

func databaseOf(t *testing.T, text string) string {
	t.Helper()
	at, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimPrefix(at.Path, "/")
}

// TestShutdown checks that MySQL's orderly shutdown takes no longer than with any
// replica.
func TestShutdown(t *testing.T) {
	t.Parallel()
	for _, paused := range []bool{false, true} {
		t.Run(fmt.Sprintf("paused %v", paused), func(t *testing.T) {
			t.Parallel()
			srv := servers.MySQL.Start(t, nil)
			d := newDatabase(t, servers.MySQL, srv.Database())
			fo, _, _ := follow(t, d, d.config(), store.Checkpoint{})
			d.exec(t, insert("one"))
			fo.Rows(1)
			if paused {
				for i := range 20 {
					d.Begin(t, capturetest.Row{ID: fmt.Sprint(i), Payload: strings.Repeat("x", 512<<10)})(true)
				}
			}
			// 8 s for the dump, 2 s for all sessions, and the server's own work on a busy machine.
			if took := srv.Stop("fast"); took > 30*time.Second {
				t.Errorf("the shutdown took %s", took)
			}
		})
	}
}
