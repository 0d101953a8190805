package mysql_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
)

// prune walks the table to its end, n rows at a time. It returns how many rows were
// deleted, and the errors that did not end the walk.
func (r *rig) prune(t *testing.T, n int) (rows int, refused []error) {
	t.Helper()
	return rigs.Prune(t, r.store, r.epoch, time.Now(), n)
}

// fillFlow inserts delivered rows.
func (r *rig) fillFlow(t *testing.T, n int) {
	t.Helper()
	const each = 500
	for from := 1; from <= n; from += each {
		var rows []string
		for i := from; i < from+each && i <= n; i++ {
			rows = append(rows, fmt.Sprintf("('%06d', '{}', 'COMPLETED', '2024-01-01')", i))
		}
		r.exec(t, "INSERT INTO outbox_events (id, payload, status, processed_at) VALUES "+strings.Join(rows, ", "))
	}
}

// TestPruneWalks checks that pruning does not wait for locked rows and finds them on the
// next walk.
func TestPruneWalks(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox())
		r.fillFlow(t, 7000)
		held := r.begin(t, "SELECT * FROM outbox_events WHERE id IN ('000001', '003000', '007000') FOR UPDATE")
		began := time.Now()
		if n, _ := r.prune(t, 600); n != 7000-3 {
			t.Errorf("deleted %d rows, want all except the locked ones", n)
		}
		t.Logf("7000 rows in %s", time.Since(began))
		if err := held.Rollback(); err != nil {
			t.Fatal(err)
		}
		if n, _ := r.prune(t, 600); n != 3 {
			t.Errorf("deleted %d rows, want the rows that had been locked", n)
		}
	})
}

// TestPruneKeys walks ids of other types.
func TestPruneKeys(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		for typ, form := range map[string]string{"BIGINT UNSIGNED": "%d", "BINARY(16)": "UNHEX('%032d')", "VARCHAR(20) CHARACTER SET latin1": "'ü%d'", "DECIMAL(9,1)": "%d.5"} {
			t.Run(typ, func(t *testing.T) {
				r := newRig(t, url, "DROP TABLE IF EXISTS outbox_events;\n"+strings.Replace(flowTable, "VARCHAR(13)", typ, 1), 0, flowBox())
				for i := range 50 {
					r.exec(t, "INSERT INTO outbox_events (id, payload, status, processed_at) VALUES ("+fmt.Sprintf(form, i)+", '{}', ?, '2024-01-01')", []string{"COMPLETED", "FAILED"}[i%2])
				}
				if n, _ := r.prune(t, 7); n != 25 {
					t.Errorf("deleted %d rows, want 25", n)
				}
			})
		}
	})
}

// TestPruneRefused checks that an error names the row that cannot be deleted, and that
// the walk continues after it.
func TestPruneRefused(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox())
		r.fillFlow(t, 5000)
		r.exec(t, "CREATE TABLE copies (of_row VARCHAR(13), FOREIGN KEY (of_row) REFERENCES outbox_events (id)) DEFAULT CHARSET=utf8mb4")
		r.exec(t, "INSERT INTO copies VALUES ('000007')")
		n, refused := r.prune(t, 100)
		if n != 4900 || len(refused) != 1 || !strings.Contains(refused[0].Error(), "copies") {
			t.Errorf("deleted %d rows, %v", n, refused)
		}
	})
}

// TestPartitioned checks a partitioned table, whose id is unique only together with
// another column.
func TestPartitioned(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		ddl := strings.Replace(flowTable, "id VARCHAR(13) PRIMARY KEY", "id VARCHAR(13), day INT NOT NULL DEFAULT 1, PRIMARY KEY (id, day)", 1) +
			" PARTITION BY RANGE (day) (PARTITION p1 VALUES LESS THAN (10), PARTITION p2 VALUES LESS THAN (20))"
		r := newRig(t, url, ddl, 0, flowBox())
		r.insert(t, "a", "b")
		r.exec(t, "INSERT INTO outbox_events (id, day, payload) VALUES ('B', 11, '{}'), ('c', 12, '{}')")
		for i, a := range r.claim(t, row("a"), row("c"), row("B"), row("A")) {
			if want := store.Claimed; a.Result != want && i < 3 || i == 3 && a.Result != store.Gone {
				t.Errorf("row %d is %s", i, a.Result)
			}
		}

		if got := ask[string](t, r.db, "SELECT GROUP_CONCAT(CONCAT(id, ' ', status) ORDER BY day, id) FROM outbox_events"); got != "a PROCESSING,b PENDING,B PROCESSING,c PROCESSING" {
			t.Errorf("rows: got %s", got)
		}
		r.settle(t, outcome("B", store.Completed), outcome("c", store.Failed))
		if got := ask[string](t, r.db, "SELECT GROUP_CONCAT(CONCAT(id, ' ', status) ORDER BY day, id) FROM outbox_events"); got != "a PROCESSING,b PENDING,B COMPLETED,c FAILED" {
			t.Errorf("rows: got %s", got)
		}
	})
}

// TestArchiveColumns: no column is lost, also if it is added while the relay runs.
func TestArchiveColumns(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		box := flowBox()
		box.Retention, box.Archive = time.Hour, "old_events"
		r := newRig(t, url, flowTable, 0, flowBox())
		r.exec(t, "CREATE TABLE old_events LIKE outbox_events")
		st := openStore(t, url, 0, box)
		r.fillFlow(t, 700)
		r.exec(t, "ALTER TABLE outbox_events ADD note VARCHAR(9) DEFAULT 'here' AFTER id, ADD size INT AS (LENGTH(payload)) STORED")
		p := store.PruneRequest{Outbox: "events", Before: time.Now(), Limit: 1000}
		if done, err := st.Prune(ctx(t), r.epoch, p); err == nil || done.Rows != 0 {
			t.Errorf("an archive without the columns: got %+v, error %v", done, err)
		}
		err := st.Check(ctx(t))
		var setup *store.SetupError
		if !errors.As(err, &setup) || !strings.Contains(setup.Remedy, "ALTER TABLE `old_events` ADD COLUMN `note` varchar(9);") {
			t.Fatalf("check: %v", err)
		}
		r.exec(t, "ALTER TABLE old_events ADD note VARCHAR(9), ADD size INT")
		if err := st.Check(ctx(t)); err != nil {
			t.Fatal(err)
		}
		epoch, err := st.AcquireLeadership(ctx(t))
		if err != nil {
			t.Fatal(err)
		}
		if n, refused := rigs.Prune(t, st, epoch, time.Now(), 300); n != 700 || refused != nil {
			t.Errorf("moved %d rows, %v", n, refused)
		}
		if n := ask[int](t, r.db, "SELECT COUNT(*) FROM old_events WHERE note = 'here' AND size = 2 AND status = 'COMPLETED'"); n != 700 {
			t.Errorf("%d rows are in the archive as they were", n)
		}

		r.fillFlow(t, 700)
		done, err := st.Prune(ctx(t), epoch, p)
		if !errors.As(err, new(*store.RefusedError)) || done.Rows != 0 {
			t.Errorf("rows that are archived already: got %+v, error %v", done, err)
		}
		if left := ask[int](t, r.db, "SELECT COUNT(*) FROM outbox_events"); left != 700 {
			t.Errorf("%d rows are left, want all", left)
		}
	})
}
