package mysql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/capture/mysql"
	"github.com/sluicebox/sluicebox/store"
	mystore "github.com/sluicebox/sluicebox/store/mysql"
	"github.com/sluicebox/sluicebox/store/storetest"
	"github.com/sluicebox/sluicebox/store/storetest/ddl"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

const createTable = `CREATE TABLE outbox_events (
	id varchar(64) PRIMARY KEY, message_group varchar(255), payload longtext, status varchar(20) NOT NULL DEFAULT 'PENDING',
	retry_count int NOT NULL DEFAULT 0, created_at datetime(6) NOT NULL DEFAULT current_timestamp(6),
	processed_at datetime(6), error_message text) CHARACTER SET utf8mb4`

func outboxes(name string) []store.Outbox {
	return []store.Outbox{{Name: name, Table: "outbox_events", Layout: store.FlowCatalyst(), Kind: "EVENT"}}
}

func oddNames(name string) []store.Outbox { return []store.Outbox{capturetest.QuotedNames(name)} }

// database is one database for a test.
type database struct {
	flavour  servers.Flavour
	url      string
	stream   string // URL of a separate streaming role
	role     string
	name     string // the relay's name
	db       *sql.DB
	views    *mystore.Store
	outboxes func(name string) []store.Outbox
}

func newDatabase(t *testing.T, f servers.Flavour, url string) *database {
	return newDatabaseOf(t, f, url, createTable, outboxes)
}

func newDatabaseOf(t testing.TB, f servers.Flavour, url, ddl string, outboxes func(name string) []store.Outbox) *database {
	t.Helper()
	servers.ExecMySQL(t, url, ddl, "CREATE TABLE unrelated (n int)")
	d := &database{flavour: f, url: url, name: "t" + strconv.FormatInt(time.Now().UnixNano(), 36), outboxes: outboxes}
	d.db = servers.OpenMySQL(t, url)
	d.db.SetMaxIdleConns(0) // the suite looks for leaked goroutines, and an idle session has one
	d.role = d.name
	d.stream = d.newRole(t, d.role, "GRANT REPLICATION SLAVE ON *.* TO '"+d.role+"'@'%'")
	views, err := mystore.New(mystore.Config{URL: url, Name: d.name, Outboxes: outboxes("shop")})
	if err != nil {
		t.Fatal(err)
	}

	d.views = views
	t.Cleanup(views.Close)
	if err := views.Install(t.Context()); err != nil {
		t.Fatal(err)
	}

	return d
}

// newRole creates a role, drops it after the test, and returns the database's URL for it.
func (d *database) newRole(t testing.TB, role string, grants ...string) string {
	t.Helper()
	servers.ExecMySQL(t, d.url, append([]string{"CREATE USER '" + role + "'@'%' IDENTIFIED BY 'secret of " + role + "'"}, grants...)...)
	t.Cleanup(func() {
		_, _ = d.db.ExecContext(context.Background(), "DROP USER '"+role+"'@'%'") // the server may be gone
	})
	return strings.Replace(d.url, "root@", role+":secret%20of%20"+role+"@", 1)
}

func (d *database) config() mysql.Config {
	return mysql.Config{URL: d.url, StreamURL: d.stream, Name: d.name, Outboxes: d.outboxes("shop")}
}

func (d *database) Source(t *testing.T, o capturetest.Options) capturetest.Source {
	cfg := d.config()
	cfg.Outboxes = d.outboxes(o.Outbox)
	cfg.MaxBatchRows = o.BatchRows
	return newSource(t, cfg)
}

func newSource(t testing.TB, cfg mysql.Config) *mysql.Source {
	t.Helper()
	src, err := mysql.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return src
}

func (d *database) tables() *capturetest.Tables { return &capturetest.Tables{Viewer: d.views} }

func (d *database) Viewer(*testing.T) store.Viewer { return d.views }

func (d *database) Begin(t *testing.T, rows ...capturetest.Row) func(commit bool) {
	t.Helper()
	tx, err := d.db.BeginTx(context.Background(), nil)
	if err != nil {
		t.Error(err)
		return func(bool) {}
	}

	box := &d.outboxes("shop")[0]
	c := box.Layout.Columns
	insert := fmt.Sprintf("INSERT INTO %s (%s, %s, %s) VALUES ", mystore.TableName(box), mystore.Ident(c.ID), mystore.Ident(c.Group), mystore.Ident(c.Payload))
	args := make([]any, 0, 3*len(rows))
	for _, r := range rows {
		args = append(args, r.ID, storetest.GroupText(&box.Layout, r.Group), r.Payload)
	}

	_, err = tx.ExecContext(context.Background(), insert+strings.TrimSuffix(strings.Repeat("(?, ?, ?), ", len(rows)), ", "), args...)
	if err != nil {
		t.Error(err)
	}

	return func(commit bool) {
		end := tx.Rollback
		if commit {
			end = tx.Commit
		}
		if err := end(); err != nil {
			t.Error(err)
		}
	}
}

func (d *database) exec(t *testing.T, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		if _, err := d.db.ExecContext(context.WithoutCancel(t.Context()), statement); err != nil {
			t.Fatalf("%v, in: %s", err, statement)
		}
	}
}

func (d *database) Unrelated(t *testing.T) {
	t.Helper()
	d.exec(t, "INSERT INTO unrelated VALUES (1)")
}

