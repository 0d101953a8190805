package blackbox

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// topics relays a table to a topic of Kafka, and keeps the receipts.
const topics = `
name: %s
source: {url: %q, mode: stream}
outboxes:
  - table: orders
    layout: custom
    kind: order
    sink: bus
    state: timestamps
    columns: {id: id, group: customer, payload: body, claimed: taken_at, delivered: sent_at, failed: dead_at, retry-count: tries, error: why}
    record: {partition: at_partition, offset: at_offset}
    order-by: [id]
sinks:
  bus: {type: kafka, brokers: [%s], topic: orders, headers: {id: '{id}'}, request-timeout: %s, backoff: {initial: 50ms, max: 500ms}}
admin: {listen: %s}
`

const ordersTable = `CREATE TABLE orders (id BIGSERIAL PRIMARY KEY, customer TEXT, body TEXT, taken_at TIMESTAMPTZ, sent_at TIMESTAMPTZ,
	dead_at TIMESTAMPTZ, tries INT NOT NULL DEFAULT 0, why TEXT, at_partition INT, at_offset BIGINT)`

// bus is a database with an outbox, and a cluster with its topic.
type bus struct {
	t        *testing.T
	database string
	conn     *conn
	cluster  *servers.KafkaCluster
	admin    *kadm.Client
	config   string
}

// newBus starts a broker with these settings. timeout is that of the relay's requests.
func newBus(t *testing.T, timeout string, settings map[string]string) *bus {
	t.Helper()
	b := &bus{t: t, database: servers.Database(t, 15), cluster: servers.Kafka(t, 1, settings)}
	servers.Exec(t, b.database, ordersTable)
	b.conn = connect(t, b.database)
	client, err := kgo.NewClient(kgo.SeedBrokers(b.cluster.Addresses()...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	b.admin = kadm.NewClient(client)
	if _, err := b.admin.CreateTopic(b.context(), 3, 1, nil, "orders"); err != nil {
		t.Fatal(err)
	}
	b.config = fmt.Sprintf(topics, nameFor(b.database), b.database, strings.Join(b.cluster.Addresses(), ", "), timeout, adminKey)
	return b
}

func (b *bus) context() context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.t.Context()), testTimeout)
	b.t.Cleanup(cancel)
	return ctx
}

// run starts a relay and waits until it reads.
func (b *bus) run() *relay {
	b.t.Helper()
	r := start(b.t, b.config)
	r.waitFor("source connected")
	return r
}

// write inserts rows until stop. Each writer has customers of its own, so that the order of the
// ids of a customer is that of the commits.
func (b *bus) write() (stop func()) {
	const writers, customers = 4, 25
	var stopped atomic.Bool
	var all sync.WaitGroup
	for w := range writers {
		c := servers.Connect(b.t, b.database)
		all.Go(func() {
			for !stopped.Load() {
				_, err := c.Exec(context.Background(), `INSERT INTO orders (customer, body) SELECT format('%s-%s', $1::int, i % $2), repeat('x', 100) FROM generate_series(1, 10 + (random() * 50)::int) i`, w, customers)
				if err != nil {
					b.t.Error(err)
					return
				}
				<-time.After(20 * time.Millisecond) // a rate that a busy machine sustains
			}
		})
	}
	return sync.OnceFunc(func() {
		stopped.Store(true)
		all.Wait()
	})
}

// expectAll waits until all rows are delivered, and checks the order in which a consumer gets
// the rows of each customer, and the receipts. It returns how many records a consumer gets more
// than once.
func (b *bus) expectAll() (rows, again int) {
	b.t.Helper()
	awaitZero(b.t, "rows are not delivered", func() int {
		return count(b.t, b.conn, "SELECT count(*) FROM orders WHERE sent_at IS NULL")
	})
	last, arrived, places := map[string]int{}, map[int]bool{}, map[string]int{}
	for _, r := range b.records() {
		id, err := strconv.Atoi(string(r.Headers[0].Value))
		if err != nil {
			b.t.Fatal(err)
		}
		places[fmt.Sprint(r.Partition, "-", r.Offset)] = id
		customer := string(r.Key)
		switch {
		case arrived[id]:
			again++
		case id < last[customer]:
			b.t.Fatalf("row %d of customer %s arrives behind row %d", id, customer, last[customer])
		default:
			arrived[id], last[customer] = true, id
		}
	}
	rows = count(b.t, b.conn, "SELECT count(*) FROM orders")
	if len(arrived) != rows {
		b.t.Errorf("%d of %d rows arrived", len(arrived), rows)
	}
	found, err := b.conn.QueryContext(b.context(), "SELECT id, at_partition, at_offset FROM orders")
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = found.Close() }()
	for found.Next() {
		var id, partition, offset int
		if err := found.Scan(&id, &partition, &offset); err != nil {
			b.t.Fatal(err)
		}
		if at := places[fmt.Sprint(partition, "-", offset)]; at != id {
			b.t.Fatalf("the receipt of row %d is that of row %d", id, at)
		}
	}
	return rows, again
}

