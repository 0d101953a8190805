package blackbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/sluicebox/sluicebox/cmd/internal/shadow"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

const shadowConfig = `
name: %[1]s
mode: shadow
source: {url: %[2]q}
outboxes: [{table: orders_outbox, layout: custom, kind: order, state: words, words: {pending: new, processing: sending, completed: sent, failed: dead},
  columns: {id: %[4]s, group: order_id, payload: body, status: state, claimed: taken_at}, order-by: [%[4]s], sink: hooks}]
sinks: {hooks: {type: webhook, url: 'http://127.0.0.1:9/'}}
shadow: {stuck-after: 1s, lost-after: 2s, report-interval: 200ms}
admin: {listen: %[3]s}
`

// shadowCase is a database with a processor that loses the order, and the account that the shadow
// has there.
type shadowCase struct {
	on, create string
	// account creates an account that may read the log and the table, and returns its URL.
	account func(t *testing.T, source string, db *sql.DB) string
	// left counts what a shadow left in the database, and locks counts its locks on the table.
	left, locks string
	// undated: the log has no exact times of commits.
	undated bool
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
		mysqlShadow("mysql"), mysqlShadow("mariadb"),
	}
}

// mysqlShadow is the case of MySQL or MariaDB.
func mysqlShadow(flavour string) shadowCase {
	return shadowCase{
		on:     flavour,
		create: "CREATE TABLE orders_outbox (id BIGINT AUTO_INCREMENT PRIMARY KEY, order_id VARCHAR(50) NOT NULL, body TEXT NOT NULL, state VARCHAR(20) NOT NULL DEFAULT 'new', taken_at DATETIME(3), KEY (state, id))",
		account: func(t *testing.T, source string, _ *sql.DB) string {
			t.Helper()
			u, err := url.Parse(source)
			if err != nil {
				t.Fatal(err)
			}
			name := "s" + accountOf(u)
			admin := asRoot(t, source)
			servers.ExecMySQL(t, admin, "CREATE USER '"+name+"'@'%'", "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO '"+name+"'@'%'",
				"GRANT SELECT ON "+strings.TrimPrefix(u.Path, "/")+".orders_outbox TO '"+name+"'@'%'")
			db := servers.OpenMySQL(t, admin)
			t.Cleanup(func() { _, _ = db.ExecContext(context.Background(), "DROP USER '"+name+"'@'%'") }) // the server may be gone
			return withAccount(t, source, name)
		},
		left:    "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name <> 'orders_outbox'",
		locks:   "SELECT 0", // its account may not lock
		undated: flavour == "mariadb",
	}
}

