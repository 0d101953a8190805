package blackbox

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"golang.org/x/sync/errgroup"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/layouts"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// layoutConfig relays a project's own table to a webhook. A claim of a killed relay ends soon.
const layoutConfig = `
name: %s
source: {mode: stream, url: %q}
outboxes: [{table: %s, layout: %s, sink: hooks}]
sinks:
  hooks: {type: webhook, url: %q, headers: {X-Type: '%s'%s}, max-retries: 1, backoff: {initial: 50ms}, proof-wait: 1s}
dispatch: {%s}
admin: {listen: %s}
`

// layoutRow is the nth row of its group, both from 1.
type layoutRow struct {
	ID       string `json:"-"`
	Group, N int
	Bad      bool
	Pad      string `json:",omitempty"` // makes the payload large
}

// group is the row's group as its project writes it.
func (r *layoutRow) group() string { return fmt.Sprintf("order-%d", r.Group) }

// groupHeader is the header with the group, which is refused where rows have none.
func (s *layoutScene) groupHeader() string {
	if s.ungrouped {
		return ""
	}
	return ", X-Group: '{group}'"
}

// lane returns the row's group as the relay names it, "" for none.
func (s *layoutScene) lane(r *layoutRow) string {
	if s.ungrouped {
		return ""
	}
	return s.lanePrefix + r.group()
}

// payload is the row's payload in JSON.
func (r *layoutRow) payload() string {
	text, _ := json.Marshal(r) // numbers and a bool
	return string(text)
}

// layoutScene is a table of a project, created by the program, and its service's writers.
type layoutScene struct {
	*layoutCase
	t      *testing.T
	source string
	table  string
	conn   *conn           // nil for MongoDB
	db     *mongo.Database // nil for tables
	to     *sinktest.Receiver

	groups, rows int
	bad          atomic.Pointer[string] // id of the refused row
}

// Each layout works on each database of its project: the program creates the table, the
// service writes rows with the project's own statement, and the relay is killed meanwhile.
// All rows arrive, first arrivals in order per group, and each row ends in the state that
// the project's own processor would have left. One row is refused. The full run, for each
// layout 20000 rows of 200 groups under ten kills:
//
//	SLUICEBOX_TEST_ROWS=20000 SLUICEBOX_TEST_CRASHES=10 SLUICEBOX_TEST_VERSIONS=all go test -v -timeout 2h -run TestLayouts ./cmd/internal/blackbox
func TestLayouts(t *testing.T) {
	t.Parallel()
	for _, c := range layoutCases() {
		t.Run(c.name(), func(t *testing.T) {
			t.Parallel()
			onLayoutHosts(t, c, runLayout)
		})
	}
}

// onLayoutHosts runs a test on each database of a layout's project.
func onLayoutHosts(t *testing.T, c *layoutCase, run func(*layoutScene)) {
	t.Helper()
	preset, found := layouts.Named(c.layout)
	if !found {
		t.Fatalf("there is no layout %s", c.layout)
	}
	if s, has := preset.Schemas[layouts.MongoDB]; has && c.document != nil {
		t.Run("mongo", func(t *testing.T) {
			t.Parallel()
			chooseMongo(t)
			source := servers.Mongo(t)
			run(&layoutScene{layoutCase: c, t: t, source: source, table: s.Table, db: servers.OpenMongo(t, source)})
		})
	}
	for _, h := range kinds(t) {
		db := layouts.MySQL
		if h.kind.postgres {
			db = layouts.Postgres
		}
		s, has := preset.Schemas[db]
		if !has || c.insert == "" {
			continue
		}
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			source := h.database(t)
			run(&layoutScene{layoutCase: c, t: t, source: source, table: s.Table, conn: connect(t, source)})
		})
	}
}

