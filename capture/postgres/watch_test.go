package postgres_test

import (
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestWatch reads the changes of a table, with a role that may read nothing but the log.
func TestWatch(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		d := newDatabase(t, servers.Database(t, version))
		cfg := d.config()
		cfg.URL = d.urlOf(d.newRole(t, "watch", "REPLICATION"))
		cfg.StreamURL = ""
		commit := func(statements ...string) {
			servers.Exec(t, d.url, "BEGIN; "+strings.Join(statements, "; ")+"; COMMIT")
		}
		steps := capturetest.SQLWatch(commit, false)
		last := &steps[len(steps)-1]
		steps = append(steps, capturetest.WatchStep{ // a rolled back transaction has no changes
			Do: func() {
				servers.Exec(t, d.url, "BEGIN; INSERT INTO outbox_events (id) VALUES ('never'); ROLLBACK")
				last.Do()
			},
			Want: last.Want,
		})
		capturetest.RunWatch(t, newSource(t, cfg), false, steps)
	})
}

// The changes of a partition are those of its table, also if it was made meanwhile, and a row that
// moves to another one is deleted and inserted. Without the id in the key a delete has no id.
func TestWatchPartitions(t *testing.T) {
	t.Parallel()
	oneVersion(t, func(t *testing.T, version int) {
		table := strings.Replace(createTable, "id text PRIMARY KEY", "id text", 1) + ` PARTITION BY LIST (status);
			CREATE TABLE "Open: ones" PARTITION OF outbox_events FOR VALUES IN ('PENDING', 'PROCESSING')`
		d := newDatabaseOf(t, servers.Database(t, version), table, outboxes)
		commit := func(statements ...string) func() {
			return func() { servers.Exec(t, d.url, "BEGIN; "+strings.Join(statements, "; ")+"; COMMIT") }
		}
		capturetest.RunWatch(t, newSource(t, d.config()), false, []capturetest.WatchStep{
			{Do: commit("INSERT INTO outbox_events (id, message_group) VALUES ('a', 'g'), ('b', 'g')"), Want: []string{"insert a g PENDING", "insert b g PENDING"}},
			{Do: commit(`ALTER TABLE "Open: ones" ADD PRIMARY KEY (id)`, "UPDATE outbox_events SET status = 'PROCESSING' WHERE id = 'a'"), Want: []string{"update a PROCESSING"}},
			{
				Do:   commit("CREATE TABLE done PARTITION OF outbox_events FOR VALUES IN ('COMPLETED')", "UPDATE outbox_events SET status = 'COMPLETED' WHERE id = 'a'"),
				Want: []string{"delete a", "insert a g COMPLETED"},
			},
			{Do: commit("DELETE FROM outbox_events WHERE id = 'a'"), Want: []string{"delete"}},
		})
	})
}
