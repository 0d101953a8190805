package postgres_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/capture/postgres"
	"github.com/sluicebox/sluicebox/store"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
	"github.com/sluicebox/sluicebox/store/storetest"
	"github.com/sluicebox/sluicebox/store/storetest/ddl"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

const createTable = `CREATE TABLE outbox_events (
	id text PRIMARY KEY, message_group text, payload text, status text NOT NULL DEFAULT 'PENDING',
	retry_count int NOT NULL DEFAULT 0, created_at timestamptz NOT NULL DEFAULT now(),
	processed_at timestamptz, error_message text)`

func outboxes(name string) []store.Outbox {
	return []store.Outbox{{Name: name, Table: "outbox_events", Layout: store.FlowCatalyst(), Kind: "EVENT"}}
}

// createOdd creates the table in a schema whose name needs quoting too.
func createOdd() string {
	return `CREATE SCHEMA "The Shop"; ` + strings.Replace(ddl.Postgres().Quoted(), "CREATE TABLE ", `CREATE TABLE "The Shop".`, 1)
}

func oddNames(name string) []store.Outbox {
	o := capturetest.QuotedNames(name)
	o.Schema = "The Shop"
	return []store.Outbox{o}
}

// database is one database for a test.
type database struct {
	url      string
	role     string    // of the sources; "" is the role of url
	private  bool      // no other test uses the server
	watched  bool      // sources check their publication several times a second
	old      *pgx.Conn // holds a transaction open, in some tests
	name     string    // of the relay
	views    *pgstore.Store
	outboxes func(name string) []store.Outbox
}

func newDatabase(t *testing.T, url string) *database {
	return newDatabaseOf(t, url, createTable, outboxes)
}

func newDatabaseOf(t *testing.T, url, ddl string, outboxes func(name string) []store.Outbox) *database {
	servers.Exec(t, url, ddl, "CREATE TABLE unrelated (n int)")
	d := &database{url: url, name: "t" + strconv.FormatInt(time.Now().UnixNano(), 36), outboxes: outboxes}
	views, err := pgstore.New(pgstore.Config{URL: url, Name: d.name, Outboxes: outboxes("shop")})
	if err != nil {
		t.Fatal(err)
	}
	d.views = views
	t.Cleanup(views.Close)
	return d
}

func (d *database) config() postgres.Config {
	timeout := 3 * time.Minute // other tests use the server too, and every transaction on it counts
	if d.private {
		timeout = 0
	}
	heartbeat := time.Duration(-1)
	if d.watched {
		heartbeat = 250 * time.Millisecond // a check runs with each
	}
	return postgres.Config{SlotTimeout: timeout, URL: d.urlOf(d.role), Name: d.name, Outboxes: d.outboxes("shop"), MayCreate: true, HeartbeatInterval: heartbeat}
}

func watched(d *database) *database {
	d.watched = true
	return d
}

func (d *database) Source(t *testing.T, o capturetest.Options) capturetest.Source {
	cfg := d.config()
	cfg.Outboxes = d.outboxes(o.Outbox)
	cfg.MaxBatchRows = o.BatchRows
	return newSource(t, cfg)
}

func newSource(t *testing.T, cfg postgres.Config) *postgres.Source {
	t.Helper()
	src, err := postgres.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return src
}

// urlOf returns the database's URL for a role.
func (d *database) urlOf(role string) string {
	if role == "" {
		return d.url
	}
	return strings.Replace(d.url, "postgres@", role+"@", 1)
}

// newRole creates a role for the duration of the test, and returns its name.
func (d *database) newRole(t *testing.T, suffix, options string) string {
	role := d.name + "_" + suffix
	servers.Exec(t, d.url, "CREATE ROLE "+role+" LOGIN "+options)
	t.Cleanup(func() {
		servers.Exec(t, d.url, "REASSIGN OWNED BY "+role+" TO postgres", "DROP OWNED BY "+role, "DROP ROLE "+role)
	})
	return role
}

func (d *database) tables() *capturetest.Tables { return &capturetest.Tables{Viewer: d.views} }

func (d *database) Viewer(*testing.T) store.Viewer { return d.views }

func (d *database) Begin(t *testing.T, rows ...capturetest.Row) func(commit bool) {
	t.Helper()
	tx, end := servers.Begin(t, d.url)
	if tx == nil {
		return end
	}
	batch := &pgx.Batch{}
	box := &d.outboxes("shop")[0]
	c := box.Layout.Columns
	insert := fmt.Sprintf("INSERT INTO %s (%s, %s, %s) VALUES ($1, $2, $3)",
		pgstore.TableName(box), pgstore.Ident(c.ID), pgstore.Ident(c.Group), pgstore.Ident(c.Payload))
	for _, r := range rows {
		batch.Queue(insert, r.ID, storetest.GroupText(&box.Layout, r.Group), r.Payload)
	}
	if err := tx.SendBatch(context.Background(), batch).Close(); err != nil {
		t.Error(err)
	}
	return end
}

