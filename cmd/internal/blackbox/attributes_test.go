package blackbox

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// orders relays the events of orders to a webhook, as CloudEvents.
const orders = `
name: %s
source: {url: %q}
outboxes:
  - table: orders
    layout: custom
    sink: hooks
    state: timestamps
    columns: {id: row_key, group: order_id, payload: body, delivered: sent_at, failed: dead_at, retry-count: tries, %s}
    order-by: [made, row_key]
%s
sinks:
  hooks:
    type: webhook
    url: %s
    format: cloudevents
    cloudevents-source: /shop
    max-retries: 4
    backoff: {initial: 20ms, max: 100ms}
%s
admin: {listen: %s}
`

// The types of an order's events, in their order.
func orderEvents() []string { return []string{"created", "paid", "shipped"} }

// The events of an order have one group and a type each. They arrive in the order of their
// commits, whatever their types are and whichever of them the receiver refuses. Each request
// has the type of its row.
func TestTypesKeepTheOrder(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ column, outbox, sink string }{
		"type": {
			"type: event, time: happened_at, attributes: [tenant]", "    kind: order",
			"    headers: {ce-tenant: '{attr.tenant}', X-Type: '{kind}.{type}'}\n    metadata-headers: [kind]",
		},
		"kind": {"kind: event", "", "    metadata-headers: [kind]"},
	} {
		for _, refuses := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, refusals=%t", name, refuses), func(t *testing.T) {
				t.Parallel()
				onOrders(t, servers.Spread(t, hosts()), func(t *testing.T, o orderTable) {
					s := newOrders(t, o, refuses)
					s.start(c.column, c.outbox, c.sink)
					s.insert(orderEvents()...)
					s.check(name == "type")
				})
			})
		}
	}
}

// Attributes are read again with a payload that left memory, with the rows that another relay
// finds after a crash, and for a replay.
func TestTypesAreReadAgain(t *testing.T) {
	t.Parallel()
	onOrders(t, mysqlHosts(t), func(t *testing.T, o orderTable) {
		s := newOrders(t, o, false)
		s.down.Store(true)
		relay := func() *relay {
			return s.start("type: event, time: happened_at, attributes: [tenant]", "    kind: order",
				"    headers: {ce-tenant: '{attr.tenant}', X-Type: '{kind}.{type}'}\n    metadata-headers: [kind]\n    buffer-bytes: 1kB")
		}
		first := relay()
		s.insert("created", "paid")
		first.waitFor("circuit breaker opened")
		first.kill()
		s.insert("shipped")
		s.down.Store(false)
		second := relay()
		s.check(true)

		clear(s.headers)
		job := second.replay("--since=1h", "--source=table")
		s.checkArrivals(true, func(r *sinktest.Received) bool { return r.Replay == job.ID })
	})
}

// orderScene is a relay between the table of orders and a receiver.
type orderScene struct {
	orderTable
	t       *testing.T
	to      *sinktest.Receiver
	refuses bool
	down    atomic.Bool // the receiver is unavailable

	mu       sync.Mutex
	attempts map[string]int
	headers  map[string]http.Header // of the last attempt of a row
}

// allOrders is the number of orders, each with all events.
const allOrders = 60

// deadOrder is the order whose second event is never accepted.
const deadOrder = 7

// orderRow is an event of an order.
type orderRow struct {
	order  int
	event  string
	tenant string // "" for none
}

// orderTable is a table or collection of orders.
type orderTable struct {
	source string
	// insertRows commits rows, in their order.
	insertRows func(rows []orderRow)
	// counts returns the number of unsettled rows and of rows that have failed.
	counts func() (unsettled, failed int)
}

