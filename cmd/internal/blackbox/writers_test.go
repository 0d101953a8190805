package blackbox

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// writersTarget is a database with the outbox of deploy/writers, and a relay of it.
type writersTarget struct {
	t        *testing.T
	name     string
	database string
	conn     *conn           // nil for MongoDB
	db       *mongo.Database // nil for tables
	stateful bool            // the table has the columns for the relay
	relay    *relay

	to  *sinktest.Receiver
	mu  sync.Mutex
	got map[string][]writtenRow // by order, in the order of their arrival
}

// writtenRow is the payload that the test's services write, and what the relay added.
type writtenRow struct {
	Order string
	N     int
	Kept  bool // its transaction committed

	headers http.Header
}

// The code of deploy/writers and deploy/inbox in each language. Each writer runs on each of its
// databases: the rows of a committed transaction arrive in order, with type, group and trace context;
// those of a transaction that was rolled back never do. With the table of the README, and as a table of
// Debezium. Each inbox drops duplicates in each of its databases. On all servers, with both tables each:
//
//	SLUICEBOX_TEST_VERSIONS=all go test -v -run TestServices ./cmd/internal/blackbox
func TestServices(t *testing.T) {
	t.Parallel()
	targets, inboxes := writersTargets(t), inboxDatabases(t)
	t.Run("in", func(t *testing.T) {
		for _, l := range languages() {
			t.Run(l.name, func(t *testing.T) {
				t.Parallel()
				s := startService(t, l)
				s.writesReceipts()
				for _, target := range targets {
					target.writeWith(t, s, l)
				}
				aVersion(t, func(t *testing.T, version int) { testInbox(t, servers.Database(t, version), inboxesOf(s, l, inboxes)) })
			})
		}
	})
	for _, target := range targets {
		target.check()
	}
	for _, in := range inboxes {
		in.checkRemoval(t)
	}
}

// writersTargets returns the targets, with their relays started. By default only PostgreSQL has both tables.
func writersTargets(t *testing.T) (all []*writersTarget) {
	t.Helper()
	every := os.Getenv("SLUICEBOX_TEST_VERSIONS") != ""
	add := func(target *writersTarget) {
		target.t, target.got = t, map[string][]writtenRow{}
		target.start()
		all = append(all, target)
	}
	for _, h := range serviceHosts(t) {
		for _, stateful := range []bool{true, false} {
			if stateful || h.kind.postgres || every {
				at := h.database(t)
				add(&writersTarget{name: h.name, database: at, conn: connect(t, at), stateful: stateful})
			}
		}
	}
	if len(servers.Chosen([]string{"mongo"})) > 0 {
		for _, stateful := range []bool{true, false} {
			if stateful || every {
				at := servers.Mongo(t)
				add(&writersTarget{name: "mongo", database: at, db: servers.OpenMongo(t, at), stateful: stateful})
			}
		}
	}
	for _, target := range all {
		target.relay.waitFor("source connected")
	}
	return all
}

// serviceHosts are a PostgreSQL, MySQL and MariaDB, or those of them that are selected.
func serviceHosts(t *testing.T) (all []host) {
	for _, version := range servers.Spread(t, servers.Versions()) {
		all = append(all, postgresHost(version))
	}
	for _, f := range servers.Chosen(servers.Flavours()) {
		all = append(all, mysqlHost(f))
	}
	return all
}

