package kafka_test

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/capture/kafka"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// readers counts the open clients that read a partition.
type readers struct {
	mu   sync.Mutex
	open map[*kgo.Client]bool
}

var (
	_ kgo.HookNewClient    = (*readers)(nil)
	_ kgo.HookClientClosed = (*readers)(nil)
)

// OnNewClient implements kgo.HookNewClient.
func (r *readers) OnNewClient(client *kgo.Client) {
	parts, _ := client.OptValue(kgo.ConsumePartitions).(map[string]map[int32]kgo.Offset)
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(parts) > 0 {
		r.open[client] = true
	}
}

// OnClientClosed implements kgo.HookClientClosed.
func (r *readers) OnClientClosed(client *kgo.Client) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, client)
}

// historyRig counts the readers of a rig.
type historyRig struct {
	*rig
	readers
}

// Source implements capturetest.Database.
func (r *historyRig) Source(t *testing.T, o capturetest.Options) capturetest.Source {
	cfg := r.config(0)
	cfg.MaxBatchRows = o.BatchRows
	cfg.Client = append(cfg.Client, kgo.WithHooks(&r.readers))
	return r.source(t, cfg)
}

// clockSkew is shorter than that of a relay, so that tests need not wait.
const clockSkew = time.Second

// source is that of the rig, with a shorter skew of clocks.
func (r *historyRig) source(t testing.TB, cfg kafka.Config) *kafka.Source {
	t.Helper()
	src := r.rig.source(t, cfg)
	src.SetClockSkew(clockSkew)
	return src
}

func newHistoryRig(t *testing.T, c *servers.KafkaCluster) *historyRig {
	return &historyRig{newRig(t, c, servers.Database(t, servers.Versions()[0]), 1), readers{open: map[*kgo.Client]bool{}}}
}

// deleteRecords deletes the records before an offset, -1 for the end of the partition.
func (r *rig) deleteRecords(t *testing.T, offset int64) {
	t.Helper()
	var to kadm.Offsets
	to.Add(kadm.Offset{Topic: r.name, Partition: 0, At: offset})
	if resp, err := r.admin.DeleteRecords(t.Context(), to); err != nil || resp.Error() != nil {
		t.Fatal(err, resp.Error())
	}
}

func historyHarness(c *servers.KafkaCluster) capturetest.HistoryHarness {
	h := capturetest.HistoryHarness{
		ReadsFromTime: true, Parallel: true,
		Setup: func(t *testing.T) capturetest.Database { return newHistoryRig(t, c) },
		Readers: func(_ *testing.T, db capturetest.Database) int {
			r := &db.(*historyRig).readers
			r.mu.Lock()
			defer r.mu.Unlock()
			return len(r.open)
		},
		Disconnect: func(t *testing.T, db capturetest.Database) { db.(*historyRig).Disconnect(t) },
		Delete: func(t *testing.T, db capturetest.Database, ids []string) {
			servers.Exec(t, db.(*historyRig).url, "DELETE FROM outbox_events WHERE id IN ('"+strings.Join(ids, "', '")+"')")
		},
	}
	h.Losses = map[string]func(*testing.T, capturetest.Database, capture.StartPoint){
		"retention": func(t *testing.T, db capturetest.Database, at capture.StartPoint) {
			r := db.(*historyRig)
			r.wantLost(t, at, "")
			r.deleteRecords(t, -1)
			r.wantLost(t, at, "raise retention.ms")
		},
	}
	change := func(change func(*capture.StartPoint)) func(*testing.T, capturetest.Database, *capture.StartPoint) capturetest.Database {
		return func(_ *testing.T, db capturetest.Database, at *capture.StartPoint) capturetest.Database {
			change(at)
			return db
		}
	}
	h.OtherLogs = map[string]func(*testing.T, capturetest.Database, *capture.StartPoint) capturetest.Database{
		"another topic": func(t *testing.T, _ capturetest.Database, _ *capture.StartPoint) capturetest.Database {
			return h.Setup(t)
		},
		"no origin":   change(func(at *capture.StartPoint) { at.Origin = "" }),
		"no position": change(func(at *capture.StartPoint) { at.Position = "1234.5" }),
	}
	return h
}

// wantLost checks what the partition says of a position, and of the same one of another topic.
func (r *historyRig) wantLost(t *testing.T, at capture.StartPoint, why string) {
	t.Helper()
	src := r.source(t, r.config(0))
	defer src.Close()
	got, err := src.LostReasons(t.Context(), []store.Checkpoint{at.Checkpoint, {Origin: "kafka/another/1/0", Position: at.Position}})
	if err != nil || len(got) != 2 || (got[0] == "") != (why == "") || !strings.Contains(got[0], why) || got[1] != "" {
		t.Errorf("lost: got %q, %v, want %q", got, err, why)
	}
}