func postgresShadow(t *testing.T, source string, db *sql.DB) string {
	t.Helper()
	name := "shadow_" + nameFor(source)
	run(t, db, "CREATE ROLE "+name+" LOGIN REPLICATION")
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

// The same on MongoDB.
func TestShadowMongo(t *testing.T) {
	t.Parallel()
	chooseMongo(t)
	source := servers.Mongo(t)
	db := servers.OpenMongo(t, source)
	findReorderer(t, nameFor(source), source, "_id", false, &mongoOrders{Collection: db.Collection("orders_outbox")}, func() {})
	if names, err := db.ListCollectionNames(t.Context(), bson.D{}); err != nil || len(names) != 1 {
		t.Errorf("the collections are %q: %v", names, err)
	}
}

func testShadow(t *testing.T, c *shadowCase, source string, db *sql.DB) {
	t.Helper()
	run(t, db, c.create)
	account := c.account(t, source, db)
	one := func(query string) (n int, err error) {
		err = db.QueryRowContext(t.Context(), query).Scan(&n)
		return n, err
	}
	findReorderer(t, nameFor(source), account, "id", c.undated, sqlOrders{db}, func() {
		if n, err := one(c.locks); err != nil || n != 0 {
			t.Errorf("the shadow has %d locks on the table: %v", n, err)
		}
	})
	within(t, testTimeout, func() string {
		if n, err := one(c.left); err != nil || n != 0 {
			return fmt.Sprintf("%d objects are left: %v", n, err)
		}
		return ""
	})
}

// findReorderer runs a shadow beside a processor of orders. id is the column of their ids. look is
// called while the shadow runs.
func findReorderer(t *testing.T, name, account, id string, undated bool, of watchedOrders, look func()) {
	t.Helper()
	p := &reorderer{watchedOrders: of}
	rows := many(t, 300)
	alone := p.work(t, rows/2) // before the shadow, which does not judge them
	p.delivered = nil
	r := start(t, fmt.Sprintf(shadowConfig, name, account, adminKey, id))
	r.waitFor("shadow started")
	beside := p.work(t, rows)
	t.Logf("the processor sent %.0f rows/s alone, %.0f beside the shadow", alone, beside)

	p.plant(t)
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
	for i, l := range []shadow.Latency{o.TakenLatency, o.DeliveredLatency, o.Captured} {
		if undated && i == 2 {
			continue
		}
		if l.Rows < rows || l.P50 <= 0 || l.P50 > l.P99 || l.P99 > l.Max {
			t.Errorf("a latency is %+v", l)
		}
	}
	if n := r.metric(`sluicebox_shadow_findings_total{finding="out_of_order",outbox="orders_outbox"}`); n != float64(outOfOrder) {
		t.Errorf("the metric counts %g rows out of order", n)
	}
	look()
	expectStop(t, r)
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

// watchedOrders is a table of orders.
type watchedOrders interface {
	insert(ctx context.Context, group string) error
	// take marks up to three new rows of other groups than lost, and returns their groups by id.
	take(ctx context.Context, lost string) (map[int64]string, error)
	set(ctx context.Context, id int64, state string) error
	deleteNewest(ctx context.Context) error
}

// sqlOrders is a table of SQL.
type sqlOrders struct{ *sql.DB }

func (o sqlOrders) run(ctx context.Context, format string, args ...any) error {
	return deadlocked(func() error {
		_, err := o.ExecContext(ctx, fmt.Sprintf(format, args...))
		return err
	})
}

// deadlocked repeats a transaction that InnoDB ended because it and another waited for each other.
func deadlocked(do func() error) error {
	for {
		if err := do(); err == nil || !strings.Contains(err.Error(), "Deadlock found") {
			return err
		}
	}
}

func (o sqlOrders) insert(ctx context.Context, group string) error {
	return o.run(ctx, "INSERT INTO orders_outbox (order_id, body) VALUES ('%s', '{\"n\": ''1''}')", group)
}

func (o sqlOrders) set(ctx context.Context, id int64, state string) error {
	return o.run(ctx, "UPDATE orders_outbox SET state = '%s' WHERE id = %d", state, id)
}

func (o sqlOrders) deleteNewest(ctx context.Context) error {
	return o.run(ctx, "DELETE FROM orders_outbox WHERE id = (SELECT id FROM (SELECT max(id) AS id FROM orders_outbox) newest)")
}

func (o sqlOrders) take(ctx context.Context, lost string) (groups map[int64]string, err error) {
	err = deadlocked(func() (err error) {
		groups, err = o.takeOnce(ctx, lost)
		return err
	})
	return groups, err
}

func (o sqlOrders) takeOnce(ctx context.Context, lost string) (map[int64]string, error) {
	tx, err := o.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	rows, err := tx.QueryContext(ctx, "SELECT id, order_id FROM orders_outbox WHERE state = 'new' AND order_id <> '"+lost+"' ORDER BY id LIMIT 3 FOR UPDATE SKIP LOCKED")
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	groups := map[int64]string{}
	for rows.Next() {
		var id int64
		var group string
		if err := rows.Scan(&id, &group); err != nil {
			return nil, err
		}
		groups[id] = group
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	for id := range groups {
		if _, err := tx.ExecContext(ctx, fmt.Sprintf("UPDATE orders_outbox SET state = 'sending', taken_at = CURRENT_TIMESTAMP WHERE id = %d", id)); err != nil {
			return nil, err
		}
	}
	return groups, tx.Commit()
}

// mongoOrders is a collection. One goroutine inserts.
type mongoOrders struct {
	*mongo.Collection
	last int64
}

func (o *mongoOrders) insert(ctx context.Context, group string) error {
	o.last++
	_, err := o.InsertOne(ctx, bson.D{{Key: "_id", Value: o.last}, {Key: "order_id", Value: group}, {Key: "body", Value: "{}"}, {Key: "state", Value: "new"}})
	return err
}

func (o *mongoOrders) set(ctx context.Context, id int64, state string) error {
	_, err := o.UpdateByID(ctx, id, bson.D{{Key: "$set", Value: bson.D{{Key: "state", Value: state}}}})
	return err
}

func (o *mongoOrders) deleteNewest(ctx context.Context) error {
	_, err := o.DeleteOne(ctx, bson.D{{Key: "_id", Value: o.last}})
	return err
}

func (o *mongoOrders) take(ctx context.Context, lost string) (map[int64]string, error) {
	groups := map[int64]string{}
	for range 3 {
		var row struct {
			ID    int64  `bson:"_id"`
			Group string `bson:"order_id"`
		}
		err := o.FindOneAndUpdate(ctx, bson.D{{Key: "state", Value: "new"}, {Key: "order_id", Value: bson.D{{Key: "$ne", Value: lost}}}},
			bson.D{{Key: "$set", Value: bson.D{{Key: "state", Value: "sending"}, {Key: "taken_at", Value: time.Now()}}}},
			options.FindOneAndUpdate().SetSort(bson.D{{Key: "_id", Value: 1}})).Decode(&row)
		if errors.Is(err, mongo.ErrNoDocuments) {
			return groups, nil
		}
		if err != nil {
			return nil, err
		}
		groups[row.ID] = row.Group
	}
	return groups, nil
}

// reorderer is a processor of several workers, as projects write it. They take rows of a group at
// the same time, so it loses the order. It takes rows of the group stuck and does not send them,
// and takes none of the group lost.
type reorderer struct {
	watchedOrders
	mu        sync.Mutex
	delivered []int64 // ids in the order of the commits
	groups    map[int64]string
}

// plant writes a row that is stuck, one that is lost and one that is deleted, and resets a row.
func (p *reorderer) plant(t *testing.T) {
	t.Helper()
	for _, step := range []func() error{
		func() error { return p.insert(t.Context(), "stuck") },
		func() error { return p.insert(t.Context(), "lost") },
		func() error { return p.insert(t.Context(), "lost") },
		func() error { return p.deleteNewest(t.Context()) },
		func() error { p.work(t, 0); return nil },
		func() error { return p.set(t.Context(), p.delivered[0], "new") },
		func() error { p.work(t, 0); return nil },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
}

// work inserts rows while the workers send them, and returns the rows per second.
func (p *reorderer) work(t *testing.T, rows int) (rate float64) {
	t.Helper()
	return p.workAt(t, rows, 0, 5, 4)
}

// workAt is work with so many rows per second, or as many as can be inserted if that is 0.
func (p *reorderer) workAt(t *testing.T, rows, perSecond, groups, workers int) (rate float64) {
	t.Helper()
	began, before := time.Now(), len(p.delivered)
	inserted := make(chan struct{})
	work, ctx := errgroup.WithContext(t.Context())
	work.Go(func() error {
		defer close(inserted)
		for i := range rows {
			if perSecond > 0 {
				time.Sleep(time.Until(began.Add(time.Duration(i) * time.Second / time.Duration(perSecond))))
			}
			if err := p.insert(ctx, fmt.Sprintf("o-%d", i%groups)); err != nil {
				return err
			}
		}
		return nil
	})
	for range workers {
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
	groups, err := p.take(ctx, "lost")
	if err != nil {
		return 0, err
	}
	for id, group := range groups {
		if group == "stuck" {
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
	if p.groups == nil {
		p.groups = map[int64]string{}
	}
	p.delivered, p.groups[id] = append(p.delivered, id), group
	return p.set(ctx, id, "sent")
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
