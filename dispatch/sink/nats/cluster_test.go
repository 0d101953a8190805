package nats_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/nats"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// cluster is three servers with the stream ORDERS.
type cluster struct {
	tb      testing.TB
	servers []*servers.NATSServer
}

// startCluster starts servers with a stream of so many replicas.
func startCluster(t *testing.T, replicas int) *cluster {
	t.Helper()
	c := &cluster{t, servers.NATS.Cluster(t, 3)}
	c.retry(c.servers[0], func(ctx context.Context, js jetstream.JetStream) error {
		_, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, Replicas: replicas, AllowAtomicPublish: true})
		return err
	})
	return c
}

// retry calls a function until it succeeds: the cluster may be without a leader.
func (c *cluster) retry(at *servers.NATSServer, call func(ctx context.Context, js jetstream.JetStream) error) {
	c.tb.Helper()
	b := &broker{tb: c.tb, NATSServer: at}
	b.admin(func(ctx context.Context, js jetstream.JetStream) error {
		for {
			once, cancel := context.WithTimeout(ctx, time.Second)
			err := call(once, js)
			cancel()
			if err == nil || ctx.Err() != nil {
				return err
			}
		}
	})
}

// leader returns the leader of the stream, and another server.
func (c *cluster) leader(ask *servers.NATSServer) (leader, other *servers.NATSServer) {
	c.tb.Helper()
	name := ""
	c.retry(ask, func(ctx context.Context, js jetstream.JetStream) error {
		stream, err := js.Stream(ctx, "ORDERS")
		if err != nil {
			return err
		}
		if name = stream.CachedInfo().Cluster.Leader; name == "" {
			return errors.New("no leader")
		}
		return nil
	})
	for i, s := range c.servers {
		if fmt.Sprintf("n%d", i+1) == name {
			leader = s
		} else {
			other = s
		}
	}
	return leader, other
}

// A stream whose only server is down is known to the others: that is an outage and no mistake in
// the configuration.
func TestStreamWithoutLeader(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	leader, other := c.leader(c.servers[0])
	b := &broker{tb: t, NATSServer: other}
	s := newSink(t, b.config())
	want(t, s, run(0, 0), sink.Delivered)
	leader.Stop("immediate")
	for end := time.Now().Add(patience); ; {
		res := want(t, s, run(1, 1), sink.Unavailable)
		if strings.Contains(res.Detail, "stream ORDERS does not answer") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("got detail %q", res.Detail)
		}
	}
	leader.Restart(nil)
	deliverUntil(t, s, run(1, 1))
	b.NATSServer = leader
	wantStored(t, b, ids(0, 1))
}

// The leader of a stream of three replicas is killed. Each message is stored once, in order.
func TestLeaderIsKilled(t *testing.T) {
	t.Parallel()
	for _, batch := range []nats.Batch{nats.BatchNone, nats.BatchAtomic} {
		t.Run(string(batch), func(t *testing.T) {
			t.Parallel()
			c := startCluster(t, 3)
			leader, other := c.leader(c.servers[0])
			config := (&broker{tb: t, NATSServer: leader}).config() // the client learns the addresses of the others
			config.RequestTimeout, config.Batch = 2*time.Second, batch
			s := newSink(t, config)
			const messages = 300
			size := 1
			if batch == nats.BatchAtomic {
				size = 10
			}
			for first := 0; first < messages; first += size {
				switch first {
				case 100:
					leader.Stop("immediate")
				case 200:
					leader.Restart(nil)
				}
				deliverUntil(t, s, run(first, first+size-1))
			}
			var stored []jetstream.Msg
			c.retry(other, func(ctx context.Context, js jetstream.JetStream) (err error) {
				stored, err = readAll(ctx, js)
				return err
			})
			if got, wanted := msgIDs(stored), ids(0, messages-1); !slices.Equal(got, wanted) {
				t.Errorf("got %d messages stored, want %d: %v", len(got), messages, got)
			}
		})
	}
}
