package sqlite_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
)

// prune walks the table to its end, n rows at a time. It returns the number of deleted rows
// and the errors that did not end the walk.
func (r *rig) prune(t *testing.T, before time.Time, n int) (rows int, refused []error) {
	t.Helper()
	return rigs.Prune(t, r.store, r.epoch, before, n)
}

// TestPruneKeys walks ids of every type and reads times in every format.
func TestPruneKeys(t *testing.T) {
	for _, typ := range []string{"INTEGER", "VARCHAR(13)", "BLOB", "TEXT COLLATE NOCASE", "NUMERIC"} {
		t.Run(typ, func(t *testing.T) {
			r := newRig(t, strings.Replace(flowTable, "id VARCHAR(13)", "id "+typ, 1), 0, flowBox())
			insert := func(value string, status string, at any) {
				r.exec(t, "INSERT INTO outbox_events (id, status, processed_at) VALUES ("+value+", ?, ?)", status, at)
			}
			at := time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC)
			forms := []any{"2024-02-29 11:59:59.999", "2024-02-29T10:00:00Z", at.Unix() - 1, at.UnixMilli() - 1, "2024-02-29 13:00:00+02:00"}
			young := []any{"2024-02-29 12:00:00", at.UnixMilli(), nil, "no time", "2024-02-29 12:00:00-01:00"}
			for i, form := range forms {
				insert(fmt.Sprint(i), "COMPLETED", form)
				insert(fmt.Sprint(10+i), "FAILED", form)
				insert(fmt.Sprint(20+i), "COMPLETED", young[i])
			}
			for i, form := range forms[:3] {
				switch typ {
				case "INTEGER":
					insert(fmt.Sprint(-i-1), "COMPLETED", form)
				default:
					insert(fmt.Sprintf("'text %d'", i), "COMPLETED", form)
				}
			}
			if n, _ := r.prune(t, at, 1); n != 8 {
				t.Errorf("%d rows were deleted, want 8", n)
			}
			if left := ask[int](t, r.db, "SELECT count(*) FROM outbox_events WHERE id BETWEEN 10 AND 24"); left != 10 && typ != "VARCHAR(13)" && typ != "TEXT COLLATE NOCASE" {
				t.Errorf("%d rows are left", left)
			}
			if left := ask[int](t, r.db, "SELECT count(*) FROM outbox_events"); left != 10 {
				t.Errorf("%d rows are left", left)
			}
		})
	}
}

// fillFlow inserts 5000 delivered rows.
const fillFlow = `
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
INSERT INTO outbox_events (id, status, processed_at) SELECT printf('%06d', i), 'COMPLETED', '2024-01-01 00:00:00' FROM n`

// TestPruneDelaysNoClaim: during another program's long transaction, pruning delays no
// claim. A row that changed meanwhile stays.
func TestPruneDelaysNoClaim(t *testing.T) {
	r := newRig(t, flowTable, 0, flowBox())
	r.exec(t, fillFlow)
	tx, err := r.db.Begin() // which is immediate
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec("UPDATE outbox_events SET status = 'PENDING' WHERE id = '000002'"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	p := store.PruneRequest{Outbox: "events", Before: time.Now(), Limit: 10}
	if done, err := r.store.Prune(ctx(t), r.epoch, p); err == nil || done.Rows != 0 {
		t.Errorf("%+v beside a writer, %v", done, err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it waited %s for the lock", took)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if n, _ := r.prune(t, time.Now(), 500); n != 4999 {
		t.Errorf("%d rows were deleted, want 4999", n)
	}
}

// TestPruneRefused: the error names the cause, and the walk continues after the refused row.
func TestPruneRefused(t *testing.T) {
	r := newRig(t, flowTable, 0, flowBox())
	r.exec(t, fillFlow)
	r.exec(t, "CREATE TRIGGER keep BEFORE DELETE ON outbox_events WHEN old.id = '000007' BEGIN SELECT RAISE(ABORT, 'keep it'); END")
	n, refused := r.prune(t, time.Now(), 100)
	if n != 4900 || len(refused) != 1 || !strings.Contains(refused[0].Error(), "keep it") {
		t.Errorf("%d rows were deleted, %v", n, refused)
	}
}

// TestExcludedLanesIgnoreCollation: lanes that the table's collations treat as equal are excluded one by
// one.
func TestExcludedLanesIgnoreCollation(t *testing.T) {
	for _, typ := range []string{"TEXT COLLATE NOCASE", "TEXT COLLATE RTRIM", "BLOB", "INTEGER", "UNTYPED"} {
		t.Run(typ, func(t *testing.T) {
			r := newRig(t, strings.Replace(flowTable, "message_group VARCHAR(255)", "message_group "+typ, 1), 0, flowBox())
			r.exec(t, `INSERT INTO outbox_events (id, message_group) VALUES ('1', 'A'), ('2', 'a'), ('3', 'a '), ('4', 7), ('5', NULL), ('6', ''), ('7', '7.5')`)
			rigs.CheckExcludeLanes(t, r.store, 7)
		})
	}
}
