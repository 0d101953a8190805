package mysql_test

import (
	"testing"

	"go.uber.org/goleak"

	capture "github.com/sluicebox/sluicebox/capture/mysql"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/layouts"
	"github.com/sluicebox/sluicebox/store/ledger"
	relay "github.com/sluicebox/sluicebox/store/mysql"
	"github.com/sluicebox/sluicebox/store/outbox"
	"github.com/sluicebox/sluicebox/store/outbox/mysql"
	"github.com/sluicebox/sluicebox/store/outbox/outboxtest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestWriter(t *testing.T) {
	for _, f := range servers.Spread(t, servers.Flavours()) {
		t.Run(string(f), func(t *testing.T) { outboxtest.Run(t, &database{url: f.Database(t)}) })
	}
}

// TestPartitionedWriter writes into a table that is partitioned by its time, which takes several rows of
// an id.
func TestPartitionedWriter(t *testing.T) {
	for _, f := range servers.Spread(t, servers.Flavours()) {
		outboxtest.Run(t, &database{url: f.Database(t), partitioned: true}, "outbox-messages")
	}
}

// TestRelay relays the rows of a service from a table without a state, and from one with a state.
func TestRelay(t *testing.T) {
	for _, f := range servers.Flavours() {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			db := &database{url: f.Database(t)}
			outboxtest.RunRelays(t, db, capture.Database{URL: db.url}, "debezium", "outbox-messages")
		})
	}
}

type database struct {
	url         string
	partitioned bool
}

func (*database) Kind() layouts.Database { return layouts.MySQL }

func (d *database) Create(t *testing.T, of *layouts.Definition) {
	utf8 := "ALTER DATABASE CHARACTER SET utf8mb4" // not the default of MariaDB 10
	servers.ExecMySQL(t, d.url, append([]string{utf8}, of.Statements...)...)
	if d.partitioned {
		servers.ExecMySQL(t, d.url, "ALTER TABLE "+of.Table+" DROP PRIMARY KEY, ADD PRIMARY KEY (id, created_at)",
			"ALTER TABLE "+of.Table+" PARTITION BY KEY (created_at) PARTITIONS 2")
	}
}

func (d *database) Writer(t *testing.T) outbox.Writer {
	t.Helper()
	w, err := mysql.NewWriter(d.url, "suite")
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (d *database) Store(t *testing.T, o store.Outbox) store.Tables {
	t.Helper()
	st, err := relay.New(relay.Config{URL: d.url, Name: "suite", Outboxes: []store.Outbox{o}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	return ledger.Store{Tables: st, Ledger: st.Ledger}
}

func (d *database) Service(t *testing.T, o *outbox.Outbox, commit bool, rows ...outbox.Row) ([]string, error) {
	return outboxtest.WriteSQL(t, servers.OpenMySQL(t, d.url), outbox.MySQL(), o, commit, rows)
}
