package shards

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/kafka/feed"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/backoff"
	"github.com/sluicebox/sluicebox/store/leader"
	"github.com/sluicebox/sluicebox/store/ledger"
)

// minRestart and maxRestart limit the wait before another session of the feeder.
const (
	minRestart = 100 * time.Millisecond
	maxRestart = 10 * time.Second
)

const (
	// cutOffFactor is how many session timeouts a leader may go without an answer of Kafka, for example
	// because only its way to the brokers is cut. The election of a partition's leader takes less.
	cutOffFactor = 5
	// cutOffPause leaves the lock to the processes that stand by, which try it every 250 ms.
	cutOffPause   = 3 * time.Second
	cutOffPerWait = 20 // checks within the time that a leader may go without an answer
)

// errCutOff ends the leadership of a process that does not reach Kafka.
var errCutOff = errors.New("kafka does not answer this process; the lock is free for another")

// Capture is the role of a process that reads the database's log: it competes for the lock of the relay's
// name and feeds the topic while it holds it.
type Capture struct {
	cfg     *Config
	options *sluicebox.Options
	log     *slog.Logger
	feeder  *feed.Feeder

	mu    sync.Mutex
	state CaptureState
}

// CaptureState is the state of a Capture.
type CaptureState struct {
	Leads  bool
	Leader string // of another process
	Detail string
	// Failed: it neither feeds nor stands by.
	Failed bool
}

// NewCapture returns the role. options are those of a relay without shards. It opens no connection.
func NewCapture(cfg *Config, options *sluicebox.Options, client string, log *slog.Logger) (*Capture, error) {
	c := &Capture{cfg: cfg, options: options, log: log, state: CaptureState{Detail: "starting", Failed: true}}
	kafkaOptions, err := cfg.options(client)
	if err != nil {
		return nil, err
	}
	c.feeder, err = feed.New(feed.Config{
		Client: kafkaOptions, Topic: cfg.Topic, Partitions: cfg.Partitions, Outboxes: outboxesOf(options), Observer: feedObserver{c},
	})
	return c, err
}

// CheckTopic returns the first fault of the topic; see feed.Feeder.
func (c *Capture) CheckTopic(ctx context.Context) error { return c.feeder.Check(ctx) }

// IsTopicMissing reports whether an error of CheckTopic says that the topic does not exist.
func IsTopicMissing(err error) bool { return errors.Is(err, kerr.UnknownTopicOrPartition) }

// CreateTopic creates the topic if it is missing; see feed.Feeder.
func (c *Capture) CreateTopic(ctx context.Context) (created bool, err error) {
	return c.feeder.Create(ctx)
}

// Diagnose implements store.Diagnoser.
func (c *Capture) Diagnose(ctx context.Context) ([]store.Finding, error) {
	return c.feeder.Diagnose(ctx)
}

// State returns the present state.
func (c *Capture) State() CaptureState {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

// Feed returns the state of the feeder.
func (c *Capture) Feed() feed.Status { return c.feeder.Status() }

func (c *Capture) set(s CaptureState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state = s
}

// Run competes and feeds until the context ends.
func (c *Capture) Run(ctx context.Context) {
	restart := backoff.Doubling{Min: minRestart, Max: maxRestart}
	for {
		began := time.Now()
		err := c.compete(ctx)
		if ctx.Err() != nil {
			return
		}
		c.set(CaptureState{Detail: err.Error(), Failed: true})
		c.log.Warn("capture failed; competing again", "error", err)
		if time.Since(began) > maxRestart {
			restart.Reset()
		}
		pause := restart.Next()
		if errors.Is(err, errCutOff) {
			pause = cutOffPause
		}
		if backoff.Sleep(ctx, pause) != nil {
			return
		}
	}
}

// compete opens the database, waits for the lock and feeds the topic while it holds it.
func (c *Capture) compete(ctx context.Context) error {
	st, err := openFenced(c.options.Database, store.Settings{Name: c.options.Name, Holder: c.options.Holder, Outboxes: outboxesOf(c.options), IdleTimeout: c.options.IdleTimeout}, shardsOf(c.cfg))
	if err != nil {
		return err
	}
	defer st.Close()
	if err := st.Install(ctx); err != nil {
		return err
	}
	if err := st.Check(ctx); err != nil {
		return err
	}
	candidate := leader.Candidate{Locker: st, Observer: standby{c}}
	tenure, err := candidate.Compete(ctx)
	if err != nil {
		return err
	}
	return c.lead(ctx, st, tenure)
}

// lead feeds the topic until the tenure or the context ends.
func (c *Capture) lead(ctx context.Context, st ledger.Store, tenure *leader.Tenure) error {
	defer tenure.Release()
	leads, depose := context.WithCancelCause(ctx)
	defer depose(nil)
	watch, end := context.WithCancel(context.WithoutCancel(ctx)) // keep the lock until the last checkpoint is saved
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		if err := tenure.Run(watch); watch.Err() == nil {
			depose(err)
		}
	}()
	defer func() {
		end()
		<-watched
	}()
	checked := make(chan struct{})
	go func() {
		defer close(checked)
		c.watchKafka(leads, depose)
	}()
	defer func() {
		depose(nil)
		<-checked
	}()
	c.set(CaptureState{Detail: "lock acquired; starting", Failed: true})
	restart := backoff.Doubling{Min: minRestart, Max: maxRestart}
	for {
		began := time.Now()
		err := c.feed(leads, st)
		if cause := context.Cause(leads); cause != nil {
			return cause
		}
		if errors.Is(err, store.ErrNotLeader) {
			return err
		}
		c.set(CaptureState{Detail: err.Error(), Failed: true})
		c.log.Warn("feeder failed; restarting from checkpoint", "error", err)
		if time.Since(began) > maxRestart {
			restart.Reset()
		}
		if err := backoff.Sleep(leads, restart.Next()); err != nil {
			return context.Cause(leads)
		}
	}
}