func (d *database) Disconnect(t *testing.T) {
	t.Helper()
	list := "information_schema.processlist"
	if d.flavour == servers.MySQL {
		list = "performance_schema.processlist"
	}

	rows, err := d.db.QueryContext(t.Context(), "SELECT id, command, COALESCE(state, '') FROM "+list+" WHERE user = ?", d.role)
	if err != nil {
		t.Error(err)
		return
	}

	var ids []int
	for rows.Next() {
		var id int
		var command, state string
		err = errors.Join(err, rows.Scan(&id, &command, &state))
		t.Logf("KILL session %d: %s, %s", id, command, state)
		ids = append(ids, id)
	}

	if err := errors.Join(err, rows.Err(), rows.Close()); err != nil {
		t.Error(err)
	}
	for _, id := range ids {
		_, err := d.db.ExecContext(t.Context(), "KILL "+strconv.Itoa(id))
		if err != nil && !strings.Contains(err.Error(), "Error 1094") { // it ended by itself
			t.Errorf("KILL %d: %v", id, err)
		}
	}

	if len(ids) == 0 {
		t.Log("no stream to disconnect")
	}
}

// ready calls Ready, and repeats it if the server does not answer in time, as a server
// that has just started on a busy machine may not.
func ready(t *testing.T, src *mysql.Source) (err error) {
	t.Helper()
	for range 10 {
		if err = src.Ready(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		t.Log(err)
	}
	return err
}

// inTurn runs a test on each flavour, one after the other.
func inTurn(t *testing.T, test func(t *testing.T, f servers.Flavour)) {
	t.Helper()
	for _, f := range servers.Flavours() {
		t.Run(string(f), func(t *testing.T) { test(t, f) })
	}
}

// eachFlavour runs a test on each flavour in parallel, also with other tests, because
// most of a test is waiting.
func eachFlavour(t *testing.T, test func(t *testing.T, f servers.Flavour)) {
	t.Helper()
	t.Parallel()
	inTurn(t, func(t *testing.T, f servers.Flavour) {
		t.Parallel()
		test(t, f)
	})
}

// TestSuiteAlone runs the part of the suite that looks for leaked goroutines.
func TestSuiteAlone(t *testing.T) {
	inTurn(t, func(t *testing.T, f servers.Flavour) {
		capturetest.RunIsolated(t, capturetest.Harness{
			Setup: func(t *testing.T) capturetest.Database { return newDatabase(t, f, f.Database(t)) },
		})
	})
}

func TestSuite(t *testing.T) {
	eachFlavour(t, func(t *testing.T, f servers.Flavour) {
		var stopping func(t *testing.T) (capturetest.Database, func() time.Duration)
		if f == servers.MariaDB { // MySQL's shutdown: see TestShutdown
			stopping = func(t *testing.T) (capturetest.Database, func() time.Duration) {
				srv := f.Start(t, nil)
				return newDatabase(t, f, srv.Database()), func() time.Duration { return srv.Stop("fast") }
			}
		}

		capturetest.Run(t, capturetest.Harness{
			Log:      true,
			Setup:    func(t *testing.T) capturetest.Database { return newDatabase(t, f, f.Database(t)) },
			Isolated: func(t *testing.T) capturetest.Database { return newDatabase(t, f, f.Start(t, nil).Database()) },
			LogBytes: func(rows []capturetest.Row) (bytes int64) {
				for _, r := range rows {
					bytes += int64(len(r.ID) + len(r.Group.Name) + len(r.Payload) + 50)
				}
				if f == servers.MariaDB {
					bytes *= 2 // binlog_annotate_row_events: the statement is there too
				}
				return bytes
			},
			ShortTimeout: func(t *testing.T) capturetest.Database {
				return newDatabase(t, f, f.Start(t, map[string]string{"net-write-timeout": "2"}).Database())
			},
			Shutdown: stopping,
		})

		t.Run("odd names", func(t *testing.T) {
			capturetest.RunLayout(t, capturetest.Harness{Log: true, Setup: func(t *testing.T) capturetest.Database {
				return newDatabaseOf(t, f, f.Database(t), ddl.MySQL().Quoted(), oddNames)
			}})
		})
	})
}

// TestSuiteNamed runs the suite with binlog_row_metadata=FULL, where the binlog names the
// columns. By default it does not.
func TestSuiteNamed(t *testing.T) {
	eachFlavour(t, func(t *testing.T, f servers.Flavour) {
		srv := f.Start(t, map[string]string{"binlog-row-metadata": "FULL"})
		setup := func(t *testing.T) capturetest.Database { return newDatabase(t, f, srv.Database()) }
		capturetest.RunLayout(t, capturetest.Harness{Log: true, Setup: setup})
		t.Run("odd names", func(t *testing.T) {
			capturetest.RunLayout(t, capturetest.Harness{Log: true, Setup: func(t *testing.T) capturetest.Database {
				return newDatabaseOf(t, f, srv.Database(), ddl.MySQL().Quoted(), oddNames)
			}})
		})
	})
}

// follow opens a source and follows it until the test ends.
func follow(t *testing.T, d *database, cfg mysql.Config, at store.Checkpoint) (*capturetest.Follower, *mysql.Source, capture.OpenResult) {
	t.Helper()
	src := newSource(t, cfg)
	t.Cleanup(src.Close)
	o, err := src.Open(t.Context(), at, d.tables())
	if err != nil {
		t.Fatal(err)
	}
	if o.View != nil {
		o.View.Close()
	}
	return capturetest.FollowFrom(t, src, o.From), src, o
}

func insert(id string) string {
	return fmt.Sprintf("INSERT INTO outbox_events (id, message_group, payload) VALUES ('%s', 'g', 'payload of %[1]s')", id)
}

// drain waits for the end of a canceled run.
func drain(done <-chan error) {
	err := <-done
	_ = err
}
