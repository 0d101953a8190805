package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/capture/postgres"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

const testTimeout = 40 * time.Second

// quickTimeout bounds operations that take a second on an idle machine. It is less than
// the 10 s for which the source waits for a slot in use.
const quickTimeout = 8 * time.Second

// running is a source that runs, for tests of single batches.
type running struct {
	t    *testing.T
	src  *postgres.Source
	o    capture.OpenResult
	out  chan capture.Batch
	stop context.CancelFunc
	done chan error
}

func run(t *testing.T, d *database, cfg postgres.Config, at store.Checkpoint) *running {
	t.Helper()
	r := &running{t: t, src: newSource(t, cfg), out: make(chan capture.Batch), done: make(chan error, 1)}
	o, err := r.src.Open(t.Context(), at, d.tables())
	if err != nil {
		r.src.Close()
		t.Fatal(err)
	}
	if o.View != nil {
		o.View.Close()
	}
	r.o = o
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	go func() { r.done <- r.src.Run(ctx, capture.Span{From: o.From}, r.out) }()
	t.Cleanup(r.close)
	return r
}

func (r *running) close() {
	if r.stop == nil {
		return
	}
	r.stop()
	r.stop = nil
	if err := <-r.done; err == nil {
		r.t.Error("a run without an end ended with nil")
	}
	r.src.Close()
}

// next returns the next batch with rows.
func (r *running) next() capture.Batch {
	r.t.Helper()
	timeout := time.After(testTimeout)
	for {
		select {
		case b := <-r.out:
			if len(b.Items) > 0 {
				return b
			}
		case err := <-r.done:
			r.done <- err
			r.t.Fatalf("the run ended: %v", err)
		case <-timeout:
			r.t.Fatal("no batch arrived")
		}
	}
}

// runError returns the error that ends the run.
func (r *running) runError() error {
	r.t.Helper()
	timeout := time.After(testTimeout)
	for {
		select {
		case <-r.out:
		case err := <-r.done:
			r.done <- err
			return err
		case <-timeout:
			r.t.Fatal("the run has not ended")
		}
	}
}

func insert(id string) string {
	return fmt.Sprintf("INSERT INTO outbox_events (id, message_group, payload) VALUES ('%s', 'g', 'p')", id)
}

// openErr opens a source and expects an error.
func openErr(t *testing.T, d *database, cfg postgres.Config, at store.Checkpoint) error {
	t.Helper()
	src := newSource(t, cfg)
	defer src.Close()
	o, err := src.Open(t.Context(), at, d.tables())
	if err == nil {
		if o.View != nil {
			o.View.Close()
		}
		t.Fatal("Open succeeded, want an error")
	}
	return err
}

func expectText(t *testing.T, err error, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error lacks %q:\n%v", part, err)
		}
	}
}

func TestServerNotReady(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		srv := servers.Start(t, version, map[string]string{"wal_level": "replica", "max_replication_slots": "0"})
		servers.Exec(t, srv.URL, "CREATE ROLE app LOGIN", "GRANT CREATE ON SCHEMA public TO app")
		d := newDatabase(t, srv.URL)
		cfg := d.config()
		cfg.StreamURL = strings.Replace(srv.URL, "postgres@", "app@", 1)
		cfg.MayCreate = false
		err := openErr(t, d, cfg, store.Checkpoint{})
		var no *capture.NoStreamError
		if !errors.As(err, &no) {
			t.Fatalf("got %v, want a *capture.NoStreamError", err)
		}
		expectText(t, err, "ALTER SYSTEM SET wal_level = logical;", "restart", `ALTER ROLE "app" REPLICATION;`, "rds_replication",
			"max_replication_slots", `CREATE PUBLICATION "`+d.name+`" FOR TABLE "public"."outbox_events" WITH (publish = 'insert', publish_via_partition_root = true);`)
		src := newSource(t, cfg)
		defer src.Close()
		if ready := src.Ready(t.Context()); ready == nil || ready.Error() != err.Error() {
			t.Errorf("got Open error\n%v\nand Ready error\n%v", err, ready)
		}
	})
}

