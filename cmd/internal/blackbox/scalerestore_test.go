package blackbox

import (
	"strings"
	"testing"
)

// A database is restored to a moment before the latest epochs of the topic, and its slot is gone. The relay delivers new
// rows at once, not by sweeps, and so it does the rows of the time without a slot.
func TestScaleRestored(t *testing.T) {
	t.Parallel()
	s := aPostgresFleet(t)
	s.config = strings.Replace(s.config, "sweep-interval: 2s", "sweep-interval: 10m", 1)
	db := s.table.(sqlScaleTable).conn
	insert := func(n int) {
		t.Helper()
		var rows []scaleKey
		for g := range scaleGroups {
			rows = append(rows, scaleKey{g, n})
		}
		if err := s.table.insert(rows); err != nil {
			t.Fatal(err)
		}
	}
	deliver := func(n int) {
		t.Helper()
		s.start(0)
		s.hasAll(0)
		insert(n)
		s.settled(n * scaleGroups)
		expectStop(t, s.relays[0])
	}
	execute := func(statements ...string) {
		t.Helper()
		for _, sql := range statements {
			if _, err := db.exec(sql); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
		}
	}
	tables := []string{"letters", "sluicebox.leader", "sluicebox.record", "sluicebox.queue"}
	copyOf := func(table string) string { return "copy_" + strings.TrimPrefix(table, "sluicebox.") }

	deliver(1)
	for _, table := range tables {
		execute("CREATE TABLE " + copyOf(table) + " AS TABLE " + table)
	}
	for n := 2; n <= 4; n++ {
		deliver(n)
	}
	for _, table := range tables {
		execute("TRUNCATE "+table, "INSERT INTO "+table+" SELECT * FROM "+copyOf(table))
	}
	execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()")
	insert(5)
	s.start(0)
	s.relays[0].waitFor("database restored to an earlier moment")
	s.hasAll(0)
	insert(6)
	s.settled(6 * scaleGroups)
	expectStop(t, s.relays[0])

	execute("TRUNCATE sluicebox.leader") // as in another database
	r := start(t, s.config)
	r.waitFor("the topic is another relay's, or the database is new")
	_ = r.stop()
}