// start creates the tables of the service and starts the relay, with the configuration of the README.
func (w *writersTarget) start() {
	w.t.Helper()
	blocks := fences(w.t, "writers/README.md", "yaml")
	if len(blocks) != 3 {
		w.t.Fatalf("%d configurations in the README, want that of the table, of Debezium's and of the sink", len(blocks))
	}
	outboxes := blocks[0]
	if !w.stateful {
		outboxes = blocks[1]
		initOutbox(w.t, "debezium", w.database)
	}
	switch {
	case w.db != nil:
		if w.stateful {
			mongosh(w.t, w.db, readFile(w.t, deployFile("writers/mongodb.js")), "")
		}
		outboxes = strings.Replace(outboxes, "id: id", "id: _id", 1)
	case w.stateful:
		w.exec(readFile(w.t, deployFile("writers/"+map[bool]string{true: "postgres", false: "mysql"}[w.conn.kind.postgres]+".sql")))
	default:
		w.exec("ALTER TABLE outbox ADD COLUMN traceparent VARCHAR(255)")
	}
	if w.db != nil {
		limit := bson.D{{Key: "collMod", Value: "outbox"}, {Key: "validator", Value: bson.M{"type": bson.M{"$regex": "^.{1,255}$"}}}}
		if err := w.db.RunCommand(context.Background(), limit).Err(); err != nil {
			w.t.Fatal(err)
		}
	} else {
		w.exec("CREATE TABLE orders (id VARCHAR(100) PRIMARY KEY, status VARCHAR(20) NOT NULL)")
	}
	w.to = sinktest.NewReceiver(w.t)
	w.to.Script(w.receive)
	w.relay = start(w.t, fmt.Sprintf("name: %s\nsource: {mode: stream, url: %q}\nadmin: {listen: %s}\n", nameFor(w.database), w.database, adminKey)+
		outboxes+strings.Replace(blocks[2], "https://shop.example/events", w.to.URL(), 1))
}

func (w *writersTarget) exec(script string) {
	w.t.Helper()
	w.conn.kind.run(w.t, w.database, script)
}

func (w *writersTarget) receive(r *sinktest.Request) sinktest.Answer {
	var row writtenRow
	if err := json.Unmarshal(r.Body, &row); err != nil {
		w.t.Errorf("body %q: %v", r.Body, err)
	}
	row.headers = r.Header
	w.mu.Lock()
	defer w.mu.Unlock()
	w.got[row.Order] = append(w.got[row.Order], row)
	return sinktest.Answer{Status: http.StatusNoContent}
}

// writeWith writes with all writers of a language that know the database.
func (w *writersTarget) writeWith(t *testing.T, s *service, l *language) {
	t.Helper()
	database, err := url.Parse(w.database)
	if err != nil {
		t.Fatal(err)
	}
	for _, writer := range l.writers {
		if at := writer.url(database); at != "" {
			w.write(t, s, writer.name, at)
		}
	}
}

// write writes the rows of one order: transactions of two rows, every other one of which fails after
// its rows.
func (w *writersTarget) write(t *testing.T, s *service, name, at string) {
	t.Helper()
	order := fmt.Sprintf("%s-%s", w.name, name)
	w.insertOrder(t, order)
	for i := range writerTransactions {
		kept := i%2 == 0
		form := url.Values{
			"writer": {name}, "url": {at}, "order": {order}, "status": {fmt.Sprint("status ", i)}, "type": {"OrderChanged", "StockReserved"},
		}
		for n := range 2 {
			text, err := json.Marshal(writtenRow{Order: order, N: 2*i + n, Kept: kept})
			if err != nil {
				t.Fatal(err)
			}
			form.Add("payload", string(text))
		}
		if i > 0 {
			form.Set("traceparent", traceparent(i))
		}
		want, reason := http.StatusOK, ""
		if !kept {
			want, reason = http.StatusConflict, w.fail(form)
		}
		if status, text, err := s.post("/write", form); err != nil || status != want || !strings.Contains(text, reason) {
			t.Fatalf("%s, transaction %d: status %d, %q, %v; want %d", order, i, status, text, err, want)
		}
	}
}

// fail makes a transaction fail after its rows, with an error that has the text. MongoDB's writers read
// all events before they begin, so that there a document is refused.
func (w *writersTarget) fail(form url.Values) (text string) {
	if w.db == nil {
		form.Set("fail", "true")
		return "fails after its rows"
	}
	form.Add("type", strings.Repeat("x", 256))
	form.Add("payload", "{}")
	return "failed validation"
}

