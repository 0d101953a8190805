package kafka_test

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/capture/kafka"
	"github.com/sluicebox/sluicebox/capture/postgres"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// shardDatabase is the database of the relay of one partition.
type shardDatabase struct {
	postgres.Database
	rig       *rig
	partition int
}

// Store returns the store, whose views have the rows of the partition.
func (d shardDatabase) Store(of store.Settings) (ledger.Store, error) {
	st, err := d.Database.Store(of)
	st.Tables = shardTables{st.Tables, d}
	return st, err
}

// Stream returns the source of the partition.
func (d shardDatabase) Stream(of capture.Settings) (capture.Stream, error) {
	cfg := d.rig.config(d.partition)
	cfg.Outboxes, cfg.MaxBatchBytes = of.Outboxes, of.MaxBatchBytes
	src, err := kafka.New(cfg)
	if err != nil {
		return nil, err
	}
	return src, nil
}

type shardTables struct {
	store.Tables
	of shardDatabase
}

func (s shardTables) View(ctx context.Context, snapshot string) (store.View, error) {
	view, err := s.Tables.View(ctx, snapshot)
	if err != nil {
		return nil, err
	}
	return kafka.ShardView(view, s.of.partition, s.of.rig.partitions), nil
}

// receiver records the first arrivals of rows by group.
type receiver struct {
	mu      sync.Mutex
	groups  map[string][]int
	seen    map[string]bool
	repeats int
	empty   int // rows without a payload
}

func (r *receiver) deliver(_ context.Context, rows []sink.Message) sink.Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range rows {
		if len(rows[i].Payload) == 0 {
			r.empty++
		}
		if r.seen[rows[i].ID] {
			r.repeats++
			continue
		}
		r.seen[rows[i].ID] = true
		n, _ := strconv.Atoi(rows[i].ID)
		r.groups[rows[i].Group.Name] = append(r.groups[rows[i].Group.Name], n)
	}
	return sink.Result{Outcome: sink.Outcome{Class: sink.Delivered}}
}

func (r *receiver) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.seen)
}

// relay runs the relay of a partition until stop is called.
func (r *rig) relay(t testing.TB, partition int, to *receiver) (stop func()) {
	t.Helper()
	return runRelay(t, fmt.Sprintf("%s_%d", r.name, partition), shardDatabase{postgres.Database{URL: r.url}, r, partition}, to)
}

// runRelay runs a relay until stop is called.
func runRelay(t testing.TB, name string, database sluicebox.Database, to *receiver) (stop func()) {
	t.Helper()
	relay, err := sluicebox.New(sluicebox.Options{
		Name:     name,
		Database: database,
		Outboxes: []sluicebox.Outbox{{Outbox: outboxes()[0], Sink: "receiver"}},
		Sinks:    map[string]sluicebox.Sink{"receiver": {Sink: sink.Func(to.deliver)}},
		Mode:     sluicebox.ModeStream, SweepInterval: time.Second,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("relay %s ended with %v", name, err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// testRelays delivers through a relay for each partition, while a former leader of the feeder is held
// and released, and while a shard moves to another relay. Each row arrives, and those of a group in the
// order of commits.
func testRelays(t *testing.T, c *servers.KafkaCluster) {
	const partitions, groups = 3, 10 // so that views have no payloads
	r := newRig(t, c, servers.Database(t, servers.Versions()[0]), partitions)
	r.stop()
	zombie := newZombie(t, r)
	to := &receiver{groups: map[string][]int{}, seen: map[string]bool{}}
	rows := 0
	commit := func(n int) {
		for range n {
			r.Begin(t, capturetest.Row{ID: strconv.Itoa(rows), Group: store.GroupOf(fmt.Sprint("g", rows%groups)), Payload: "{}"})(true)
			rows++
		}
	}
	all := func() bool { return to.count() == rows }
	commit(30) // before the shards' snapshots
	var stops []func()
	for p := range partitions {
		stops = append(stops, r.relay(t, p, to))
	}
	commit(50)
	waitFor(t, "all rows", all)
	zombie.Disconnect()
	commit(50)
	waitFor(t, "the zombie has records", func() bool { return zombie.Status().Buffered >= 50 })
	r.start(t)
	r.relay(t, 0, to) // stands by
	commit(50)
	stops[0]()
	commit(50)
	<-time.After(heldFor(t)) // the pause under test
	zombie.release(t)
	commit(50)
	waitFor(t, "all rows after the zombie", all)

	to.mu.Lock()
	defer to.mu.Unlock()
	for group, order := range to.groups {
		for i := 1; i < len(order); i++ {
			if order[i] < order[i-1] {
				t.Errorf("group %s: row %d arrived after %d", group, order[i], order[i-1])
			}
		}
	}
	if to.empty > 0 {
		t.Errorf("%d rows arrived without their payload", to.empty)
	}
	late, _ := r.raw(t)
	t.Logf("%d rows, %d repeated, %d late records", rows, to.repeats, late)
	if late == 0 {
		t.Error("no record of the former leader was late; the test proved nothing")
	}
}