// TestReady: Ready creates nothing, and returns even if the server hangs.
func TestReady(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		d := privateDatabase(t, servers.Start(t, version, map[string]string{"max_replication_slots": "1"}))
		src := newSource(t, d.config())
		defer src.Close()
		if err := src.Ready(t.Context()); err != nil {
			t.Errorf("Ready failed although Open could create everything: %v", err)
		}
		expectNoSlot(t, d)
		conn := servers.Connect(t, d.url)
		var publications int
		if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_publication").Scan(&publications); err != nil || publications > 0 {
			t.Errorf("Ready created %d publications, error %v", publications, err)
		}
		if _, err := conn.Exec(t.Context(), "SELECT pg_create_physical_replication_slot('other')"); err != nil {
			t.Fatal(err)
		}
		var no *capture.NoStreamError
		if err := src.Ready(t.Context()); !errors.As(err, &no) || !strings.Contains(err.Error(), "all 1 replication slots are taken") {
			t.Errorf("no slot is free: %v", err)
		}
		if _, err := conn.Exec(t.Context(), "BEGIN; LOCK TABLE pg_publication IN ACCESS EXCLUSIVE MODE", pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := src.Ready(t.Context()); !errors.Is(err, context.DeadlineExceeded) || errors.As(err, &no) {
			t.Errorf("the server hangs: %v", err)
		}
		if took := time.Since(began); took > quickTimeout {
			t.Errorf("Ready took %s", took)
		}
	})
}

func TestTablesNotReady(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		d := newDatabase(t, servers.Database(t, version))
		servers.Exec(t, d.url, "CREATE UNLOGGED TABLE fast (LIKE outbox_events)", "CREATE VIEW seen AS TABLE outbox_events")
		cfg := d.config()
		for _, table := range []string{"absent", "fast", "seen"} {
			cfg.Outboxes = append(cfg.Outboxes, store.Outbox{Name: table, Table: table, Layout: store.FlowCatalyst(), Kind: "EVENT"})
		}
		err := openErr(t, d, cfg, store.Checkpoint{})
		var setup *store.SetupError
		var no *capture.NoStreamError
		if !errors.As(err, &setup) || errors.As(err, &no) {
			t.Errorf("got %T, want an error that also prevents polling", err)
		}
		expectText(t, err, `table "absent" does not exist`, `ALTER TABLE "fast" SET LOGGED;`, `"seen" is not a table`)
	})
}

func TestPublication(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		d := newDatabase(t, servers.Database(t, version))
		t.Run("not the owner", func(t *testing.T) {
			role := d.name + "_app"
			servers.Exec(t, d.url, fmt.Sprintf("CREATE ROLE %s LOGIN REPLICATION", role), "GRANT SELECT ON outbox_events TO "+role)
			t.Cleanup(func() {
				conn, err := pgx.Connect(context.Background(), d.url)
				if err != nil {
					t.Error(err)
					return
				}
				_, err = conn.Exec(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role)
				if err := errors.Join(err, conn.Close(context.Background())); err != nil {
					t.Error(err)
				}
			})
			cfg := d.config()
			cfg.URL = strings.Replace(d.url, "postgres@", role+"@", 1)
			expectText(t, openErr(t, d, cfg, store.Checkpoint{}), "does not exist", "run `CREATE PUBLICATION")
		})
		t.Run("wrong options", func(t *testing.T) {
			servers.Exec(t, d.url, "CREATE PUBLICATION "+d.name+" FOR TABLE outbox_events WHERE (retry_count = 0)")
			err := openErr(t, d, d.config(), store.Checkpoint{})
			expectText(t, err, fmt.Sprintf(`ALTER PUBLICATION "%s" SET (publish = 'insert', publish_via_partition_root = true);`, d.name),
				"filters the rows", fmt.Sprintf(`ALTER PUBLICATION "%s" DROP TABLE "public"."outbox_events";`, d.name))
			servers.Exec(t, d.url, "DROP PUBLICATION "+d.name)
		})
		t.Run("a table is added", func(t *testing.T) {
			servers.Exec(t, d.url, "CREATE PUBLICATION "+d.name+" FOR TABLE unrelated WITH (publish = 'insert')")
			r := run(t, d, d.config(), store.Checkpoint{})
			servers.Exec(t, d.url, insert("a"), "INSERT INTO unrelated VALUES (1)", insert("b"))
			if a, b := r.next(), r.next(); a.Items[0].ID != "a" || b.Items[0].ID != "b" {
				t.Errorf("rows %+v and %+v", a, b)
			}
		})
	})
}

