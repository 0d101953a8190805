package kafka_test

import (
	"cmp"
	"context"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/capture/kafka"
	"github.com/sluicebox/sluicebox/capture/kafka/feed"
	"github.com/sluicebox/sluicebox/capture/postgres"
	"github.com/sluicebox/sluicebox/store"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

const createTable = `CREATE TABLE outbox_events (
	id text PRIMARY KEY, message_group text, payload text, status text NOT NULL DEFAULT 'PENDING',
	retry_count int NOT NULL DEFAULT 0, created_at timestamptz NOT NULL DEFAULT now(),
	processed_at timestamptz, error_message text, headers text); CREATE TABLE unrelated (n int)`

func outboxes() []store.Outbox {
	layout := store.FlowCatalyst()
	layout.Attributes = []store.AttributeColumn{{Name: "headers", Column: "headers"}}
	return []store.Outbox{{Name: "shop", Table: "outbox_events", Layout: layout, Kind: "EVENT"}}
}

// rig is a database and a topic, which a feeder fills.
type rig struct {
	url, name  string
	cluster    *servers.KafkaCluster
	admin      *kadm.Client
	partitions int
	replicas   int  // 0 is 1
	batchRows  int  // of the database's source; 0 is 30
	waits      bool // a commit waits until the topic has its rows

	tables *pgstore.Store              // of the feeder
	marker *postgres.Source            // writes markers for shards
	feeder atomic.Pointer[feed.Feeder] // a test may start another one while rows are written

	connected chan struct{} // holds a signal once the feeder reads

	mu    sync.Mutex
	conns []net.Conn // of sources
	stop  func()
}

// newRig starts a feeder.
func newRig(t testing.TB, c *servers.KafkaCluster, url string, partitions int) *rig {
	t.Helper()
	r := &rig{url: url, cluster: c, partitions: partitions}
	r.begin(t)
	return r
}

// begin creates the table and the topic, and starts the feeder.
func (r *rig) begin(t testing.TB) {
	t.Helper()
	servers.Exec(t, r.url, createTable)
	r.create(t)
	r.tables = r.store(t, r.name)
	if err := r.tables.Install(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.marker = r.database(t)
	r.start(t)
}

// create creates the topic, under a new name.
func (r *rig) create(t testing.TB) {
	t.Helper()
	r.connected = make(chan struct{}, 1)
	r.name = "t" + strconv.FormatInt(time.Now().UnixNano(), 36)
	client, err := kgo.NewClient(r.client()...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	r.admin = kadm.NewClient(client)
	settings := map[string]*string{"max.message.bytes": kadm.StringPtr("2000000")}
	if r.replicas > 1 {
		settings["min.insync.replicas"] = kadm.StringPtr("2")
	}
	if resp, err := r.admin.CreateTopic(t.Context(), int32(r.partitions), int16(max(1, r.replicas)), settings, r.name); err != nil || resp.Err != nil {
		t.Fatal(err, resp.Err)
	}
}

func (r *rig) client() []kgo.Opt {
	return []kgo.Opt{kgo.SeedBrokers(r.cluster.Addresses()...), kgo.MetadataMinAge(10 * time.Millisecond)}
}

func (r *rig) store(t testing.TB, name string) *pgstore.Store {
	t.Helper()
	st, err := pgstore.New(pgstore.Config{URL: r.url, Name: name, Outboxes: outboxes()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	return st
}

// database returns a source of the database's log.
func (r *rig) database(t testing.TB) *postgres.Source {
	t.Helper()
	src, err := postgres.New(postgres.Config{
		URL: r.url, Name: r.name, Outboxes: outboxes(), MayCreate: true, TakeOver: true, HeartbeatInterval: -1,
		SlotTimeout: 3 * time.Minute, MaxBatchRows: cmp.Or(r.batchRows, 30),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(src.Close)
	return src
}

// start runs the feeder until the test ends.
func (r *rig) start(t testing.TB) {
	feeder, err := feed.New(feed.Config{
		Client: append(r.client(), kgo.ProducerBatchCompression(kgo.NoCompression())), Topic: r.name, Partitions: r.partitions,
		Outboxes: outboxes(), MaxRecordBytes: 1_900_000, IdleInterval: 50 * time.Millisecond, Observer: r,
	})
	if err != nil {
		t.Fatal(err)
	}
	r.feeder.Store(feeder)
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() {
		for ctx.Err() == nil {
			src := r.database(t)
			if err := feeder.Run(ctx, r.tables, src); ctx.Err() == nil {
				t.Logf("feeder: %v", err)
			}
			src.Close()
		}
	})
	r.stop = func() { cancel(); work.Wait() }
	t.Cleanup(func() { r.stop() })
	<-r.connected
}

// Connected and the others make a rig the observer of its feeder.
func (r *rig) Connected() {
	select {
	case r.connected <- struct{}{}:
	default:
	}
}
func (r *rig) Disconnected(error, time.Duration) {}
func (r *rig) Saved(store.Checkpoint)            {}
func (r *rig) SaveFailed(error)                  {}
func (r *rig) Leads(store.Epoch)                 {}
func (r *rig) Restored(_, _ store.Epoch)         {}

// Leader, Mark and Compare make a rig the kafka.Database of its shards.
func (r *rig) Leader(ctx context.Context) (store.Leader, error) { return r.tables.Leader(ctx) }
func (r *rig) Mark(ctx context.Context, token string) error     { return r.marker.Mark(ctx, token) }
func (r *rig) Compare(a, b store.Position) int                  { return r.marker.Compare(a, b) }

// config is that of the source of a shard.
func (r *rig) config(partition int) kafka.Config {
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err == nil {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.conns = append(r.conns, conn)
		}
		return conn, err
	}
	return kafka.Config{
		Client: append(r.client(), kgo.Dialer(dial)), Topic: r.name, Partition: partition, Partitions: r.partitions, Database: r, Outboxes: outboxes(),
	}
}

func (r *rig) source(t testing.TB, cfg kafka.Config) *kafka.Source {
	t.Helper()
	src, err := kafka.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return src
}

// Source implements capturetest.Database.
func (r *rig) Source(t *testing.T, o capturetest.Options) capturetest.Source {
	cfg := r.config(0)
	cfg.MaxBatchRows = o.BatchRows
	return r.source(t, cfg)
}

func (r *rig) Viewer(*testing.T) store.Viewer { return r.tables }

func (r *rig) Begin(t *testing.T, rows ...capturetest.Row) func(commit bool) {
	t.Helper()
	tx, end := servers.Begin(t, r.url)
	if tx == nil {
		return end
	}
	batch := &pgx.Batch{}
	for _, row := range rows {
		var group *string
		if row.Group.Valid {
			group = &row.Group.Name
		}
		batch.Queue("INSERT INTO outbox_events (id, message_group, payload) VALUES ($1, $2, $3)", row.ID, group, row.Payload)
	}
	if err := tx.SendBatch(context.Background(), batch).Close(); err != nil {
		t.Error(err)
	}
	return func(commit bool) {
		feeder := r.feeder.Load()
		before := feeder.Status().Records
		end(commit)
		for r.waits && r.feeder.Load() == feeder && feeder.Status().Records < before+int64(len(rows)) {
			<-time.After(time.Millisecond) // polls the status, which has no signal
		}
	}
}

func (r *rig) Unrelated(t *testing.T) {
	t.Helper()
	servers.Exec(t, r.url, "INSERT INTO unrelated VALUES (1)")
}

// Disconnect closes the connections of sources.
func (r *rig) Disconnect(*testing.T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, conn := range r.conns {
		_ = conn.Close()
	}
	r.conns = nil
}

// loseLog drops the slot of the database, so the feeder takes a snapshot.
func loseLog(t *testing.T, db capturetest.Database) {
	r := db.(*rig)
	r.stop()
	conn := servers.Connect(t, r.url)
	waitFor(t, "the server to free the slot", func() bool {
		_, err := conn.Exec(t.Context(), "SELECT pg_drop_replication_slot($1)", r.name)
		return err == nil
	})
	r.start(t)
}

// TestOnKafka runs all tests on one cluster, because its start takes longest.
func TestOnKafka(t *testing.T) {
	c := servers.Kafka(t, 1, nil)
	t.Run("isolated", func(t *testing.T) { capturetest.RunIsolated(t, harness(c)) }) // alone
	for name, test := range map[string]func(*testing.T, *servers.KafkaCluster){
		"suite": testSuite, "a zombie leader": testAZombieLeader, "retention passed": testRetentionPassed, "relays": testRelays, "Kafka is down": testKafkaDown,
		"records refused": testRefusedRecords, "settings": testSettings,
		"large rows": testLargeRows, "a slow snapshot": testASlowSnapshot, "lost markers": testLostMarkers, "a gap in a snapshot": testAGapInASnapshot,
		"MongoDB": testMongo,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // a test mostly waits
			test(t, c)
		})
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testSuite(t *testing.T, c *servers.KafkaCluster) { capturetest.Run(t, harness(c)) }

func harness(c *servers.KafkaCluster) capturetest.Harness {
	h := capturetest.Harness{
		Log: true, RowPositions: true,
		Setup: func(t *testing.T) capturetest.Database {
			return newRig(t, c, servers.Database(t, servers.Versions()[0]), 1)
		},
		LogBytes: func(rows []capturetest.Row) (bytes int64) {
			for _, r := range rows {
				bytes += int64(len(r.ID) + len(r.Group.Name) + len(r.Payload) + 100)
			}
			return bytes
		},
		Losses: map[string]func(*testing.T, capturetest.Database){"of the database": loseLog},
	}
	h.Isolated = func(t *testing.T) capturetest.Database {
		r := h.Setup(t).(*rig)
		r.waits = true
		return r
	}
	return h
}

var _ capture.Stream = (*kafka.Source)(nil)
