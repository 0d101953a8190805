package kafka_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/capture/kafka"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// testLargeRows: rows whose attributes or group are larger than a record arrive whole and in order, from
// a place between them too, and the feeder goes on.
func testLargeRows(t *testing.T, c *servers.KafkaCluster) {
	r := newRig(t, c, servers.Database(t, servers.Versions()[0]), 1)
	src := r.source(t, r.config(0))
	t.Cleanup(src.Close)
	at := capturetest.OpenWithoutCheckpoint(t, src, &capturetest.Tables{Viewer: r.tables})
	f := capturetest.FollowFrom(t, src, at.From)
	const insert = "INSERT INTO outbox_events (id, message_group, payload, headers) VALUES "
	servers.Exec(t, r.url, insert+"('a', 'g', '{}', 'small')")
	servers.Exec(t, r.url, insert+"('b', 'g', '{}', repeat('h', 5000000)), ('c', 'g', repeat('p', 1800000), repeat('h', 300000))")
	servers.Exec(t, r.url, insert+"('d', repeat('g', 2500000), '{}', NULL), ('e', 'g', '{}', NULL)")
	f.Until("all rows", func() bool { return len(f.Items) >= 5 })
	f.Expect("a", "b", "c", "d", "e")
	for i, want := range []struct {
		group   string
		payload string
		headers string
	}{
		{"g", "{}", "small"}, {"g", "{}", strings.Repeat("h", 5_000_000)},
		{"g", strings.Repeat("p", 1_800_000), strings.Repeat("h", 300_000)}, {strings.Repeat("g", 2_500_000), "{}", ""}, {"g", "{}", ""},
	} {
		it := &f.Items[i]
		if headers, _ := it.Attributes.Get("headers"); it.Group.Name != want.group || string(it.Payload) != want.payload || headers != want.headers {
			t.Errorf("row %s: got a group of %d bytes, a payload of %d and headers of %d, want %d, %d and %d",
				it.ID, len(it.Group.Name), len(it.Payload), len(headers), len(want.group), len(want.payload), len(want.headers))
		}
	}
}

// duringView calls a function before the view of a snapshot is opened, once.
type duringView struct {
	store.Viewer
	call func()
	once sync.Once
}

func (d *duringView) View(ctx context.Context, snapshot string) (store.View, error) {
	d.once.Do(d.call)
	return d.Viewer.View(ctx, snapshot)
}

// slowPoll holds a poll, with its records, until the time for it has passed.
type slowPoll struct{ armed atomic.Bool }

// OnFetchRecordUnbuffered implements kgo.HookFetchRecordUnbuffered.
func (s *slowPoll) OnFetchRecordUnbuffered(*kgo.Record, bool) {
	if s.armed.CompareAndSwap(true, false) {
		<-time.After(1200 * time.Millisecond) // the pause under test: longer than a wait for a marker
	}
}

// testASlowSnapshot: records that come as the wait for a marker ends are part of the snapshot. Without
// them a number would be missing, as if Kafka had lost records.
func testASlowSnapshot(t *testing.T, c *servers.KafkaCluster) {
	r := newRig(t, c, servers.Database(t, servers.Versions()[0]), 1)
	r.waits = true
	slow := &slowPoll{}
	cfg := r.config(0)
	cfg.Client = append(cfg.Client, kgo.WithHooks(slow))
	src := r.source(t, cfg)
	t.Cleanup(src.Close)
	tables := &capturetest.Tables{Viewer: &duringView{Viewer: r.tables, call: func() {
		r.Begin(t, capturetest.Row{ID: "a", Payload: "{}"})(true)
		slow.armed.Store(true)
	}}}
	opened, err := src.Open(t.Context(), store.Checkpoint{}, tables)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.View.Close()
	if slow.armed.Load() || tables.Cleared != 1 {
		t.Errorf("the poll was held: %v; %d snapshots, want one", !slow.armed.Load(), tables.Cleared)
	}
	items, err := opened.View.Unsettled(t.Context(), store.UnsettledQuery{Outbox: "shop", Limit: 10})
	if err != nil || len(items) != 0 {
		t.Errorf("the view has %v, %v; the partition brings the row", items, err)
	}
	f := capturetest.FollowFrom(t, src, opened.From)
	f.Until("the row", func() bool { return len(f.Items) > 0 })
	f.Expect("a")
}

// testAGapInASnapshot: the feeder loses the database's log while a shard takes a snapshot. The shard takes
// another one.
func testAGapInASnapshot(t *testing.T, c *servers.KafkaCluster) {
	r := newRig(t, c, servers.Database(t, servers.Versions()[0]), 1)
	src := r.source(t, r.config(0))
	t.Cleanup(src.Close)
	tables := &capturetest.Tables{Viewer: &duringView{Viewer: r.tables, call: func() {
		r.stop()
		r.Begin(t, capturetest.Row{ID: "a", Payload: "{}"})(true) // in no log that a feeder reads
		loseLog(t, r)
	}}}
	opened, err := src.Open(t.Context(), store.Checkpoint{}, tables)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.View.Close()
	if tables.Cleared != 2 {
		t.Errorf("%d snapshots, want two", tables.Cleared)
	}
	items, err := opened.View.Unsettled(t.Context(), store.UnsettledQuery{Outbox: "shop", Limit: 10})
	if err != nil || len(items) != 1 || items[0].ID != "a" {
		t.Errorf("the view has %v, %v, want row a", items, err)
	}
}

// lossyMarks loses the first markers, and every repeated one as MySQL does.
type lossyMarks struct {
	kafka.Database
	mu    sync.Mutex
	lost  int
	known map[string]bool
}

// Mark implements kafka.Database.
func (l *lossyMarks) Mark(ctx context.Context, token string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	known := l.known[token]
	l.known[token] = true
	if l.lost--; l.lost >= 0 || known {
		return nil
	}
	return l.Database.Mark(ctx, token)
}

// testLostMarkers: a snapshot writes another marker if a feeder never reads the one before.
func testLostMarkers(t *testing.T, c *servers.KafkaCluster) {
	r := newRig(t, c, servers.Database(t, servers.Versions()[0]), 1)
	cfg := r.config(0)
	cfg.Database = &lossyMarks{Database: cfg.Database, lost: 2, known: map[string]bool{}}
	src := r.source(t, cfg)
	t.Cleanup(src.Close)
	opened, err := src.Open(t.Context(), store.Checkpoint{}, &capturetest.Tables{Viewer: r.tables})
	if err != nil {
		t.Fatal(err)
	}
	opened.View.Close()
}
