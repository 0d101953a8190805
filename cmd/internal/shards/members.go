package shards

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicebox/sluicebox/store"
)

// Members makes this process a member of the consumer group of a topic, and runs a shard for each
// partition that the group assigns to it.
type Members struct {
	Config *Config
	// Client is the name of the client.
	Client string
	// Drain is how long a shard may take to end. The group waits for it.
	Drain time.Duration
	// Run is a shard. It ends soon after its context, and has drained then.
	Run func(ctx context.Context, partition int)
	Log *slog.Logger

	mu      sync.Mutex
	running map[int]*shardRun
	problem error
	logged  time.Time // when the problem was logged last
	unused  int       // partitions that this process got and that are none of the configuration
}

// shardRun is one run of a shard.
type shardRun struct {
	stop context.CancelFunc
	done chan struct{}
}

const (
	// minRejoin and maxRejoin limit the wait before a member that could not join tries again. The wait
	// doubles.
	minRejoin = 20 * time.Millisecond
	maxRejoin = 2 * time.Second
	// repeatProblem is how often the same problem is logged.
	repeatProblem = time.Minute
)

// joinDelay is added to Drain for the members to join the group again.
const joinDelay = 10 * time.Second

// Serve runs shards until the context ends, lets them drain and leaves the group. The error is a
// *store.SetupError about the configuration.
func (m *Members) Serve(ctx context.Context) error {
	options, err := m.Config.options(m.Client)
	if err != nil {
		return err
	}
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	m.running = map[int]*shardRun{}
	hook := func(do func(base context.Context, partitions []int32)) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, all map[string][]int32) { do(base, all[m.Config.Topic]) }
	}
	client, err := kgo.NewClient(append(slices.Clone(options),
		kgo.ConsumerGroup(m.Config.Topic),
		kgo.ConsumeTopics(m.Config.Topic),
		kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.DisableAutoCommit(),
		kgo.SessionTimeout(m.Config.SessionTimeout),
		kgo.HeartbeatInterval(m.Config.SessionTimeout/6),
		kgo.RebalanceTimeout(m.Drain+joinDelay),
		kgo.OnPartitionsAssigned(hook(m.assigned)),
		kgo.OnPartitionsRevoked(hook(m.revoked)),
		kgo.OnPartitionsLost(hook(m.lost)),
		kgo.WithHooks(m),
		kgo.RetryBackoffFn(func(tries int) time.Duration { return min(minRejoin<<min(tries, 10), maxRejoin) }),
	)...)
	if err != nil {
		return &store.SetupError{Problem: "scale: " + err.Error(), Remedy: "correct the section scale"}
	}
	client.PauseFetchTopics(m.Config.Topic) // a shard reads its partition itself
	<-ctx.Done()
	leave, done := context.WithTimeout(base, m.Drain+joinDelay)
	defer done()
	_ = client.LeaveGroupContext(leave) // a member that cannot leave times out
	client.CloseAllowingRebalance()
	cancel()
	for _, r := range m.runs() {
		<-r.done
	}
	return nil
}

// OnGroupManageError implements kgo.HookGroupManageError.
func (m *Members) OnGroupManageError(err error) {
	m.mu.Lock()
	known := m.problem != nil && m.problem.Error() == err.Error() && time.Since(m.logged) < repeatProblem
	m.problem = err
	if !known {
		m.logged = time.Now()
	}
	m.mu.Unlock()
	if !known {
		m.Log.Warn("consumer group left; joining again", "error", err)
	}
}

// Problem returns why the process is not in the group, nil if it is, or tries to join.
func (m *Members) Problem() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.problem
}

// Unused returns how many partitions this process has that were added to the topic, and that nobody writes.
func (m *Members) Unused() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.unused
}

// ignore counts the partitions that are none of the configuration, and returns the others.
func (m *Members) ignore(partitions []int32, count int) []int32 {
	used := slices.DeleteFunc(slices.Clone(partitions), func(p int32) bool { return int(p) >= m.Config.Partitions })
	more := len(partitions) - len(used)
	if more > 0 && count > 0 && m.unused == 0 {
		m.Log.Error("topic has partitions that stay unused", "topic", m.Config.Topic, "used", m.Config.Partitions,
			"remedy", "none is lost; to use them, set scale.partitions to the number of the topic and restart the processes")
	}
	m.unused = max(0, m.unused+count*more)
	return used
}

// runs returns all runs.
func (m *Members) runs() (all []*shardRun) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.running {
		all = append(all, r)
	}
	return all
}

// assigned starts the shards of partitions. A shard waits for its former run.
func (m *Members) assigned(base context.Context, partitions []int32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.problem = nil
	partitions = m.ignore(partitions, 1)
	if len(partitions) > 0 {
		m.Log.Info("shards assigned", "shards", partitions)
	}
	for _, of := range partitions {
		partition, former := int(of), m.running[int(of)]
		ctx, stop := context.WithCancel(base)
		r := &shardRun{stop: stop, done: make(chan struct{})}
		m.running[partition] = r
		go func() {
			defer close(r.done)
			if former != nil {
				<-former.done
			}
			if ctx.Err() == nil {
				m.Run(ctx, partition)
			}
		}()
	}
}

// revoked ends the shards of partitions, and waits for them: their next owner starts then.
func (m *Members) revoked(_ context.Context, partitions []int32) {
	for _, r := range m.end("shards revoked", partitions) {
		<-r.done
	}
}

// lost ends the shards of partitions, which may have another owner already.
func (m *Members) lost(_ context.Context, partitions []int32) { m.end("shards lost", partitions) }

// end tells the shards of partitions to end.
func (m *Members) end(event string, partitions []int32) (ended []*shardRun) {
	m.mu.Lock()
	defer m.mu.Unlock()
	partitions = m.ignore(partitions, -1)
	if len(partitions) > 0 {
		m.Log.Info(event, "shards", partitions)
	}
	for _, of := range partitions {
		if r := m.running[int(of)]; r != nil {
			r.stop()
			ended = append(ended, r)
		}
	}
	return ended
}
