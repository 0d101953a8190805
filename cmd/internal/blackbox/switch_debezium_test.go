package blackbox

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// routerConfig makes the records of the engine of servers.Debezium.
const routerConfig = `
name: %s
source: {mode: stream, url: %q}
outboxes: [{table: outbox, layout: debezium, sink: bus}]
sinks:
  bus:
    type: kafka
    brokers: [%s]
    topic: 'outbox.event.{kind}'
    format: debezium
    debezium: {key-converter: json, value-converter: json, header-converter: json}
admin: {listen: %s}
`

// nowhere is an address where nothing listens: a relay with this broker sends nothing.
const nowhere = "127.0.0.1:1"

// routerTopic is the topic of all rows of debeziumCase.
const routerTopic = "outbox.event.order"

// routerSwitch is a database with an outbox whose rows Debezium or a relay sends to Kafka.
type routerSwitch struct {
	*layoutScene
	debezium *servers.DebeziumEngine
	cluster  *servers.KafkaCluster
	consumer *kgo.Client
	records  []*kgo.Record
	ids      map[string]bool // of records
}

func newRouterSwitch(t *testing.T) *routerSwitch {
	t.Helper()
	database := servers.Database(t, 15)
	w := &routerSwitch{
		layoutScene: &layoutScene{layoutCase: debeziumCase(false), t: t, source: database, table: "outbox", conn: connect(t, database)},
		ids:         map[string]bool{},
	}
	initOutbox(t, "debezium", database)
	// All databases of a server share the names of slots.
	settings := map[string]string{
		"slot.name": w.slot(), "publication.name": w.slot(),
		"message.prefix.exclude.list": nameFor(database) + "[.].*", // the relay's marks
	}
	w.cluster = servers.Kafka(t, 1, nil)
	var err error
	w.consumer, err = kgo.NewClient(kgo.SeedBrokers(w.cluster.Addresses()...), kgo.ConsumeTopics(routerTopic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.consumer.Close)
	if _, err := kadm.NewClient(w.consumer).CreateTopic(t.Context(), 3, 1, nil, routerTopic); err != nil {
		t.Fatal(err)
	}
	w.debezium = servers.Debezium(t, database, w.cluster.Addresses(), settings)
	w.awaitSlot()
	return w
}

// slot is the name of Debezium's slot.
func (w *routerSwitch) slot() string { return "debezium_" + nameFor(w.source) }

// awaitSlot waits until Debezium reads its slot.
func (w *routerSwitch) awaitSlot() {
	w.t.Helper()
	within(w.t, testTimeout, func() string {
		if count(w.t, w.conn, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND active", w.slot()) == 0 {
			return "Debezium does not read its slot"
		}
		return ""
	})
}

// config is the relay's configuration with these brokers.
func (w *routerSwitch) config(brokers ...string) string {
	return fmt.Sprintf(routerConfig, nameFor(w.source), w.source, strings.Join(brokers, ", "), adminKey)
}

// rows returns the ids of all committed rows.
func (w *routerSwitch) rows() []string {
	w.t.Helper()
	ids, err := w.conn.texts("SELECT id::text FROM outbox")
	if err != nil {
		w.t.Fatal(err)
	}
	return ids
}

// fetch takes the next records of the topic.
func (w *routerSwitch) fetch(what string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	fetched := w.consumer.PollRecords(ctx, 0)
	if err := fetched.Err0(); err != nil {
		w.t.Fatalf("%s; %d records: %v", what, len(w.records), err)
	}
	for _, r := range fetched.Records() {
		w.records = append(w.records, r)
		w.ids[headerOf(r, "id")] = true
	}
}

// headerOf returns a header of a record, which a JSON converter puts in quotes.
func headerOf(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return strings.Trim(string(h.Value), `"`)
		}
	}
	return ""
}

// awaitMore waits for records of rows that had none.
func (w *routerSwitch) awaitMore(rows int) {
	w.t.Helper()
	for want := len(w.ids) + rows; len(w.ids) < want; {
		w.fetch(fmt.Sprintf("%d rows have arrived, want %d", len(w.ids), want))
	}
}

// awaitRows waits until all of these rows have arrived.
func (w *routerSwitch) awaitRows(ids []string) {
	w.t.Helper()
	for _, id := range ids {
		for !w.ids[id] {
			w.fetch("row " + id + " has not arrived")
		}
	}
}

// check compares the first arrivals of each key with the order of commits, and records of one row with
// each other. It returns how many records came again, and how many first ones behind a later row.
func (w *routerSwitch) check() (again, late int) {
	w.t.Helper()
	first, last := map[string]*kgo.Record{}, map[int]int{}
	for _, r := range w.records {
		id := headerOf(r, "id")
		if before := first[id]; before != nil {
			again++
			w.compare(before, r)
			continue
		}
		first[id] = r
		var text string
		var row layoutRow
		if err := json.Unmarshal(r.Value, &text); err != nil {
			w.t.Fatalf("value %s: %v", r.Value, err)
		}
		if err := json.Unmarshal([]byte(text), &row); err != nil {
			w.t.Fatalf("value %s: %v", r.Value, err)
		}
		if row.N < last[row.Group] {
			late++
		}
		last[row.Group] = max(last[row.Group], row.N)
	}
	for _, id := range w.rows() {
		if first[id] == nil {
			w.t.Errorf("row %s is lost", id)
		}
	}
	return again, late
}