// onOrders runs a test on the table of orders, on an SQLite file, on MongoDB and on servers.
func onOrders(t *testing.T, all []host, test func(*testing.T, orderTable)) {
	t.Helper()
	ddl := func(number, at, now, body string) string {
		return fmt.Sprintf(`CREATE TABLE orders (
			row_key %[1]s, order_id VARCHAR(64) NOT NULL, event VARCHAR(64) NOT NULL, tenant VARCHAR(64), happened_at %[2]s NOT NULL,
			body %[3]s NOT NULL, made %[2]s NOT NULL DEFAULT %[4]s, sent_at %[2]s, dead_at %[2]s, tries INT NOT NULL DEFAULT 0)`, number, at, body, now)
	}
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		test(t, ordersOf(sqliteTable(t, ddl("INTEGER PRIMARY KEY", "DATETIME", "(strftime('%Y-%m-%d %H:%M:%f', 'now'))", "TEXT"))))
	})
	t.Run("mongo", func(t *testing.T) {
		t.Parallel()
		chooseMongo(t)
		test(t, orderDocuments(t, servers.Mongo(t)))
	})
	onHosts(t, all, func(t *testing.T, h host) {
		text := ddl("BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY", "timestamptz", "now()", "jsonb")
		if !h.kind.postgres {
			text = ddl("BIGINT AUTO_INCREMENT PRIMARY KEY", "datetime(6)", "now(6)", "json")
		}
		test(t, ordersOf(hostTable(t, h, h.database(t), text)))
	})
}

// ordersOf returns the table of orders of a database.
func ordersOf(d deliveries) orderTable {
	insert := func(rows []orderRow) {
		values := make([]string, len(rows))
		for i, r := range rows {
			tenant := "NULL"
			if r.tenant != "" {
				tenant = "'" + r.tenant + "'"
			}
			values[i] = fmt.Sprintf(`('order %d', '%s', %s, '2026-01-02 03:04:05', '{"order": %[1]d, "event": "%[2]s"}')`, r.order, r.event, tenant)
		}
		d.exec("INSERT INTO orders (order_id, event, tenant, happened_at, body) VALUES " + strings.Join(values, ", "))
	}
	return orderTable{d.source, insert, func() (unsettled, failed int) {
		return d.count("SELECT count(*) FROM orders WHERE sent_at IS NULL AND dead_at IS NULL"), d.count("SELECT count(*) FROM orders WHERE dead_at IS NOT NULL")
	}}
}

// orderDocuments returns a collection of orders. Its documents lack what is not known yet.
func orderDocuments(t *testing.T, source string) orderTable {
	t.Helper()
	in := servers.OpenMongo(t, source).Collection("orders")
	key := mongo.IndexModel{Keys: bson.M{"row_key": 1}, Options: options.Index().SetUnique(true)}
	if _, err := in.Indexes().CreateOne(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	count := func(filter bson.M) int {
		n, err := in.CountDocuments(t.Context(), filter)
		if err != nil {
			t.Fatal(err)
		}
		return int(n)
	}
	insert := func(rows []orderRow) {
		documents := make([]any, len(rows))
		for i, r := range rows {
			doc := bson.M{
				"row_key": bson.NewObjectID(), "order_id": fmt.Sprintf("order %d", r.order), "event": r.event, "made": time.Now(),
				"happened_at": time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), "body": bson.D{{Key: "order", Value: r.order}, {Key: "event", Value: r.event}},
			}
			if r.tenant != "" {
				doc["tenant"] = r.tenant
			}
			documents[i] = doc
		}
		if _, err := in.InsertMany(t.Context(), documents); err != nil {
			t.Fatal(err)
		}
	}
	return orderTable{source, insert, func() (unsettled, failed int) {
		return count(bson.M{"sent_at": nil, "dead_at": nil}), count(bson.M{"dead_at": bson.M{"$ne": nil}})
	}}
}

func newOrders(t *testing.T, o orderTable, refuses bool) *orderScene {
	t.Helper()
	s := &orderScene{
		t: t, orderTable: o, to: sinktest.NewReceiver(t), refuses: refuses,
		attempts: map[string]int{}, headers: map[string]http.Header{},
	}
	s.to.Script(s.answer)
	return s
}

