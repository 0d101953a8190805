package blackbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluicebox/sluicebox/cmd/internal/shadow"
)

const shadowConfig = `
name: %s
mode: shadow
source: {url: %q}
outboxes: [{table: orders_outbox, layout: custom, kind: order, state: words, words: {pending: new, processing: sending, completed: sent, failed: dead},
  columns: {id: id, group: order_id, payload: body, status: state, claimed: taken_at}, order-by: [id], sink: hooks}]
sinks: {hooks: {type: webhook, url: 'http://127.0.0.1:9/'}}
shadow: {stuck-after: 1s, lost-after: 2s, report-interval: 200ms}
admin: {listen: %s}
`

// shadowCase is a database with a processor that loses the order, and the account that the shadow
// has there.
type shadowCase struct {
	on, create string
	// account creates an account that may read the log and the table, and returns its URL.
	account func(t *testing.T, source string, db *sql.DB) string
	// left counts what a shadow left in the database, and locks counts its locks on the table.
	left, locks string
}

func shadowCases() []shadowCase {
	return []shadowCase{
		{
			on:      "postgres",
			create:  "CREATE TABLE orders_outbox (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, order_id TEXT NOT NULL, body TEXT NOT NULL, state TEXT NOT NULL DEFAULT 'new', taken_at TIMESTAMPTZ)",
			account: postgresShadow,
			left: `SELECT (SELECT count(*) FROM pg_replication_slots WHERE database = current_database()) + (SELECT count(*) FROM pg_publication)
				+ (SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast') AND c.relkind = 'r' AND c.relname <> 'orders_outbox')`,
			locks: "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE a.application_name LIKE 'sluicebox%' AND l.relation = 'orders_outbox'::regclass",
		},
	}
}

func postgresShadow(t *testing.T, source string, db *sql.DB) string {
	t.Helper()
	name := "shadow_" + nameFor(source)
	run(t, db, "CREATE ROLE "+name+" LOGIN REPLICATION")
	run(t, db, "GRANT SELECT ON orders_outbox TO "+name)
	t.Cleanup(func() {
		for _, statement := range []string{"DROP OWNED BY " + name, "DROP ROLE " + name} {
			if _, err := db.ExecContext(context.Background(), statement); err != nil {
				t.Error(err)
			}
		}
	})
	return withAccount(t, source, name)
}

func withAccount(t *testing.T, source, name string) string {
	t.Helper()
	u, err := url.Parse(source)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User(name)
	return u.String()
}

// A shadow finds every row that a processor of several workers delivers out of order, a row that it
// takes and never finishes, one that it never takes, one that is deleted and one that is sent twice.
// Its account may only read, and nothing of it stays in the database. The longer run:
//
//	SLUICEBOX_TEST_ROWS=20000 go test -v -run TestShadow ./cmd/internal/blackbox
func TestShadow(t *testing.T) {
	t.Parallel()
	for _, c := range shadowCases() {
		t.Run(c.on, func(t *testing.T) {
			t.Parallel()
			onEverydayDatabase(t, c.on, func(t *testing.T, source string, db *sql.DB) { testShadow(t, &c, source, db) })
		})
	}
}

func testShadow(t *testing.T, c *shadowCase, source string, db *sql.DB) {
	t.Helper()
	run(t, db, c.create)
	p := &reorderer{db: db, stuck: "stuck", lost: "lost"}
	rows := many(t, 600)
	alone := p.work(t, rows/2) // before the shadow, which does not judge them
	p.delivered = nil
	r := start(t, fmt.Sprintf(shadowConfig, nameFor(source), c.account(t, source, db), adminKey))
	r.waitFor("shadow started")
	beside := p.work(t, rows)
	t.Logf("the processor sent %.0f rows/s alone, %.0f beside the shadow", alone, beside)

	run(t, db, "INSERT INTO orders_outbox (order_id, body) VALUES ('stuck', '{}')")
	run(t, db, "INSERT INTO orders_outbox (order_id, body) VALUES ('lost', '{}')")
	run(t, db, "INSERT INTO orders_outbox (order_id, body) VALUES ('lost', '{}')")
	run(t, db, "DELETE FROM orders_outbox WHERE id = (SELECT id FROM (SELECT max(id) AS id FROM orders_outbox) newest)")
	p.work(t, 0)
	run(t, db, fmt.Sprintf("UPDATE orders_outbox SET state = 'new' WHERE id = %d", p.delivered[0]))
	p.work(t, 0)

	var o shadow.OutboxReport
	within(t, testTimeout, func() string {
		o = shadowReport(t, r)
		if o.Delivered == rows+1 && o.StuckNow == 1 && o.UnreachedNow == 1 && o.Deleted == 1 {
			return ""
		}
		return fmt.Sprintf("the shadow reports %+v", o)
	})
	outOfOrder := p.outOfOrder(rows)
	if o.Seen != rows+3 || o.OutOfOrder != outOfOrder || o.Returned != 1 || o.Failed != 0 || o.Open != 2 || outOfOrder == 0 {
		t.Errorf("the shadow reports %+v; the processor sent %d rows out of order", o, outOfOrder)
	}
	if n := len(o.Examples.Stuck); n == 0 || o.Examples.Stuck[n-1].Group.Name != "stuck" {
		t.Errorf("the stuck row is not among %+v", o.Examples.Stuck)
	}
	if n := len(o.Examples.Unreached); n == 0 || o.Examples.Unreached[n-1].Group.Name != "lost" {
		t.Errorf("the lost row is not among %+v", o.Examples.Unreached)
	}
	for _, l := range []shadow.Latency{o.Captured, o.TakenLatency, o.DeliveredLatency} {
		if l.Rows < rows || l.P50 <= 0 || l.P50 > l.P99 || l.P99 > l.Max {
			t.Errorf("a latency is %+v", l)
		}
	}
	if n := r.metric(`sluicebox_shadow_findings_total{finding="out_of_order",outbox="orders_outbox"}`); n != float64(outOfOrder) {
		t.Errorf("the metric counts %g rows out of order", n)
	}
	locks := 0
	if err := db.QueryRowContext(t.Context(), c.locks).Scan(&locks); err != nil || locks != 0 {
		t.Errorf("the shadow has %d locks on the table: %v", locks, err)
	}
	expectStop(t, r)
	within(t, testTimeout, func() string {
		left := 0
		if err := db.QueryRowContext(t.Context(), c.left).Scan(&left); err != nil || left != 0 {
			return fmt.Sprintf("%d objects are left: %v", left, err)
		}
		return ""
	})
}