// TestLostLog: a lost log is detected when the source opens and while it runs; a snapshot
// fixes it.
func TestLostLog(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		drop := func(d *database) string {
			return fmt.Sprintf("SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = '%[1]s' AND active; SELECT pg_drop_replication_slot('%[1]s')", d.name)
		}
		for name, c := range map[string]struct {
			lose func(t *testing.T, d *database)
			why  string
		}{
			"slot dropped": {func(t *testing.T, d *database) { servers.Exec(t, d.url, drop(d)) }, "is gone"},
			"publication dropped": {func(t *testing.T, d *database) {
				servers.Exec(t, d.url, "DROP PUBLICATION "+d.name)
				d.Disconnect(t)
			}, "was missing a table"},
			"slot moved on": {func(t *testing.T, d *database) {
				servers.Exec(t, d.url, drop(d), insert("between"), fmt.Sprintf("SELECT pg_create_logical_replication_slot('%s', 'pgoutput')", d.name))
			}, ""},
		} {
			t.Run(name, func(t *testing.T) {
				d := newDatabase(t, servers.Database(t, version))
				r := run(t, d, d.config(), store.Checkpoint{})
				servers.Exec(t, d.url, insert("a"))
				at := store.Checkpoint{Origin: r.o.Origin, Position: r.next().Position}
				c.lose(t, d)
				if err := r.runError(); err == nil {
					t.Error("the run ended with nil")
				}
				// As Follow does.
				err := r.src.Run(t.Context(), capture.Span{From: r.o.From}, r.out)
				var lost *capture.LostError
				if !errors.As(err, &lost) {
					t.Fatalf("the next run ended with %v, want a *capture.LostError", err)
				}
				r.close()
				if c.why == "" {
					return
				}
				again := run(t, d, d.config(), at)
				if !strings.Contains(again.o.SnapshotReason, c.why) {
					t.Errorf("unexpected snapshot reason %q", again.o.SnapshotReason)
				}
				servers.Exec(t, d.url, insert("b"))
				if b := again.next(); b.Items[0].ID != "b" {
					t.Errorf("row %s", b.Items[0].ID)
				}
			})
		}
	})
}

func TestInvalidatedSlot(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		srv := servers.Start(t, version, map[string]string{"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"})
		d := newDatabase(t, srv.URL)
		r := run(t, d, d.config(), store.Checkpoint{})
		at := store.Checkpoint{Origin: r.o.Origin, Position: r.o.From}
		r.close()
		for range 4 {
			servers.Exec(t, d.url, "INSERT INTO unrelated VALUES (1)", "SELECT pg_switch_wal()")
		}
		servers.Exec(t, d.url, "CHECKPOINT")
		again := run(t, d, d.config(), at)
		if !strings.Contains(again.o.SnapshotReason, "has lost its WAL") {
			t.Errorf("unexpected snapshot reason %q", again.o.SnapshotReason)
		}
	})
}

func TestSlotHeld(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		d := newDatabase(t, servers.Database(t, version))
		r := run(t, d, d.config(), store.Checkpoint{})
		servers.Exec(t, d.url, insert("a"))
		r.next()
		t.Run("another relay", func(t *testing.T) {
			err := openErr(t, d, d.config(), store.Checkpoint{})
			var no *capture.NoStreamError
			if errors.As(err, &no) {
				t.Error("unexpected *capture.NoStreamError while another relay may run")
			}
			expectText(t, err, "is held by another session: pid", `application "sluicebox `+d.name+` stream"`, "127.0.0.1", "another relay of this name runs")
		})
		t.Run("taken over", func(t *testing.T) {
			cfg := d.config()
			cfg.TakeOver = true
			began := time.Now()
			second := run(t, d, cfg, store.Checkpoint{Origin: r.o.Origin, Position: r.o.From})
			if took := time.Since(began); took > quickTimeout {
				t.Errorf("it took %s", took)
			}
			if b := second.next(); b.Items[0].ID != "a" {
				t.Errorf("row %s", b.Items[0].ID)
			}
			if err := r.runError(); err == nil {
				t.Error("the first run did not end")
			}
		})
	})
}

