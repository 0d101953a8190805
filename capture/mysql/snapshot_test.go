package mysql_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestSnapshotIsExact checks that no row is in both the view and the stream, and that none is
// missing, although a view shows rows before gtid_executed contains their transactions.
func TestSnapshotIsExact(t *testing.T) {
	inTurn(t, func(t *testing.T, f servers.Flavour) {
		settings := map[string]string{"sync-binlog": "0", "innodb-flush-log-at-trx-commit": "0"}
		if f == servers.MySQL { // many commit at once
			settings["binlog-group-commit-sync-delay"] = "1000"
		}

		d := newDatabase(t, f, f.Start(t, settings).Database())
		var stop atomic.Bool
		var writers sync.WaitGroup
		db := servers.OpenMySQL(t, d.url)
		db.SetMaxIdleConns(32)
		var committed atomic.Int64
		for w := range 32 {
			writers.Go(func() {
				for n := 0; !stop.Load(); n++ {
					_, err := db.ExecContext(t.Context(), "INSERT INTO outbox_events (id, message_group, payload) VALUES (?, ?, '')", fmt.Sprintf("%02d-%08d", w, n), fmt.Sprint(w))
					if err != nil {
						t.Error(err)
						return
					}
					committed.Add(1)
				}
			})
		}

		cuts := 0
		for end := time.Now().Add(snapshotTestTime); time.Now().Before(end) && !t.Failed(); cuts++ {
			d.snapshotOnce(t, fmt.Sprint(cuts))
		}

		stop.Store(true)
		writers.Wait()
		t.Logf("%d snapshots during %d inserts", cuts, committed.Load())
	})
}

// snapshotTestTime is how long the test takes snapshots.
const snapshotTestTime = 3 * time.Second

// snapshotOnce takes a snapshot and compares its view with its stream.
func (d *database) snapshotOnce(t *testing.T, token string) {
	t.Helper()
	src := newSource(t, d.config())
	defer src.Close()
	o, err := src.Open(t.Context(), store.Checkpoint{}, d.tables())
	if err != nil {
		t.Fatal(err)
	}
	defer o.View.Close()
	rows, err := o.View.Unsettled(t.Context(), store.UnsettledQuery{Outbox: "shop", Limit: 1 << 20, NoPayload: true})
	if err != nil {
		t.Fatal(err)
	}

	if err := src.Mark(t.Context(), token); err != nil {
		t.Fatal(err)
	}
	seen, last := map[string]bool{}, map[string]string{}
	for i := range rows {
		seen[rows[i].ID] = true
		last[rows[i].Group.Name] = max(last[rows[i].Group.Name], rows[i].ID)
	}

	both, older := 0, 0
	for _, it := range upToMark(t, src, o.From) {
		switch {
		case seen[it.ID]:
			both++
		case it.ID < last[it.Group.Name]:
			older++
		}
	}

	if both > 0 || older > 0 {
		t.Errorf("snapshot %s: the stream repeated %d of %d rows of the view, and sent %d rows older than one of their group", token, both, len(rows), older)
	}
	d.exec(t, "DELETE FROM outbox_events") // keep views small
}