// runLayout writes, kills and checks.
func runLayout(s *layoutScene) {
	s.t.Helper()
	kills := crashes(s.t, 1)
	s.groups, s.rows = 3*layoutWriters, 200
	if os.Getenv(rowsVariable) != "" {
		s.groups, s.rows = 50*layoutWriters, many(s.t, s.rows)
	}
	initOutbox(s.t, s.layout, s.source)

	s.to = sinktest.NewReceiver(s.t)
	s.to.Script(s.answer)
	config := fmt.Sprintf(layoutConfig, nameFor(s.source), s.source, s.table, s.layout, s.to.URL(), s.typeField, s.groupHeader(), s.dispatch, adminKey)
	r := start(s.t, config)
	r.waitFor("source connected") // a table without a state has no rows of before
	written := make(chan error, 1)
	go func() { written <- s.write() }()
	for kill := range kills {
		arrive(s.t, s.to, s.rows*(kill+1)/(kills+2))
		r.kill()
		r = start(s.t, config)
	}
	if err := <-written; err != nil {
		s.t.Fatal(err)
	}
	arrive(s.t, s.to, s.rows-1)
	again := s.checkOrder()
	s.checkStates()
	s.checkDoctor(config)
	s.t.Logf("%d rows of %d groups under %d kills; %d arrived again", s.rows, s.groups, kills, again)
	expectStop(s.t, r)
}

// answer refuses the bad row.
func (s *layoutScene) answer(r *sinktest.Request) sinktest.Answer {
	var row layoutRow
	if err := json.Unmarshal(r.Body, &row); err != nil {
		s.t.Errorf("body %q: %v", r.Body, err)
	}
	group, err := url.PathUnescape(r.Header.Get("X-Group"))
	if want := s.lane(&row); err != nil || group != want || r.Header.Get("X-Type") != s.typ {
		s.t.Errorf("row of group %q with type %q, want %q and %q", group, r.Header.Get("X-Type"), want, s.typ)
	}
	if row.Bad {
		s.bad.Store(&r.Items[0].ID)
		return sinktest.Answer{Status: http.StatusUnprocessableEntity, Body: []byte("no such customer")}
	}
	return sinktest.Answer{Status: http.StatusNoContent}
}

// layoutWriters is the number of writers. Each has its own groups, so the order in a group
// is the order in which its writer committed.
const layoutWriters = 4

// write inserts the rows in transactions of up to five.
func (s *layoutScene) write() error {
	var writers errgroup.Group
	for w := range layoutWriters {
		writers.Go(func() error {
			var rows []*layoutRow
			for i := w; i < s.rows; i += layoutWriters {
				// layoutWriters divides the number of groups.
				rows = append(rows, &layoutRow{Group: i%s.groups + 1, N: i/s.groups + 1, Bad: i == s.rows/3})
			}
			for len(rows) > 0 {
				n := min(len(rows), 1+len(rows)%5)
				if err := s.commit(rows[:n]); err != nil {
					return err
				}
				rows = rows[n:]
			}
			return nil
		})
	}
	return writers.Wait()
}

// commit inserts rows in one transaction.
func (s *layoutScene) commit(rows []*layoutRow) error {
	ctx := context.Background()
	for _, r := range rows {
		if s.id != nil {
			r.ID = s.id()
		}
	}
	if s.db != nil {
		var documents []any
		for _, r := range rows {
			documents = append(documents, s.document(r))
		}
		return s.insertDocuments(ctx, documents)
	}

	tx, err := s.conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	exec := func(text string, args ...any) error {
		sql, args := s.conn.text(s.sql(text), args)
		if _, err := tx.ExecContext(ctx, sql, args...); err != nil {
			return fmt.Errorf("%w, in: %s", err, sql)
		}
		return nil
	}
	for _, r := range rows {
		err := exec(s.insert, s.args(r)...)
		if err == nil && s.remove != "" {
			err = exec(s.remove, r.ID)
		}
		if err != nil {
			return err
		}
	}
	return tx.Commit()
}