func TestDiscard(t *testing.T) {
	d := newDatabase(t, servers.Database(t, servers.Versions()[0]))
	src := newSource(t, d.config())
	defer src.Close()
	o := capturetest.OpenWithoutCheckpoint(t, src, d.tables())
	if err := o.Discard(t.Context()); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := servers.Connect(t, d.url).QueryRow(t.Context(), "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1", d.name).Scan(&n); err != nil || n != 0 {
		t.Errorf("%d slots are left, %v", n, err)
	}
}

func TestDDL(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		d := newDatabase(t, servers.Database(t, version))
		r := run(t, d, d.config(), store.Checkpoint{})
		servers.Exec(t, d.url, insert("a"), "ALTER TABLE outbox_events ADD COLUMN extra int DEFAULT 3, DROP COLUMN error_message", insert("b"),
			"ALTER TABLE outbox_events RENAME TO renamed", "INSERT INTO renamed (id, payload) VALUES ('c', 'p')", "TRUNCATE renamed")
		for _, want := range []string{"a", "b", "c"} {
			if b := r.next(); b.Items[0].ID != want {
				t.Errorf("row %s, want %s", b.Items[0].ID, want)
			}
		}
		servers.Exec(t, d.url, "ALTER TABLE renamed RENAME COLUMN payload TO body", "INSERT INTO renamed (id, body) VALUES ('d', 'p')")
		err := r.runError()
		var setup *store.SetupError
		if !errors.As(err, &setup) {
			t.Fatalf("the run ended with %v", err)
		}
		expectText(t, err, `outbox shop: the WAL has table public.renamed without column "payload"`)
	})
}

func TestTypes(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		d := newDatabase(t, servers.Database(t, version))
		servers.Exec(t, d.url, "CREATE DOMAIN blob AS bytea", "DROP TABLE outbox_events",
			"CREATE TABLE outbox_events (payload blob, id char(5), message_group varchar, status text, retry_count smallint, created_at timestamptz, processed_at timestamptz, error_message text) PARTITION BY HASH (id)",
			"CREATE TABLE part_0 PARTITION OF outbox_events FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
			"ALTER DATABASE "+d.url[strings.LastIndex(d.url, "/")+1:strings.LastIndex(d.url, "?")]+" SET bytea_output = 'escape'")
		r := run(t, d, d.config(), store.Checkpoint{})
		servers.Exec(t, d.url, "CREATE TABLE part_1 PARTITION OF outbox_events FOR VALUES WITH (MODULUS 2, REMAINDER 1)")
		for _, id := range []string{"a", "b", "c", "d"} {
			servers.Exec(t, d.url, `INSERT INTO outbox_events (id, payload) VALUES ('`+id+`', '\x00ff5c78')`)
			it := r.next().Items[0]
			if it.ID != id+"    " || !slices.Equal(it.Payload, []byte{0, 0xff, '\\', 'x'}) {
				t.Errorf("row %q with payload %x", it.ID, it.Payload)
			}
		}
	})
}

// TestHeartbeat: on a database without writes only the heartbeat advances the position.
func TestHeartbeat(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		srv := servers.Start(t, version, nil)
		d := newDatabase(t, srv.URL)
		cfg := d.config()
		cfg.HeartbeatInterval = 200 * time.Millisecond
		r := run(t, d, cfg, store.Checkpoint{})
		last := r.o.From
		for range 4 {
			select {
			case b := <-r.out:
				if len(b.Items) > 0 || r.src.Compare(b.Position, last) <= 0 {
					t.Errorf("batch %+v after %s", b, last)
				}
				last = b.Position
			case <-time.After(testTimeout):
				t.Fatal("the position does not advance")
			}
		}
	})
}