// shadowReport returns what the shadow reports of its only outbox.
func shadowReport(t *testing.T, r *relay) shadow.OutboxReport {
	t.Helper()
	_, body := r.get("/api/v1/status")
	var s struct{ Shadow shadow.Report }
	if err := json.Unmarshal([]byte(body), &s); err != nil || len(s.Shadow.Outboxes) != 1 {
		t.Fatalf("the status is no report (%v): %s", err, body)
	}
	return s.Shadow.Outboxes[0]
}

// reorderer is a processor of several workers, as projects write it. They take rows of a group at
// the same time, so it loses the order.
type reorderer struct {
	db *sql.DB
	// stuck is a group whose rows are taken and not sent, lost one whose rows are not taken.
	stuck, lost string

	mu        sync.Mutex
	delivered []int64 // ids in the order of the commits
	groups    map[int64]string
}

// work inserts rows while the workers send them, and returns the rows per second.
func (p *reorderer) work(t *testing.T, rows int) (rate float64) {
	t.Helper()
	began, before := time.Now(), len(p.delivered)
	inserted := make(chan struct{})
	work, ctx := errgroup.WithContext(t.Context())
	work.Go(func() error {
		defer close(inserted)
		for i := range rows {
			if _, err := p.db.ExecContext(ctx, fmt.Sprintf("INSERT INTO orders_outbox (order_id, body) VALUES ('o-%d', '{\"n\": ''%d''}')", i%5, i)); err != nil {
				return err
			}
		}
		return nil
	})
	for range 4 {
		work.Go(func() error {
			for last := false; ; {
				n, err := p.poll(ctx)
				if err != nil || n == 0 && last {
					return err
				}
				select {
				case <-inserted:
					last = n == 0
				case <-time.After(time.Millisecond):
				}
			}
		})
	}
	if err := work.Wait(); err != nil {
		t.Fatal(err)
	}
	return float64(len(p.delivered)-before) / time.Since(began).Seconds()
}

// poll takes some rows, sends them in any order and marks each.
func (p *reorderer) poll(ctx context.Context) (taken int, err error) {
	tx, err := p.db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	rows, err := tx.QueryContext(ctx, "SELECT id, order_id FROM orders_outbox WHERE state = 'new' AND order_id <> '"+p.lost+"' ORDER BY id LIMIT 3 FOR UPDATE SKIP LOCKED")
	if err != nil {
		return 0, err
	}
	defer func() { _ = rows.Close() }()
	groups := map[int64]string{}
	for rows.Next() {
		var id int64
		var group string
		if err := rows.Scan(&id, &group); err != nil {
			return 0, err
		}
		groups[id] = group
	}
	if err := rows.Err(); err != nil {
		return 0, err
	}
	for id := range groups {
		if _, err := tx.ExecContext(ctx, fmt.Sprintf("UPDATE orders_outbox SET state = 'sending', taken_at = CURRENT_TIMESTAMP WHERE id = %d", id)); err != nil {
			return 0, err
		}
	}
	if err := tx.Commit(); err != nil {
		return 0, err
	}
	for id, group := range groups {
		if group == p.stuck {
			continue
		}
		time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond) // the request
		if err := p.mark(ctx, id, group); err != nil {
			return 0, err
		}
	}
	return len(groups), nil
}

// mark marks a row as sent. One mark commits after the other, so that the test knows their order.
func (p *reorderer) mark(ctx context.Context, id int64, group string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err := p.db.ExecContext(ctx, fmt.Sprintf("UPDATE orders_outbox SET state = 'sent' WHERE id = %d", id))
	if p.groups == nil {
		p.groups = map[int64]string{}
	}
	p.delivered, p.groups[id] = append(p.delivered, id), group
	return err
}

// outOfOrder returns how many of the first rows were sent after a later row of their group.
func (p *reorderer) outOfOrder(rows int) (n int) {
	last := map[string]int64{}
	for _, id := range p.delivered[:rows] {
		group := p.groups[id]
		if id < last[group] {
			n++
		}
		last[group] = max(last[group], id)
	}
	return n
}