// insertDocuments inserts documents in one transaction, and deletes them in it where the
// service does.
func (s *layoutScene) insertDocuments(ctx context.Context, documents []any) error {
	in := s.db.Collection(s.table)
	return s.db.Client().UseSession(ctx, func(ctx context.Context) error {
		_, err := mongo.SessionFromContext(ctx).WithTransaction(ctx, func(ctx context.Context) (any, error) {
			done, err := in.InsertMany(ctx, documents)
			if err == nil && s.remove != "" {
				_, err = in.DeleteMany(ctx, bson.M{"_id": bson.M{"$in": done.InsertedIDs}})
			}
			return nil, err
		})
		return err
	})
}

// sql sets the table in a statement.
func (s *layoutScene) sql(text string) string { return strings.ReplaceAll(text, "{table}", s.table) }

// checkOrder compares the first arrivals of each group with their numbers, and returns the
// number of repeated arrivals.
func (s *layoutScene) checkOrder() (again int) {
	s.t.Helper()
	again, late := s.repeated()
	for _, what := range late {
		s.t.Error(what)
	}
	return again
}

// repeated returns the number of repeated arrivals, and the first arrivals behind a later row of their
// group.
func (s *layoutScene) repeated() (again int, late []string) {
	s.t.Helper()
	seen, last := map[string]bool{}, map[int]int{}
	for _, got := range s.to.Accepted() {
		if seen[got.ID] {
			again++
			continue
		}
		seen[got.ID] = true
		var r layoutRow
		if err := json.Unmarshal(got.Payload, &r); err != nil {
			s.t.Fatalf("payload %q: %v", got.Payload, err)
		}
		if r.N <= last[r.Group] {
			late = append(late, fmt.Sprintf("group %d: row %d arrived after row %d", r.Group, r.N, last[r.Group]))
		}
		last[r.Group] = r.N
	}
	return again, late
}

// checkStates waits until each row has the state that the project expects, and one is FAILED.
func (s *layoutScene) checkStates() {
	s.t.Helper()
	bad := s.bad.Load()
	if bad == nil {
		s.t.Fatal("the row to refuse has not arrived")
	}
	if s.stateless {
		want := s.rows
		if s.remove != "" {
			want = 0
		}
		if left := s.countAll(); left != want {
			s.t.Errorf("%d rows are in the table, want %d as the service left them", left, want)
		}
		return
	}
	within(s.t, testTimeout, func() string {
		delivered, failed := s.countStates(*bad)
		if delivered != s.rows-1 || failed != 1 {
			return fmt.Sprintf("%d of %d rows are as after a delivery, %d of 1 as after a failure", delivered, s.rows-1, failed)
		}
		return ""
	})
}

// checkDoctor expects that the doctor has nothing to add to the table.
func (s *layoutScene) checkDoctor(config string) {
	s.t.Helper()
	d, text, code := doctor(s.t, config)
	for _, f := range d.Findings {
		if f.Grade == "fault" || strings.Contains(f.Text, "index for unsettled") || strings.Contains(f.Text, "finds unsettled rows:") {
			s.t.Errorf("doctor: exit code %d: %s: %s\n%s", code, f.Grade, f.Text, text)
		}
	}
}

// countStates counts the rows in the states that the project expects of delivered rows and of
// the one that failed.
func (s *layoutScene) countStates(bad string) (delivered, failed int) {
	s.t.Helper()
	if s.db == nil {
		delivered = count(s.t, s.conn, s.sql("SELECT count(*) FROM {table} WHERE "+s.delivered))
		return delivered, count(s.t, s.conn, s.sql("SELECT count(*) FROM {table} WHERE "+s.failed), bad)
	}
	return s.countDocuments(s.deliveredDocument), s.countDocuments(s.failedDocument)
}

// countAll counts all rows.
func (s *layoutScene) countAll() int {
	s.t.Helper()
	if s.db == nil {
		return count(s.t, s.conn, s.sql("SELECT count(*) FROM {table}"))
	}
	return s.countDocuments(bson.M{})
}

func (s *layoutScene) countDocuments(filter bson.M) int {
	s.t.Helper()
	n, err := s.db.Collection(s.table).CountDocuments(s.t.Context(), filter)
	if err != nil {
		s.t.Fatal(err)
	}
	return int(n)
}