// answer refuses some events of some orders: the first of every third twice, the second of
// every fifth once without a fault of the row, and the second of one order always.
func (s *orderScene) answer(r *sinktest.Request) sinktest.Answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := r.Items[0].ID
	s.attempts[id]++
	s.headers[id] = r.Header
	switch {
	case s.down.Load():
		return sinktest.Answer{Status: http.StatusServiceUnavailable}
	case !s.refuses:
		return sinktest.Answer{}
	}
	order, event := parseOrder(s.t, &r.Items[0])
	switch n := s.attempts[id]; {
	case order == deadOrder && event == "paid":
		return sinktest.Answer{Status: http.StatusUnprocessableEntity}
	case order%3 == 0 && event == "created" && n <= 2:
		return sinktest.Answer{Status: http.StatusInternalServerError}
	case order%5 == 0 && event == "paid" && n == 1:
		return sinktest.Answer{Status: http.StatusServiceUnavailable}
	}
	return sinktest.Answer{}
}

// parseOrder returns the order and the event in a payload.
func parseOrder(t *testing.T, r *sinktest.Received) (order int, event string) {
	text := strings.NewReplacer(" ", "", `"`, "").Replace(string(r.Payload))
	for field := range strings.SplitSeq(strings.Trim(text, "{}"), ",") {
		if value, ok := strings.CutPrefix(field, "event:"); ok {
			event = value
		} else if _, err := fmt.Sscanf(field, "order:%d", &order); err != nil {
			t.Errorf("payload %s: %v", r.Payload, err)
		}
	}
	return order, event
}

// start starts a relay.
func (s *orderScene) start(column, outbox, sink string) *relay {
	s.t.Helper()
	r := start(s.t, fmt.Sprintf(orders, nameFor(s.source), s.source, column, outbox, s.to.URL()+"/orders", sink, adminKey))
	r.waitFor("source connected")
	return r
}

// insert commits these events of all orders, each in a transaction with those of others.
func (s *orderScene) insert(events ...string) {
	s.t.Helper()
	for _, event := range events {
		for from := 0; from < allOrders; from += 20 {
			var rows []orderRow
			for order := from; order < from+20; order++ {
				r := orderRow{order: order, event: event}
				if order%2 == 0 {
					r.tenant = fmt.Sprintf("tenant %d", order)
				}
				rows = append(rows, r)
			}
			s.insertRows(rows)
		}
	}
}

// check waits until all rows are settled, and compares what has arrived.
func (s *orderScene) check(typed bool) {
	s.t.Helper()
	dead := 0
	if s.refuses {
		dead = 1
	}
	awaitZero(s.t, "rows are not settled", func() int {
		unsettled, _ := s.counts()
		return unsettled
	})
	if _, n := s.counts(); n != dead {
		s.t.Errorf("%d rows have failed, want %d", n, dead)
	}

	s.checkArrivals(typed, func(*sinktest.Received) bool { return true })
}

// checkArrivals compares the rows that have arrived.
func (s *orderScene) checkArrivals(typed bool, of func(*sinktest.Received) bool) {
	s.t.Helper()
	arrived := map[int][]string{}
	for _, r := range s.to.Accepted() {
		if !of(&r) {
			continue
		}
		order, event := parseOrder(s.t, &r)
		arrived[order] = append(arrived[order], event)
		s.checkHeaders(&r, order, event, typed)
	}
	for order := range allOrders {
		want := orderEvents()
		if order == deadOrder && s.refuses {
			want = []string{"created", "shipped"}
		}
		if !slices.Equal(arrived[order], want) {
			s.t.Errorf("order %d: %v has arrived, want %v", order, arrived[order], want)
		}
	}
}

// checkHeaders compares the headers of a request with its row.
func (s *orderScene) checkHeaders(r *sinktest.Received, order int, event string, typed bool) {
	s.t.Helper()
	want := map[string]string{"Ce-Type": event, "Ce-Subject": fmt.Sprintf("order%%20%d", order), "Sluicebox-Kind": event, "Ce-Tenant": "", "X-Type": ""}
	if typed {
		want["Sluicebox-Kind"], want["X-Type"], want["Ce-Time"] = "order", "order."+event, "2026-01-02T03:04:05Z"
		if order%2 == 0 {
			want["Ce-Tenant"] = fmt.Sprintf("tenant%%20%d", order)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, value := range want {
		if got := s.headers[r.ID].Get(name); got != value {
			s.t.Errorf("order %d, %s: header %s is %q, want %q", order, event, name, got, value)
		}
	}
}
