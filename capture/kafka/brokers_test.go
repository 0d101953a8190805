package kafka_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/capture/kafka/internal/record"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestBrokers loses brokers of a cluster of three. It takes a minute, so make brokers runs it.
func TestBrokers(t *testing.T) {
	crashes, _ := strconv.Atoi(os.Getenv("SLUICEBOX_TEST_CRASHES"))
	if crashes == 0 {
		t.Skip("make brokers runs this test: it sets SLUICEBOX_TEST_CRASHES, the number of brokers to kill")
	}
	c := servers.Kafka(t, 3, nil)
	t.Run("killed", func(t *testing.T) { testBrokersKilled(t, c, crashes) })
	t.Run("unclean election", func(t *testing.T) { testUncleanElection(t, c) })
}

// testBrokersKilled kills the leader of a partition under load, again and again. Every row comes once, in
// the order of commits, and no shard takes a snapshot.
func testBrokersKilled(t *testing.T, c *servers.KafkaCluster, crashes int) {
	const partitions, groups, rows = 2, 8, 60
	r := &rig{url: servers.Database(t, servers.Versions()[0]), cluster: c, partitions: partitions, replicas: 3}
	r.begin(t)
	readers := make([]*capturetest.Follower, partitions)
	for p := range readers {
		src := r.source(t, r.config(p))
		t.Cleanup(src.Close)
		readers[p] = capturetest.FollowFrom(t, src, capturetest.OpenWithoutCheckpoint(t, src, &capturetest.Tables{Viewer: r.tables}).From)
	}
	want := make([][]string, partitions)
	n := 0
	commit := func() {
		for range rows {
			group := store.GroupOf(fmt.Sprint("g", n%groups))
			r.Begin(t, capturetest.Row{ID: strconv.Itoa(n), Group: group, Payload: "{}"})(true)
			p := record.Partition(&store.Item{Group: group}, partitions)
			want[p] = append(want[p], strconv.Itoa(n))
			n++
		}
	}
	for range crashes {
		commit()
		killed := c.Brokers[r.state(t).Leader-1]
		killed.Stop("immediate")
		commit() // while the cluster notices
		waitFor(t, "the topic has the rows", func() bool { return r.feeder.Load().Status().Buffered == 0 })
		for p, f := range readers {
			f.Until("all rows", func() bool { return len(f.Items) >= len(want[p]) })
		}
		killed.Restart(nil)
		waitFor(t, "all replicas are in sync", func() bool { return len(r.state(t).ISR) == 3 })
	}
	for p, f := range readers {
		f.Expect(want[p]...)
	}
}

// state returns the leader and the replicas of the first partition.
func (r *rig) state(t *testing.T) kadm.PartitionDetail {
	t.Helper()
	topics, err := r.admin.ListTopics(t.Context(), r.name)
	if err != nil {
		t.Fatal(err)
	}
	return topics[r.name].Partitions[0]
}

// testUncleanElection lets a broker lead that lacks acknowledged records, in a topic whose settings were
// weakened after the feeder had checked them. The shard notices, and takes a snapshot: no row is lost.
func testUncleanElection(t *testing.T, c *servers.KafkaCluster) {
	r := &rig{url: servers.Database(t, servers.Versions()[0]), cluster: c, partitions: 1, replicas: 2}
	r.begin(t)
	src := r.source(t, r.config(0))
	t.Cleanup(src.Close)
	tables := &capturetest.Tables{Viewer: r.tables}
	at := capturetest.OpenWithoutCheckpoint(t, src, tables)
	f := capturetest.FollowFrom(t, src, at.From)
	var want []string
	commit := func(n int) {
		for range n {
			want = append(want, fmt.Sprintf("%03d", len(want)))
			r.Begin(t, capturetest.Row{ID: want[len(want)-1], Group: store.GroupOf("g"), Payload: "{}"})(true)
		}
	}
	commit(20)
	f.Rows(20)
	now := r.state(t)
	lacking := now.Replicas[0]
	if lacking == now.Leader {
		lacking = now.Replicas[1]
	}
	c.Brokers[lacking-1].Stop("immediate")
	r.set(t, "min.insync.replicas", "1")
	r.set(t, "unclean.leader.election.enable", "true")
	waitFor(t, "a single replica is in sync", func() bool { return len(r.state(t).ISR) == 1 })
	commit(50) // that only the leader has
	f.Rows(70)
	f.Expect(want...)
	c.Brokers[now.Leader-1].Stop("immediate")
	c.Brokers[lacking-1].Restart(nil)
	set := kadm.TopicsSet{}
	set.Add(r.name, 0)
	waitFor(t, "the lacking broker leads", func() bool {
		_, _ = r.admin.ElectLeaders(t.Context(), kadm.ElectLiveReplica, set)
		return r.state(t).Leader == lacking
	})
	var lost *capture.LostError
	if err := f.WaitEnd(); !errors.As(err, &lost) {
		t.Fatalf("the source ended with %v, want a lost log", err)
	}
	t.Logf("the shard noticed: %v", lost)
	r.set(t, "unclean.leader.election.enable", "false") // else no feeder opens the topic
	r.set(t, "min.insync.replicas", "2")
	c.Brokers[now.Leader-1].Restart(nil)
	commit(10)
	again, err := src.Open(t.Context(), store.Checkpoint{Origin: at.Origin, Position: f.Position}, tables)
	if err != nil || again.View == nil {
		t.Fatalf("Open returned %+v, %v, want a snapshot", again, err)
	}
	items, err := again.View.Unsettled(t.Context(), store.UnsettledQuery{Outbox: "shop", Limit: 1000})
	again.View.Close()
	if err != nil {
		t.Fatal(err)
	}
	f = capturetest.FollowFrom(t, src, again.From)
	commit(10)
	f.Until("the last row", func() bool { return slices.Contains(f.IDs(), want[len(want)-1]) })
	var got []string
	for i := range items {
		got = append(got, items[i].ID)
	}
	if got = append(got, f.IDs()...); !slices.Equal(got, want) {
		t.Errorf("the view and the partition have %q,\nwant %q", got, want)
	}
}