// writerTransactions is the number of transactions for an order. The last one commits, so that its
// rows arrive behind all others.
const writerTransactions = 7

func traceparent(i int) string { return fmt.Sprintf("00-%032x-%016x-01", i, i) }

func (w *writersTarget) insertOrder(t *testing.T, order string) {
	t.Helper()
	var err error
	if w.db != nil {
		_, err = w.db.Collection("orders").InsertOne(context.Background(), bson.M{"_id": order, "status": "new"})
	} else {
		_, err = w.conn.exec("INSERT INTO orders (id, status) VALUES ($1, 'new')", order)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// orders returns the status of all orders.
func (w *writersTarget) orders() map[string]string {
	w.t.Helper()
	all := map[string]string{}
	if w.db == nil {
		err := w.conn.each("SELECT id, status FROM orders", nil, func(scan func(...any) error) error {
			var id, status string
			err := scan(&id, &status)
			all[id] = status
			return err
		})
		if err != nil {
			w.t.Fatal(err)
		}
		return all
	}
	var documents []struct {
		ID     string `bson:"_id"`
		Status string
	}
	cursor, err := w.db.Collection("orders").Find(context.Background(), bson.M{})
	if err == nil {
		err = cursor.All(context.Background(), &documents)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	for _, d := range documents {
		all[d.ID] = d.Status
	}
	return all
}

// check waits for the rows of all orders, and checks them.
func (w *writersTarget) check() {
	w.t.Helper()
	orders := w.orders()
	const committed = (writerTransactions + 1) / 2
	arrive(w.t, w.to, len(orders)*committed*2)
	if w.stateful {
		awaitZero(w.t, "rows have no sent_at", func() int { return w.count("sent_at IS NULL OR error IS NOT NULL", bson.M{"sent_at": nil}) })
	}
	expectStop(w.t, w.relay)
	if got, want := w.count("1 = 1", bson.M{}), len(orders)*committed*2; got != want {
		w.t.Errorf("%s: %d rows in the outbox, want %d: those of transactions that committed", w.name, got, want)
	}
	for _, order := range slices.Sorted(maps.Keys(orders)) {
		if want := fmt.Sprint("status ", writerTransactions-1); orders[order] != want {
			w.t.Errorf("%s: status %q, want %q: the last one that committed", order, orders[order], want)
		}
		w.checkRows(order, w.got[order])
	}
}

// checkRows checks the arrived rows of an order.
func (w *writersTarget) checkRows(order string, rows []writtenRow) {
	w.t.Helper()
	want := 0
	for i, row := range rows {
		if !row.Kept || row.N != want {
			w.t.Errorf("%s: row %d (committed: %t) arrived at position %d, want row %d", order, row.N, row.Kept, i, want)
		}
		if want++; want%4 == 2 {
			want += 2 // the transaction that was rolled back
		}
		expect := map[string]string{"Sluicebox-Kind": "order", "Sluicebox-Type": []string{"OrderChanged", "StockReserved"}[row.N%2], "Sluicebox-Group": w.group(order)}
		if row.N > 1 {
			expect["Traceparent"] = traceparent(row.N / 2)
		}
		for name, value := range expect {
			if got := row.headers.Get(name); got != value {
				w.t.Errorf("%s: row %d has %s %q, want %q", order, row.N, name, got, value)
			}
		}
	}
}

// group is the message group of an order.
func (w *writersTarget) group(order string) string { return "order/" + order }

// count counts rows of the outbox.
func (w *writersTarget) count(where string, filter bson.M) int {
	w.t.Helper()
	if w.db == nil {
		return count(w.t, w.conn, "SELECT count(*) FROM outbox WHERE "+where)
	}
	n, err := w.db.Collection("outbox").CountDocuments(context.Background(), filter)
	if err != nil {
		w.t.Fatal(err)
	}
	return int(n)
}