func (d *database) Unrelated(t *testing.T) {
	t.Helper()
	servers.Exec(t, d.url, "INSERT INTO unrelated VALUES (1)")
}

func (d *database) Disconnect(t *testing.T) {
	t.Helper()
	servers.Exec(t, d.url, fmt.Sprintf(
		"SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = '%s' AND active", d.name))
}

// inTurn runs a test on each version of the server, one after the other.
func inTurn(t *testing.T, versions []int, test func(t *testing.T, version int)) {
	t.Helper()
	for _, version := range versions {
		t.Run("PostgreSQL "+strconv.Itoa(version), func(t *testing.T) { test(t, version) })
	}
}

// aVersion runs a test on one version, which its name chooses, or on those of SLUICEBOX_TEST_VERSIONS.
// The suite runs on each.
func aVersion(t *testing.T, test func(t *testing.T, version int)) {
	t.Helper()
	t.Parallel()
	inTurn(t, servers.Spread(t, servers.Versions()), func(t *testing.T, version int) {
		t.Parallel()
		test(t, version)
	})
}

// oneVersion is for behaviour that does not differ between versions.
func oneVersion(t *testing.T, test func(t *testing.T, version int)) {
	t.Helper()
	inTurn(t, servers.Spread(t, servers.Versions()), test)
}

// TestSuiteAlone runs the part of the suite that checks for leaked goroutines.
func TestSuiteAlone(t *testing.T) {
	inTurn(t, servers.Versions(), func(t *testing.T, version int) {
		capturetest.RunIsolated(t, capturetest.Harness{Setup: func(t *testing.T) capturetest.Database {
			return newDatabase(t, servers.Database(t, version))
		}})
	})
}

func TestSuite(t *testing.T) {
	t.Parallel()
	inTurn(t, servers.Versions(), func(t *testing.T, version int) {
		t.Parallel() // a test mostly waits
		capturetest.Run(t, capturetest.Harness{
			Log: true,
			Setup: func(t *testing.T) capturetest.Database {
				return newDatabase(t, servers.Database(t, version))
			},
			Isolated: func(t *testing.T) capturetest.Database {
				return privateDatabase(t, servers.Start(t, version, nil))
			},
			LogBytes: func(rows []capturetest.Row) (bytes int64) {
				for _, r := range rows {
					bytes += int64(len(r.ID) + len(r.Group.Name) + len(r.Payload) + 200)
				}
				return bytes
			},
			ShortTimeout: func(t *testing.T) capturetest.Database {
				return newDatabase(t, servers.Start(t, version, map[string]string{"wal_sender_timeout": "2s"}).URL)
			},
			Shutdown: func(t *testing.T) (capturetest.Database, func() time.Duration) {
				srv := servers.Start(t, version, nil)
				return newDatabase(t, srv.URL), func() time.Duration { return srv.Stop("fast") }
			},
		})
		t.Run("odd names", func(t *testing.T) {
			capturetest.RunLayout(t, capturetest.Harness{Log: true, Setup: func(t *testing.T) capturetest.Database {
				return newDatabaseOf(t, servers.Database(t, version), createOdd(), oddNames)
			}})
		})
	})
}

// TestSuiteLost runs beside TestSuite, because both mostly wait.
func TestSuiteLost(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		capturetest.RunLost(t, capturetest.Harness{Losses: losses(), Faults: faults(), Setup: func(t *testing.T) capturetest.Database {
			return watched(newDatabase(t, servers.Database(t, version)))
		}})
	})
}

func TestSuiteFaults(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		capturetest.RunLost(t, capturetest.Harness{Faults: faultsOfRole(), Setup: func(t *testing.T) capturetest.Database {
			d := watched(newDatabase(t, servers.Database(t, version)))
			d.role = d.newRole(t, "app", "REPLICATION")
			script(publish, "GRANT SELECT ON outbox_events TO "+d.role)(t, d)
			return d
		}})
		capturetest.RunLost(t, capturetest.Harness{Faults: faultsOfServer(), Setup: func(t *testing.T) capturetest.Database {
			return privateDatabase(t, servers.Start(t, version, nil))
		}})
	})
}