// TestAcknowledge: an acknowledgement reaches the server within a moment, and never
// exceeds the position sent.
func TestAcknowledge(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		d := newDatabase(t, servers.Database(t, version))
		r := run(t, d, d.config(), store.Checkpoint{})
		servers.Exec(t, d.url, insert("a"))
		at := r.next().Position
		servers.Exec(t, d.url, insert("b"))
		after := r.next().Position // sent, but never acknowledged
		go func() {                // the receiver, for positions without rows
			for range r.out {
			}
		}()
		defer func() { r.close(); close(r.out) }()
		r.src.Acknowledge(r.o.From)
		r.src.Acknowledge("no position")
		r.src.Acknowledge("FFFFFFFF/0") // for example, of another server
		r.src.Acknowledge(at)
		conn := servers.Connect(t, d.url)
		began := time.Now()
		for {
			var reached, ahead bool
			err := conn.QueryRow(t.Context(), `SELECT confirmed_flush_lsn >= $2::pg_lsn, confirmed_flush_lsn >= $3::pg_lsn
				FROM pg_replication_slots WHERE slot_name = $1`, d.name, string(at), string(after)).Scan(&reached, &ahead)
			if err != nil || ahead {
				t.Fatalf("the slot passed an unacknowledged row: %t, error %v", ahead, err)
			}
			if reached {
				break
			}
			if time.Since(began) > testTimeout {
				t.Fatal("the server did not receive the acknowledgement")
			}
		}
		t.Logf("acknowledgement received after %s", time.Since(began))
	})
}

func TestLatency(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		d := newDatabase(t, servers.Database(t, version))
		r := run(t, d, d.config(), store.Checkpoint{})
		conn := servers.Connect(t, d.url)
		var took []time.Duration
		for i := range 100 {
			sent := make(chan time.Time, 1)
			go func() {
				_, err := conn.Exec(context.Background(), insert(fmt.Sprint("row-", i)))
				if err != nil {
					t.Error(err)
				}
				sent <- time.Now()
			}()
			r.next()
			received := time.Now()
			took = append(took, received.Sub(<-sent))
		}
		slices.Sort(took)
		if longest := took[len(took)-1]; longest > quickTimeout {
			t.Errorf("a row was stuck for %s", longest)
		}
		t.Logf("commit to batch: p50 %s, p99 %s", took[len(took)/2], took[len(took)*99/100])
	})
}

func TestTLS(t *testing.T) {
	srv := servers.Start(t, servers.Versions()[0], nil)
	ca := srv.TLS()
	d := newDatabase(t, srv.URL)
	cfg := d.config()
	cfg.URL = strings.Replace(srv.URL, "sslmode=disable", "sslrootcert="+ca, 1)
	r := run(t, d, cfg, store.Checkpoint{})
	servers.Exec(t, d.url, insert("a"))
	b := r.next()
	r.src.Acknowledge(b.Position) // wakes a read under TLS
	servers.Exec(t, d.url, insert("b"))
	if b := r.next(); b.Items[0].ID != "b" {
		t.Errorf("row %s", b.Items[0].ID)
	}
	r.close()
	cfg.URL = strings.Replace(srv.URL, "sslmode=disable", "sslmode=verify-full", 1)
	expectText(t, openErr(t, d, cfg, store.Checkpoint{}), "certificate is not trusted")
}

func TestConfig(t *testing.T) {
	for _, name := range []string{"", "Shop", "a-b", "a'b", strings.Repeat("a", 41)} {
		_, err := postgres.New(postgres.Config{URL: "postgres://h/d", Name: name, Outboxes: outboxes("shop")})
		if err == nil || !strings.Contains(err.Error(), "[a-z0-9_]") && !strings.Contains(err.Error(), "a-z, 0-9 and _") {
			t.Errorf("name %q: %v", name, err)
		}
	}
	_, err := postgres.New(postgres.Config{URL: "postgres://h/d", Name: "n"})
	if err == nil || !strings.Contains(err.Error(), "no outbox is configured") {
		t.Errorf("no outboxes: %v", err)
	}
}

// The distance of two LSNs is in bytes. A position that is none tells nothing.
func TestDistance(t *testing.T) {
	var src postgres.Source
	for _, tt := range []struct {
		from, to store.Position
		bytes    int64
		known    bool
	}{
		{"0/FFFFFFFF", "1/10", 17, true},
		{"1/10", "0/FFFFFFFF", 0, true},
		{"", "1/10", 0, false},
		{"0/1", "mysql", 0, false},
	} {
		if bytes, known := src.Distance(tt.from, tt.to); bytes != tt.bytes || known != tt.known {
			t.Errorf("from %q to %q: got %d, %t, want %d, %t", tt.from, tt.to, bytes, known, tt.bytes, tt.known)
		}
	}
}