// records returns all records of the topic.
func (b *bus) records() (all []*kgo.Record) {
	b.t.Helper()
	ctx := b.context()
	ends, err := b.admin.ListEndOffsets(ctx, "orders")
	if err != nil {
		b.t.Fatal(err)
	}
	left := int64(0)
	ends.Each(func(o kadm.ListedOffset) { left += o.Offset })
	consumer, err := kgo.NewClient(kgo.SeedBrokers(b.cluster.Addresses()...), kgo.ConsumeTopics("orders"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		b.t.Fatal(err)
	}
	defer consumer.Close()
	for int64(len(all)) < left {
		fetched := consumer.PollFetches(ctx)
		if err := fetched.Err0(); err != nil {
			b.t.Fatal(err)
		}
		all = append(all, fetched.Records()...)
	}
	return all
}

// Rows reach a topic of Kafka once and in the order of their group, while the broker is killed
// and frozen and the relay is killed. Only faults make rows arrive twice.
func TestKafkaUnderLoad(t *testing.T) {
	t.Parallel()
	b := newBus(t, "1s", nil)
	r := b.run()
	stop := b.write()
	defer stop()
	delivered := func(rows int) {
		t.Helper()
		from := count(t, b.conn, "SELECT count(*) FROM orders WHERE sent_at IS NOT NULL")
		within(t, testTimeout, func() string {
			if n := count(t, b.conn, "SELECT count(*) FROM orders WHERE sent_at IS NOT NULL"); n < from+rows {
				return fmt.Sprintf("%d rows are delivered, want %d", n-from, rows)
			}
			return ""
		})
	}
	delivered(1000)
	broker := b.cluster.Brokers[0]
	for range crashes(t, 1) {
		for _, fault := range []func(){
			func() { broker.Stop("immediate"); broker.Restart(nil) },
			func() {
				broker.Signal(syscall.SIGSTOP)
				<-time.After(time.Second + time.Duration(rand.Int64N(int64(2*time.Second)))) // longer than request-timeout
				broker.Signal(syscall.SIGCONT)
			},
			func() { r.kill(); r = b.run() },
		} {
			fault()
			delivered(1000)
		}
	}
	stop()
	rows, again := b.expectAll()
	t.Logf("%d rows in order, %d arrived again", rows, again)
	expectStop(t, r)
}

// Without a fault no row arrives twice, the rows of one group included. To measure a hot group:
//
//	SLUICEBOX_TEST_ROWS=100000 go test -v -run 'TestKafkaOnce' ./cmd/internal/blackbox
func TestKafkaOnce(t *testing.T) {
	t.Parallel()
	// Of a busy machine a broker that answers late is no fault.
	b := newBus(t, "1m", map[string]string{"broker.session.timeout.ms": "60000"})
	r := b.run()
	rows := many(t, 20_000)
	servers.Exec(t, b.database, fmt.Sprintf(`INSERT INTO orders (customer, body) SELECT 'hot', repeat('x', 500) FROM generate_series(1, %d) i`, rows))
	began := time.Now()
	awaitZero(t, "rows are not delivered", func() int { return count(t, b.conn, "SELECT count(*) FROM orders WHERE sent_at IS NULL") })
	took := time.Since(began)
	if all, again := b.expectAll(); all != rows || again != 0 {
		t.Errorf("%d rows of %d arrived, %d more than once", all, rows, again)
	}
	t.Logf("%d rows of one group in %s: %.0f rows/s", rows, took.Round(time.Millisecond), float64(rows)/took.Seconds())
	out, errs, code := r.sluicebox("doctor")
	if code != 0 || !strings.Contains(out, "topic orders: 3 partitions") {
		t.Errorf("doctor ends with %d:\n%s%s", code, out, errs)
	}
	expectStop(t, r)
}
