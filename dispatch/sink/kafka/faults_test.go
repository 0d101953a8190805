package kafka

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// rounds returns how often each fault happens: once, or SLUICEBOX_TEST_CRASHES times.
func rounds(t *testing.T) int {
	t.Helper()
	text := os.Getenv("SLUICEBOX_TEST_CRASHES")
	if text == "" {
		return 1
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("SLUICEBOX_TEST_CRASHES is %q, must be at least 1", text)
	}
	return n
}

// A cluster of three brokers loses some of them.
func TestCluster(t *testing.T) {
	c := newCluster(t, 3, nil)
	t.Run("Faults", c.testFaults)
	t.Run("TooFewReplicas", c.testTooFewReplicas)
}

// A topic with fewer replicas in sync than it demands takes no rows. They are delivered once it
// has enough again.
func (c *cluster) testTooFewReplicas(t *testing.T) {
	to := c.create(t, 1, map[string]*string{"min.insync.replicas": kadm.StringPtr("3")})
	cfg := to.config()
	cfg.RequestTimeout = 5 * time.Second
	s := open(t, cfg)
	deliverAll(t, s, row("a", 0))
	follower := to.Brokers[to.leader()%3]
	follower.Stop("fast") // it leaves the replicas in sync
	res := s.Deliver(t.Context(), []sink.Message{row("b", 0)})
	if res.Class != sink.Unavailable || !strings.Contains(res.Detail, "NOT_ENOUGH_REPLICAS") {
		t.Errorf("with two replicas in sync of three a row is %s: %s", res.Class, res.Detail)
	}
	if out := s.Probe(t.Context(), ""); out.Class != sink.Unavailable || !strings.Contains(out.Detail, "until more replicas are in sync") {
		t.Errorf("the probe is %s: %s", out.Class, out.Detail)
	}
	follower.Restart(nil)
	for ctx := to.context(t); s.Deliver(ctx, []sink.Message{row("b", 0)}).Class != sink.Delivered; {
		to.again(ctx, errors.New("row b is not delivered"))
	}
	if got := fmt.Sprint(to.Stored()); got != "[a b]" {
		t.Errorf("the topic has the rows %s, want [a b]", got)
	}
}

// Brokers are killed, frozen for longer than a request may take, and lose their partitions to
// others, while senders deliver. Each row is stored, and the first arrivals of each group are
// in order. Every delivered row is stored, and rows arrive twice only because of the faults.
func (c *cluster) testFaults(t *testing.T) {
	to := c.create(t, 4, map[string]*string{"min.insync.replicas": kadm.StringPtr("2")})
	cfg := to.config()
	cfg.RequestTimeout = time.Second
	l := startLoad(t, open(t, cfg))
	for range rounds(t) {
		for _, fault := range []struct {
			name  string
			cause func(*topicOf) (repair func())
		}{{"killed", (*topicOf).killLeader}, {"moved", (*topicOf).moveLeaders}, {"frozen", (*topicOf).freezeLeader}} {
			l.proceed(t)
			repair := fault.cause(to)
			<-time.After(time.Duration(rand.Int64N(int64(2 * cfg.RequestTimeout)))) // at random
			repair()
			before := l.unavailable.Load()
			l.proceed(t)
			t.Logf("%s: %d requests were unavailable so far", fault.name, before)
		}
	}
	delivered := l.end()
	to.expectInOrder(delivered)
}

// load are senders that deliver the rows of their groups.
type load struct {
	sink        *Sink
	stop        atomic.Bool
	all         sync.WaitGroup
	delivered   [loadSenders * loadLanes]int // rows of each group
	count       atomic.Int64
	unavailable atomic.Int64
}

const (
	loadSenders = 6
	loadLanes   = 4 // of each sender, in one request
	loadRun     = 20
)

func startLoad(t *testing.T, s *Sink) *load {
	l := &load{sink: s}
	for sender := range loadSenders {
		l.all.Go(func() { l.send(t, sender*loadLanes) })
	}
	t.Cleanup(func() { l.end() })
	return l
}