// watchKafka ends the leadership once Kafka has not answered for too long. An answer is an acknowledged
// record. An idle feeder writes one each second.
func (c *Capture) watchKafka(ctx context.Context, depose func(error)) {
	limit := cutOffFactor * c.cfg.SessionTimeout
	last := time.Now()
	for backoff.Sleep(ctx, limit/cutOffPerWait) == nil {
		now := c.Feed()
		switch {
		case now.Epoch != 0 && now.WaitingSince.IsZero():
			last = time.Now()
		case now.Epoch != 0 && now.WaitingSince.After(last):
			last = now.WaitingSince
		}
		if time.Since(last) > limit {
			depose(fmt.Errorf("%w: no answer for %s: %w", errCutOff, limit, cmp.Or(now.Problem, errNoRecord)))
			return
		}
	}
}

// errNoRecord is the problem of a feeder that knows of no other.
var errNoRecord = errors.New("no record was acknowledged")

// feed is one session of the feeder.
func (c *Capture) feed(ctx context.Context, st ledger.Store) error {
	src, err := c.options.Database.Stream(capture.Settings{Name: c.options.Name, Outboxes: outboxesOf(c.options)})
	if err != nil {
		return err
	}
	defer src.Close()
	return c.feeder.Run(ctx, feedTables{st}, src)
}

// originPrefix begins the origin of a feeder's checkpoint. So a relay without shards takes a snapshot
// after a feeder, because the rows before the feeder's checkpoint may wait in the topic. A feeder does
// so after such a relay.
const originPrefix = "scale/"

// feedTables are the tables of a feeder.
type feedTables struct{ ledger.Store }

// LoadCheckpoint implements store.Checkpoints.
func (t feedTables) LoadCheckpoint(ctx context.Context) (store.Checkpoint, error) {
	at, err := t.Store.LoadCheckpoint(ctx)
	origin, found := strings.CutPrefix(at.Origin, originPrefix)
	if err == nil && !found {
		return store.Checkpoint{}, nil
	}
	at.Origin = origin
	return at, err
}

// SaveCheckpoint implements store.Checkpoints.
func (t feedTables) SaveCheckpoint(ctx context.Context, epoch store.Epoch, at store.Checkpoint) error {
	if at.Position != "" {
		at.Origin = originPrefix + at.Origin
	}
	return t.Store.SaveCheckpoint(ctx, epoch, at)
}

// standby implements leader.Observer.
type standby struct{ *Capture }

// Standby implements leader.Observer.
func (s standby) Standby(holder string) {
	if holder == "" {
		holder = "another relay"
	}
	if s.State().Leader != holder {
		s.log.Info("standing by", "name", s.options.Name, "leader", holder)
	}
	s.set(CaptureState{Leader: holder, Detail: "standing by; " + holder + " leads"})
}

// LockFailed implements leader.Observer.
func (s standby) LockFailed(err error) {
	if text := err.Error(); s.State().Detail != text {
		s.log.Warn("leader lock unavailable; retrying", "error", err)
		s.set(CaptureState{Detail: text, Failed: true})
	}
}

// feedObserver implements feed.Observer.
type feedObserver struct{ *Capture }

// Leads implements feed.Observer.
func (o feedObserver) Leads(epoch store.Epoch) {
	o.log.Info("leadership acquired", "name", o.options.Name, "epoch", epoch)
	o.set(CaptureState{Leads: true, Detail: fmt.Sprintf("leading, epoch %d", epoch)})
}

// Restored implements feed.Observer.
func (o feedObserver) Restored(given, raised store.Epoch) {
	o.log.Warn("database restored to an earlier moment", "name", o.options.Name, "epoch", given, "raised", raised)
}

// Connected implements capture.Observer.
func (o feedObserver) Connected() {
	o.log.Info("log connected")
	o.set(CaptureState{Leads: true, Detail: fmt.Sprintf("leading, epoch %d", o.Feed().Epoch)})
}

// Disconnected implements capture.Observer.
func (o feedObserver) Disconnected(err error, wait time.Duration) {
	o.log.Warn("log connection lost; reconnecting", "error", err, "wait", wait)
	o.set(CaptureState{Leads: true, Detail: err.Error(), Failed: true})
}

// Saved implements checkpoint.Observer.
func (feedObserver) Saved(store.Checkpoint) {}

// SaveFailed implements checkpoint.Observer.
func (o feedObserver) SaveFailed(err error) {
	o.log.Warn("checkpoint save failed; retrying", "error", err)
}
