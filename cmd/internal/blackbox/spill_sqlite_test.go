package blackbox

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/ddl"
)

// seedFile creates an SQLite file with the two FlowCatalyst tables.
func seedFile(t *testing.T) (source string, db *sql.DB) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "shop.db")
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=journal_mode(WAL)&_pragma=busy_timeout(10000)&_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	for _, table := range []string{"outbox_events", "outbox_dispatch_jobs"} {
		run(t, db, ddl.SQLite().FlowCatalyst(table))
	}
	return "sqlite://" + path, db
}

func run(t *testing.T, db *sql.DB, statement string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(context.Background(), statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// insertNumbered writes rows with these numbers. Rows with an odd number are in group 0.
func insertNumbered(t *testing.T, db *sql.DB, from, to int) {
	t.Helper()
	if err := numberedRows(db, from, to); err != nil {
		t.Fatal(err)
	}
}

// numberedRows is insertNumbered for any goroutine.
func numberedRows(db *sql.DB, from, to int) error {
	_, err := db.ExecContext(context.Background(), `WITH RECURSIVE n(i) AS (SELECT ? UNION ALL SELECT i + 1 FROM n WHERE i < ?)
		INSERT INTO outbox_events (id, type, message_group, payload, status, created_at)
		SELECT printf('%013d', i), 'EVENT', CASE WHEN i % 2 = 1 THEN '0' ELSE 1 + i % 7 END,
			printf('{"id": "%013d", "group": "%s"}', i, CASE WHEN i % 2 = 1 THEN '0' ELSE 1 + i % 7 END), 'PENDING', strftime('%Y-%m-%d %H:%M:%f', 'now') FROM n`, from, to)
	return err
}

// On SQLite: a blocked group larger than the buffer delays no other. It is spilled, survives a
// kill, and arrives in order once it is released. By hand:
//
//	go test -v -run 'TestSpillOnSQLite' ./cmd/internal/blackbox
func TestSpillOnSQLite(t *testing.T) {
	t.Parallel()
	const rows, buffer = 3000, 200
	source, db := seedFile(t)
	to := sinktest.NewReceiver(t)
	poison(to, sinktest.Answer{Status: 400}, numbered(1))
	config := preset(source, to.URL(), fmt.Sprintf("dispatch: {on-failed: block, max-retries: 1, global-buffer-size: %d, backoff: {initial: 10ms}}\n", buffer))
	r := start(t, config)
	r.waitFor("source connected")
	for i := 1; i <= rows; i += 100 {
		insertNumbered(t, db, i, i+99)
	}
	arrive(t, to, rows/2)
	spilled := func(r *relay) int { return int(r.metric(`sluicebox_spilled_rows{sink="flowcatalyst"}`)) }
	within(t, testTimeout, func() string {
		if n := spilled(r); n < rows/2-buffer {
			return fmt.Sprintf("%d rows are spilled", n)
		}
		return ""
	})
	r.kill()
	r = start(t, config)
	r.waitFor("source connected")
	to.Script(nil)
	r.operate("lanes", "skip", "--group", "0", "--reason", "a test")
	arrive(t, to, rows-1)
	within(t, testTimeout, func() string {
		n := 0
		if err := db.QueryRowContext(context.Background(), "SELECT count(*) FROM outbox_events WHERE status NOT IN ('COMPLETED', 'FAILED')").Scan(&n); err != nil || n+spilled(r) > 0 {
			return fmt.Sprintf("%d rows are unsettled, %d spilled: %v", n, spilled(r), err)
		}
		return ""
	})
	const held = 2*buffer + 500 // at the kill: twice the buffer, because the relay reads batches of 500
	if again := checkNumbered(t, to.Accepted()); again > held {
		t.Errorf("%d rows arrived more than once", again)
	}
	expectStop(t, r)
}
