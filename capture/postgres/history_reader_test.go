package postgres_test

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// count queries the database for a number.
func (d *database) count(t *testing.T, sql string, args ...any) (n int) {
	t.Helper()
	if err := servers.Connect(t, d.url).QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// historyHarness creates databases on a server of a version.
func historyHarness(version int) capturetest.HistoryHarness {
	return capturetest.HistoryHarness{
		Setup:    func(t *testing.T) capturetest.Database { return newDatabase(t, servers.Database(t, version)) },
		Parallel: true,
		Readers: func(t *testing.T, db capturetest.Database) int {
			return db.(*database).count(t, `SELECT count(*) FROM pg_replication_slots WHERE database = current_database() AND (active OR temporary)`)
		},
		Disconnect: func(t *testing.T, db capturetest.Database) {
			servers.Exec(t, db.(*database).url, "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = current_database() AND temporary")
		},
		Delete: func(t *testing.T, db capturetest.Database, ids []string) {
			servers.Exec(t, db.(*database).url, "DELETE FROM outbox_events WHERE id IN ('"+strings.Join(ids, "', '")+"')")
		},
		Shutdown: func(t *testing.T) (capturetest.Database, func() time.Duration) {
			srv := servers.Start(t, version, nil)
			return newDatabase(t, srv.URL), func() time.Duration { return srv.Stop("fast") }
		},
		Losses:    historyLosses(),
		OtherLogs: otherServers(version),
	}
}

func historyLosses() map[string]func(*testing.T, capturetest.Database, capture.StartPoint) {
	run := func(t *testing.T, db capturetest.Database, at capture.StartPoint, script string) {
		servers.Exec(t, db.(*database).url, strings.ReplaceAll(script, "@KEPT@", at.Slot))
	}
	return map[string]func(*testing.T, capturetest.Database, capture.StartPoint){
		"kept slot dropped": func(t *testing.T, db capturetest.Database, at capture.StartPoint) {
			run(t, db, at, "SELECT pg_drop_replication_slot('@KEPT@')")
		},
		"retained slot dropped and recreated": func(t *testing.T, db capturetest.Database, at capture.StartPoint) {
			run(t, db, at, "SELECT pg_drop_replication_slot('@KEPT@'); SELECT pg_create_logical_replication_slot('@KEPT@', 'pgoutput')")
		},
		"kept slot moved on": func(t *testing.T, db capturetest.Database, at capture.StartPoint) {
			run(t, db, at, "SELECT pg_replication_slot_advance('@KEPT@', pg_current_wal_lsn())")
		},
	}
}

func otherServers(version int) map[string]func(*testing.T, capturetest.Database, *capture.StartPoint) capturetest.Database {
	elsewhere := func(url func(t *testing.T) string) func(*testing.T, capturetest.Database, *capture.StartPoint) capturetest.Database {
		return func(t *testing.T, db capturetest.Database, _ *capture.StartPoint) capturetest.Database {
			other := newDatabase(t, url(t))
			other.name = db.(*database).name
			script(publish)(t, other)
			return other
		}
	}
	published := func(statements ...string) func(*testing.T, capturetest.Database, *capture.StartPoint) capturetest.Database {
		return func(t *testing.T, db capturetest.Database, _ *capture.StartPoint) capturetest.Database {
			script(statements...)(t, db)
			return db
		}
	}
	return map[string]func(*testing.T, capturetest.Database, *capture.StartPoint) capturetest.Database{
		"another database": elsewhere(func(t *testing.T) string { return servers.Database(t, version) }),
		"another server": elsewhere(func(t *testing.T) string {
			for _, other := range servers.Versions() {
				if other != version {
					return servers.Database(t, other)
				}
			}
			return servers.Start(t, version, nil).URL
		}),
		"a state of before": func(_ *testing.T, db capturetest.Database, at *capture.StartPoint) capturetest.Database {
			at.Position = "FFFF/0"
			return db
		},
		"not a position": func(_ *testing.T, db capturetest.Database, at *capture.StartPoint) capturetest.Database {
			at.Position = "1234.5"
			return db
		},
		"publication dropped":               published("DROP PUBLICATION @NAME@"),
		"publication dropped and recreated": published("DROP PUBLICATION @NAME@; " + publish),
		"table removed and added back":      published("ALTER PUBLICATION @NAME@ DROP TABLE outbox_events; ALTER PUBLICATION @NAME@ ADD TABLE outbox_events"),
		"table replaced":                    published(swapTable),
	}
}

func TestHistoryReader(t *testing.T) {
	t.Parallel()
	oneVersion(t, func(t *testing.T, version int) {
		h := historyHarness(version)
		capturetest.RunHistory(t, h)
		capturetest.RunHistoryLost(t, h)
		t.Run("odd names", func(t *testing.T) {
			h := historyHarness(version)
			h.Setup = func(t *testing.T) capturetest.Database {
				return newDatabaseOf(t, servers.Database(t, version), createOdd(), oddNames)
			}
			h.Delete = func(t *testing.T, db capturetest.Database, ids []string) {
				servers.Exec(t, db.(*database).url, fmt.Sprintf(`DELETE FROM "The Shop"."Out ""Box""" WHERE "Order" IN ('%s')`, strings.Join(ids, "', '")))
			}
			capturetest.RunHistoryLayout(t, h)
		})
	})
}

// TestHistoryReaderKilled: a reader whose process is killed closes nothing. The server
// drops its slot, and the next reader gets the same rows.
func TestHistoryReaderKilled(t *testing.T) {
	t.Parallel()
	oneVersion(t, func(t *testing.T, version int) {
		d := newDatabase(t, servers.Database(t, version))
		f := follow(t, d, d.config(), store.Checkpoint{})
		at := retainAt(t, d, f, "one")
		servers.Exec(t, d.url, insert("a"), insert("b"))
		f.next()
		until := f.next().Position
		place, err := pgx.ParseConfig(d.url)
		if err != nil {
			t.Fatal(err)
		}
		server := net.JoinHostPort(place.Host, strconv.Itoa(int(place.Port)))
		way := newSwitchProxy(t, server)
		cfg := d.config()
		cfg.URL = strings.Replace(cfg.URL, server, way.l.Addr().String(), 1)
		src := newSource(t, cfg)
		defer src.Close()
		out, done := make(chan capture.Batch), make(chan error, 1)
		go func() { done <- src.ReadRange(t.Context(), at, until, out) }()
		<-out
		const readers = "FROM pg_replication_slots WHERE temporary AND database = current_database()"
		if n := d.count(t, "SELECT count(*) "+readers); n != 1 {
			t.Errorf("got %d slots for one reader", n)
		}
		way.switchTo("")
		await(t, d.url, "SELECT count(*) = 0 "+readers)
		for ended := false; !ended; {
			select {
			case <-out:
			case err := <-done:
				ended = true
				if err != nil && capture.IsFinal(err) {
					t.Errorf("its connection was lost, and it ended with %v", err)
				}
			}
		}
		ids, err := readAgain(t, d, at, until, nil)
		if err != nil || strings.Join(ids, " ") != "a b" {
			t.Errorf("got rows %q, error %v", ids, err)
		}
	})
}