// send delivers rows of the groups from first on until the load ends.
func (l *load) send(t *testing.T, first int) {
	for !l.stop.Load() {
		var msgs []sink.Message
		for lane := range loadLanes {
			group := first + lane
			for n := range 1 + rand.IntN(loadRun) {
				msgs = append(msgs, sink.Message{ID: fmt.Sprintf("%d-%d", group, l.delivered[group]+n), Group: store.GroupOf(fmt.Sprint(group)), Lane: lane, Payload: []byte("{}")})
			}
		}
		res := l.sink.Deliver(context.Background(), msgs)
		failed := map[int]bool{}
		for i := range msgs {
			switch out := res.At(i); {
			case out.Class == sink.Delivered && failed[msgs[i].Lane]:
				t.Errorf("row %s is delivered behind one that is not", msgs[i].ID)
			case out.Class == sink.Delivered:
				l.delivered[first+msgs[i].Lane]++
				l.count.Add(1)
			case out.Class == sink.Unavailable, out.Class == sink.NotSent:
				failed[msgs[i].Lane] = true
			default:
				t.Errorf("row %s is %s: %s", msgs[i].ID, out.Class, out.Detail)
				return
			}
		}
		if len(failed) > 0 {
			l.unavailable.Add(1)
			<-time.After(10 * time.Millisecond) // the backoff of the lane
		}
	}
}

// proceed waits until rows of all senders were delivered.
func (l *load) proceed(t *testing.T) {
	t.Helper()
	const rows = 2000
	from, timeout := l.count.Load(), time.After(testTimeout)
	for l.count.Load() < from+rows {
		select {
		case <-timeout:
			t.Fatalf("%d rows are delivered in %s, want %d", l.count.Load()-from, testTimeout, rows)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// end ends the load and returns the number of delivered rows of each group.
func (l *load) end() []int {
	l.stop.Store(true)
	l.all.Wait()
	return l.delivered[:]
}

// expectInOrder checks the first arrivals of each group.
func (to *topicOf) expectInOrder(delivered []int) {
	to.tb.Helper()
	next, again, rows := make([]int, len(delivered)), 0, 0
	for _, id := range to.Stored() {
		group, row, _ := strings.Cut(id, "-")
		g, err := strconv.Atoi(group)
		n, err2 := strconv.Atoi(row)
		switch {
		case err != nil || err2 != nil:
			to.tb.Fatalf("a record has the id %q", id)
		case n > next[g]:
			to.tb.Fatalf("row %d of group %d arrives before row %d", n, g, next[g])
		case n < next[g]:
			again++
		default:
			next[g]++
			rows++
		}
	}
	for g, n := range delivered {
		if next[g] < n {
			to.tb.Errorf("group %d has %d rows, and %d were delivered", g, next[g], n)
		}
	}
	to.tb.Logf("%d rows in order, %d arrived again", rows, again)
}

// leader returns the broker that leads partition 0.
func (to *topicOf) leader() int32 {
	to.tb.Helper()
	all, err := to.admin.ListTopics(to.context(to.tb), to.name)
	if err != nil {
		to.tb.Fatal(err)
	}
	return all[to.name].Partitions[0].Leader
}

// killLeader ends a broker. Others take over, and it comes back.
func (to *topicOf) killLeader() (repair func()) {
	b := to.Brokers[to.leader()-1]
	b.Stop("immediate")
	return func() { b.Restart(nil) }
}

// freezeLeader stops a broker where it is. Clients and the other brokers get no answer.
func (to *topicOf) freezeLeader() (repair func()) {
	b := to.Brokers[to.leader()-1]
	b.Signal(syscall.SIGSTOP)
	return func() { b.Signal(syscall.SIGCONT) }
}

// moveLeaders gives all partitions to the next broker.
func (to *topicOf) moveLeaders() (repair func()) {
	to.tb.Helper()
	ctx := to.context(to.tb)
	var next kadm.AlterPartitionAssignmentsReq
	first := to.leader()%3 + 1
	for p := range to.partitions {
		next.Assign(to.name, p, []int32{first, first%3 + 1, (first+1)%3 + 1})
	}
	if _, err := to.admin.AlterPartitionAssignments(ctx, next); err != nil {
		to.tb.Fatal(err)
	}
	return func() {
		if _, err := to.admin.ElectLeaders(ctx, kadm.ElectPreferredReplica, kadm.TopicsSet{}); err != nil {
			to.tb.Error(err)
		}
		for to.leader() != first {
			to.again(ctx, errNoLeader)
		}
	}
}