// TestHistory runs all tests on one cluster.
func TestHistory(t *testing.T) {
	c := servers.Kafka(t, 1, nil)
	t.Run("range", func(t *testing.T) { capturetest.RunHistory(t, historyHarness(c)) })
	t.Run("lost", func(t *testing.T) { capturetest.RunHistoryLost(t, historyHarness(c)) })
	t.Run("feeders", func(t *testing.T) { testHistoryOfFeeders(t, c) })
	t.Run("skip", func(t *testing.T) { testHistorySkips(t, c) })
}

// testHistoryOfFeeders reads from times in the parts of several feeders, after the first records are
// deleted. A time shortly behind the deleted ones is lost, because clocks differ.
func testHistoryOfFeeders(t *testing.T, c *servers.KafkaCluster) {
	r := newHistoryRig(t, c)
	_, live := r.follow(t)
	var want []string
	var times []time.Time
	var places []store.Position
	for n := range 4 {
		times = append(times, time.Now())
		for i := range 3 {
			id := fmt.Sprint(n, "-", i)
			payload := "{}"
			if i == 1 {
				payload = strings.Repeat("x", 10_000)
			}
			r.Begin(t, capturetest.Row{ID: id, Group: store.GroupOf("g"), Payload: payload})(true)
			want = append(want, id)
		}
		live.Rows(len(want))
		places = append(places, live.Position)
		if n < 3 {
			<-time.After(clockSkew * 6 / 10) // the records of the feeder before are within the skew of clocks
			r.stop()
			r.start(t)
		}
	}
	offset, _ := kafka.Offset(places[0])
	r.deleteRecords(t, offset-2) // in the middle of the first feeder's records
	slow := r.rig.source(t, r.config(0))
	slow.SetClockSkew(time.Minute) // surely more than between the first remaining record and feeder 1
	var lost *capture.LostError
	if items, err := capturetest.ReadRange(t, slow, capture.StartPoint{Since: times[1]}, live.Position, nil); !errors.As(err, &lost) || len(items) > 0 {
		t.Errorf("since the rows of feeder 1: got %q, %v, want a lost log", items, err)
	}
	for n := 2; n < 4; n++ {
		var got []string
		items, err := capturetest.ReadRange(t, r.source(t, r.config(0)), capture.StartPoint{Since: times[n]}, live.Position, nil)
		for _, id := range items {
			if id >= fmt.Sprint(n) {
				got = append(got, id)
			}
		}
		if err != nil || !slices.Equal(got, want[3*n:]) || !slices.IsSorted(items) {
			t.Errorf("since the rows of feeder %d: got %q, %v, want %q", n, items, err, want[3*n:])
		}
	}
}

// follow follows the partition. Its start point is before all rows.
func (r *historyRig) follow(t *testing.T) (capture.StartPoint, *capturetest.Follower) {
	t.Helper()
	src := r.source(t, r.config(0))
	t.Cleanup(src.Close)
	o := capturetest.OpenWithoutCheckpoint(t, src, &capturetest.Tables{Viewer: r.tables})
	return capture.StartPoint{Checkpoint: store.Checkpoint{Origin: o.Origin, Position: o.From}}, capturetest.FollowFrom(t, src, o.From)
}

// testHistorySkips skips more rows than a batch has. No position is sent before them, because a reader that
// began there would send some of them.
func testHistorySkips(t *testing.T, c *servers.KafkaCluster) {
	r := newHistoryRig(t, c)
	at, live := r.follow(t)
	var want []string
	for i := range 10 {
		want = append(want, fmt.Sprint(i))
		r.Begin(t, capturetest.Row{ID: want[i], Group: store.GroupOf("g"), Payload: "{}"})(true)
	}
	live.Rows(len(want))
	cfg := r.config(0)
	cfg.MaxBatchRows = 2
	at.Skip = 7
	first := store.Position("")
	got, err := capturetest.ReadRange(t, r.source(t, cfg), at, live.Position, func(b capture.Batch) { first = cmp.Or(first, b.Position) })
	if err != nil || !slices.Equal(got, want[7:]) {
		t.Errorf("got %q, %v, want %q", got, err, want[7:])
	}
	got, err = capturetest.ReadRange(t, r.source(t, cfg), capture.StartPoint{Checkpoint: store.Checkpoint{Origin: at.Origin, Position: first}}, live.Position, nil)
	if err != nil || len(got) > 3 {
		t.Errorf("the first position has the rows %q behind it, %v", got, err)
	}
}