// compare expects that two records of a row have the same bytes, whoever sent them.
func (w *routerSwitch) compare(a, b *kgo.Record) {
	w.t.Helper()
	same := func(x, y kgo.RecordHeader) bool { return x.Key == y.Key && bytes.Equal(x.Value, y.Value) }
	for _, r := range []*kgo.Record{a, b} { // of the engine, not of the router
		r.Headers = slices.DeleteFunc(r.Headers, func(h kgo.RecordHeader) bool { return strings.HasPrefix(h.Key, "__debezium.") })
	}
	if a.Partition != b.Partition || !bytes.Equal(a.Key, b.Key) || !bytes.Equal(a.Value, b.Value) || !slices.EqualFunc(a.Headers, b.Headers, same) {
		w.t.Errorf("two records of a row differ:\n%d %s %s %s\n%d %s %s %s", a.Partition, a.Key, a.Value, a.Headers, b.Partition, b.Key, b.Value, b.Headers)
	}
}

// pass lets one sender send for a while.
func (w *routerSwitch) pass() {
	w.t.Helper()
	w.awaitMore(many(w.t, 1000))
}

// A table is switched from a real Debezium to the relay and back, while services write, in both ways of
// deploy/migrate.md: no row is lost, and only rows that commit while both read the log arrive twice,
// with the same bytes. In order: the new sender begins behind the old one, and the first records of
// each key are in order. At once: both send, and a first record may come behind a later row's.
//
// Debezium is fetched by its name only. With 10000 rows of each sender:
//
//	SLUICEBOX_TEST_ROWS=10000 store/storetest/servers/servers.sh exec pg15 kafka debezium -- go test -v -run TestSwitchFromDebezium ./cmd/internal/blackbox
func TestSwitchFromDebezium(t *testing.T) {
	t.Parallel()
	servers.RequireDebezium(t)
	for name, test := range map[string]func(w *routerSwitch) (most int){"in order": (*routerSwitch).inOrder, "at once": (*routerSwitch).atOnce} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newRouterSwitch(t)
			began := time.Now()
			stopWriters := w.writeOn()
			w.pass()
			most := test(w)
			w.pass()
			stopWriters()
			rows := w.rows()
			w.awaitRows(rows)
			w.debezium.Stop("fast")
			again, late := w.check()
			t.Logf("%d rows in %s, all arrived; %d records came again, of at most %d; %d first records came late",
				len(rows), time.Since(began).Round(time.Second), again, most, late)
			if again > most || again == 0 {
				t.Errorf("%d records came again, want some, and at most the %d rows of the times with two readers", again, most)
			}
			if name == "in order" && late > 0 {
				t.Errorf("%d records came behind a later row of their key", late)
			}
		})
	}
}

// inOrder switches to the relay and back. It returns the number of rows that committed while both had a
// slot.
func (w *routerSwitch) inOrder() (most int) {
	w.t.Helper()
	// The relay gets its slot, and sends nothing.
	before := len(w.rows())
	held := start(w.t, w.config(nowhere))
	held.waitFor("source connected")
	w.awaitRows(w.rows())
	w.debezium.Stop("fast")
	most += len(w.rows()) - before
	expectStop(w.t, held)
	w.dropSlot()
	r := start(w.t, w.config(w.cluster.Addresses()...))
	w.pass()

	// Debezium gets a slot, and sends nothing.
	before = len(w.rows())
	if _, err := w.conn.exec("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", w.slot()); err != nil {
		w.t.Fatal(err)
	}
	w.awaitRows(w.rows())
	expectStop(w.t, r)
	most += len(w.rows()) - before
	w.debezium.Forget()
	w.debezium.Restart(nil)
	return most
}

// atOnce is inOrder with two senders.
func (w *routerSwitch) atOnce() (most int) {
	w.t.Helper()
	before := len(w.rows())
	r := start(w.t, w.config(w.cluster.Addresses()...))
	r.waitFor("source connected")
	w.awaitRows(w.rows())
	w.debezium.Stop("fast")
	most += len(w.rows()) - before
	w.dropSlot()
	w.pass()

	before = len(w.rows())
	w.debezium.Forget()
	w.debezium.Restart(nil)
	w.awaitSlot()
	w.awaitRows(w.rows())
	expectStop(w.t, r)
	return most + len(w.rows()) - before
}

func (w *routerSwitch) dropSlot() {
	w.t.Helper()
	if _, err := w.conn.exec("SELECT pg_drop_replication_slot($1)", w.slot()); err != nil {
		w.t.Fatal(err)
	}
}
