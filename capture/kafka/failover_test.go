package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/capture/kafka/feed"
	"github.com/sluicebox/sluicebox/capture/kafka/internal/record"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// frozen is the database of a leader that is frozen: a save waits until it is released.
type frozen struct {
	feed.Tables
	saves chan struct{} // closed at the release
	began bool          // the position at which it began to read is saved
}

func (f *frozen) SaveCheckpoint(ctx context.Context, epoch store.Epoch, cp store.Checkpoint) error {
	if f.began {
		select {
		case <-f.saves:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	f.began = cp.Position != ""
	return f.Tables.SaveCheckpoint(ctx, epoch, cp)
}

// heldFor is how long a leader is held; SLUICEBOX_TEST_OUTAGE replaces it. 60s is a full run.
func heldFor(t *testing.T) time.Duration {
	text := os.Getenv("SLUICEBOX_TEST_OUTAGE")
	if text == "" {
		return time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// zombie is a leader behind a proxy to Kafka, whose database cannot be written.
type zombie struct {
	*feed.Feeder
	*servers.Proxy
	frozen *frozen
	ended  chan error
}

// newZombie starts the feeder of a rig whose own has ended.
func newZombie(t *testing.T, r *rig, change ...func(*feed.Config)) *zombie {
	t.Helper()
	z := &zombie{Proxy: servers.NewProxy(t, "tcp://"+r.cluster.Brokers[0].Address), ended: make(chan error, 1)}
	held := strings.TrimPrefix(z.URL("tcp://"), "tcp://")
	cfg := feed.Config{
		Client: append(r.client(), kgo.Dialer(func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, held)
		})),
		Topic: r.name, Partitions: r.partitions, Outboxes: outboxes(), Observer: r,
	}
	for _, f := range change {
		f(&cfg)
	}
	var err error
	if z.Feeder, err = feed.New(cfg); err != nil {
		t.Fatal(err)
	}
	z.frozen = &frozen{Tables: r.store(t, r.name), saves: make(chan struct{})}
	ctx, stop := context.WithCancel(context.Background())
	src := r.database(t)
	var work sync.WaitGroup
	work.Go(func() { z.ended <- z.Run(ctx, z.frozen, src) })
	t.Cleanup(func() { stop(); z.Reconnect(); work.Wait() })
	<-r.connected
	return z
}

// release lets the zombie's records arrive, and then lets it find out that it does not lead.
func (z *zombie) release(t *testing.T) {
	t.Helper()
	z.Reconnect()
	waitFor(t, "the zombie's records arrive", func() bool { return z.Status().Buffered == 0 })
	close(z.frozen.saves)
	if err := <-z.ended; !errors.Is(err, store.ErrNotLeader) {
		t.Errorf("the zombie ended with %v, want %v", err, store.ErrNotLeader)
	}
}

// testAZombieLeader holds a leader with records on their way to Kafka, lets another take over, and
// releases it. Its records arrive late, and the shards leave them out: rows come once, in the order of
// commits. Read without regard to epochs and places, the partitions are out of order.
func testAZombieLeader(t *testing.T, c *servers.KafkaCluster) {
	const partitions, groups = 2, 8
	r := newRig(t, c, servers.Database(t, servers.Versions()[0]), partitions)
	r.stop()

	zombie := newZombie(t, r)
	readers := make([]*capturetest.Follower, partitions)
	for p := range readers {
		src := r.source(t, r.config(p))
		t.Cleanup(src.Close)
		opened, err := src.Open(t.Context(), store.Checkpoint{}, &capturetest.Tables{Viewer: r.tables})
		if err != nil {
			t.Fatal(err)
		}
		opened.View.Close()
		readers[p] = capturetest.FollowFrom(t, src, opened.From)
	}
	var order []store.Item
	commit := func(n int) {
		for range n {
			id, group := strconv.Itoa(len(order)), store.GroupOf(fmt.Sprint("g", len(order)%groups))
			r.Begin(t, capturetest.Row{ID: id, Group: group, Payload: "{}"})(true)
			order = append(order, store.Item{Ref: store.Ref{ID: id}, Group: group})
		}
	}
	want := func(p int) (ids []string) {
		for i := range order {
			if record.Partition(&order[i], partitions) == p {
				ids = append(ids, order[i].ID)
			}
		}
		return ids
	}
	commit(50)
	zombie.Disconnect()
	commit(50) // the zombie has these
	waitFor(t, "the zombie has records", func() bool { return zombie.Status().Buffered >= 50 })
	r.start(t) // takes over
	commit(50)
	<-time.After(heldFor(t)) // the pause under test
	for p, f := range readers {
		f.Until("rows of the successor", func() bool { return len(f.Items) >= len(want(p)) })
	}
	zombie.release(t)
	commit(20)
	for p, f := range readers {
		f.Until("the last rows", func() bool { return len(f.Items) >= len(want(p)) })
		f.Expect(want(p)...)
	}
	late, reversed := r.raw(t)
	t.Logf("%d late records; %d of %d rows are out of order in the partitions as they are", late, reversed, len(order))
	if late == 0 || reversed == 0 {
		t.Error("no record of the former leader was late; the test proved nothing")
	}
}

// raw reads all partitions without regard to epochs and places. It counts the rows of a former
// leader behind the first record of the next, and the rows behind a row that was committed later.
func (r *rig) raw(t *testing.T) (late, reversed int) {
	t.Helper()
	client, err := kgo.NewClient(append(r.client(), kgo.ConsumeTopics(r.name), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ends, err := r.admin.ListEndOffsets(t.Context(), r.name)
	if err != nil {
		t.Fatal(err)
	}
	left, epoch, last := 0, make([]store.Epoch, r.partitions), make([]int, r.partitions)
	ends.Each(func(at kadm.ListedOffset) { left += int(at.Offset) })
	for left > 0 {
		fetches := client.PollFetches(t.Context())
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(rec *kgo.Record) {
			left--
			got, err := record.Parse(rec.Value)
			if err != nil {
				t.Error(err)
			}
			epoch[rec.Partition] = max(epoch[rec.Partition], got.Epoch)
			if got.Kind != record.Row {
				return
			}
			if got.Epoch < epoch[rec.Partition] {
				late++
			}
			n, _ := strconv.Atoi(got.Item.ID)
			if n < last[rec.Partition] {
				reversed++
			}
			last[rec.Partition] = n
		})
	}
	return late, reversed
}

// waitFor polls, because a status has no signal.
func waitFor(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waiting for %s: it did not come to that", what)
		}
	}
}

// testKafkaDown: while Kafka does not answer, the feeder holds a bounded amount and says since when it
// waits. Then all rows come, in order.
func testKafkaDown(t *testing.T, c *servers.KafkaCluster) {
	const rows, payload, limit = 300, 2 << 10, 128 << 10
	r := newRig(t, c, servers.Database(t, servers.Versions()[0]), 1)
	r.stop()
	down := newZombie(t, r, func(cfg *feed.Config) { cfg.MaxBufferedBytes, cfg.MaxRecordBytes = limit, limit })
	close(down.frozen.saves)
	src := r.source(t, r.config(0))
	t.Cleanup(src.Close)
	f := capturetest.FollowFrom(t, src, capturetest.OpenWithoutCheckpoint(t, src, &capturetest.Tables{Viewer: r.tables}).From)
	down.Disconnect()
	var want []string
	for i := range rows {
		want = append(want, strconv.Itoa(i))
		r.Begin(t, capturetest.Row{ID: want[i], Payload: strings.Repeat("x", payload)})(true)
	}
	waitFor(t, "the feeder is full", func() bool { return down.Status().Bytes > limit-2*payload })
	now := down.Status()
	if now.Bytes > limit || now.Buffered >= rows || time.Since(now.WaitingSince) > time.Minute {
		t.Errorf("Kafka is down, and the status is %+v; at most %d bytes may wait", now, limit)
	}
	down.Reconnect()
	f.Until("all rows", func() bool { return len(f.Items) >= rows })
	f.Expect(want...)
	waitFor(t, "nothing waits", func() bool { now = down.Status(); return now.Buffered == 0 && now.WaitingSince.IsZero() })
}

// testRetentionPassed: a checkpoint that Kafka no longer has leads to a snapshot of the shard's rows
// alone, and a topic of another size is refused.
func testRetentionPassed(t *testing.T, c *servers.KafkaCluster) {
	const partitions, shard = 3, 1
	r := newRig(t, c, servers.Database(t, servers.Versions()[0]), partitions)
	src := r.source(t, r.config(shard))
	defer src.Close()
	tables := &capturetest.Tables{Viewer: r.tables}
	first := capturetest.OpenWithoutCheckpoint(t, src, tables)
	at := store.Checkpoint{Origin: first.Origin, Position: first.From}
	var want []string
	for i := range 30 {
		row := capturetest.Row{ID: strconv.Itoa(i), Group: store.GroupOf(fmt.Sprint("g", i)), Payload: "{}"}
		r.Begin(t, row)(true)
		if record.Partition(&store.Item{Group: row.Group}, partitions) == shard {
			want = append(want, row.ID)
		}
	}
	waitFor(t, "all rows are in the topic", func() bool { return r.feeder.Load().Status().Buffered == 0 && r.feeder.Load().Status().Records >= 30 })
	if again, err := src.Open(t.Context(), at, tables); err != nil || again.View != nil {
		t.Fatalf("Kafka has the checkpoint, but Open returned %+v, %v", again, err)
	}
	ends, err := r.admin.ListEndOffsets(t.Context(), r.name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.admin.DeleteRecords(t.Context(), ends.Offsets()); err != nil {
		t.Fatal(err)
	}
	var lost *capture.LostError
	if err := src.Run(t.Context(), capture.Span{From: at.Position}, nil); !errors.As(err, &lost) || !strings.Contains(err.Error(), "retention.ms") {
		t.Errorf("the run ended with %v, want a lost log", err)
	}
	again, err := src.Open(t.Context(), at, tables)
	if err != nil || again.View == nil {
		t.Fatalf("Open returned %+v, %v, want a snapshot", again, err)
	}
	defer again.View.Close()
	items, err := again.View.Unsettled(t.Context(), store.UnsettledQuery{Outbox: "shop", Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i := range items {
		got = append(got, items[i].ID)
	}
	slices.Sort(got)
	if slices.Sort(want); !slices.Equal(got, want) {
		t.Errorf("the view has %q, want %q", got, want)
	}
	r.testResized(t, again)
}

func (r *rig) testResized(t *testing.T, at capture.OpenResult) {
	cfg := r.config(1)
	cfg.Partitions++
	src := r.source(t, cfg)
	defer src.Close()
	var setup *store.SetupError
	for _, origin := range []string{"", at.Origin} {
		if _, err := src.Open(t.Context(), store.Checkpoint{Origin: origin, Position: at.From}, &capturetest.Tables{Viewer: r.tables}); !errors.As(err, &setup) {
			t.Errorf("Open with another number of partitions returned %v", err)
		}
	}
	feeder := func(partitions int) *feed.Feeder {
		f, err := feed.New(feed.Config{Client: r.client(), Topic: r.name, Partitions: partitions, Outboxes: outboxes()})
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	if found, err := feeder(2).Diagnose(t.Context()); err != nil || store.CountFaults(found) != 0 || !slices.ContainsFunc(found, func(f store.Finding) bool { return strings.Contains(f.Text, "uses the first 2") }) {
		t.Errorf("a partition was added, and the findings are %+v, %v; want advice about it", found, err)
	}
	f := feeder(4)
	if err := f.Run(t.Context(), r.tables, r.marker); !errors.As(err, &setup) {
		t.Errorf("a feeder of another number of partitions ended with %v", err)
	}
}
