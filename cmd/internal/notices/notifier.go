package notices

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/sluicebox/sluicebox/dispatch"
)

// Age is the age of the oldest waiting row of the relay.
type Age struct {
	Oldest time.Time // zero: no row waits
	Rows   int
}

// Options are the inputs of a Notifier.
type Options struct {
	Relay, Holder string

	// Agent is the User-Agent of requests.
	Agent string

	Log *slog.Logger

	// Age returns the age of the rows. It is called once per ageInterval while MaxAge is set. It may be
	// nil.
	Age func() Age

	// Sent, if not nil, is called with each notice that a target got, did not get, or that its queue
	// had no room for: sent, failed or dropped.
	Sent func(target, outcome string)
}

const (
	// ageInterval is how often the age of the rows is looked at.
	ageInterval = 5 * time.Second

	// endTimeout limits the delivery of the notices that are left when Run ends.
	endTimeout = 5 * time.Second
)

// Notifier makes notices of what observers report. Its methods return at once and are safe for
// concurrent use. Without a configuration it drops everything.
type Notifier struct {
	opt       Options
	targetsOf func(*Config) ([]*target, error)
	wake      chan struct{} // of Run

	mu      sync.Mutex
	config  *Config
	machine *machine // nil without a configuration
	targets []*target
	retired []*target // of an earlier configuration
	leads   bool
}

// New returns a notifier. It starts nothing.
func New(o Options) *Notifier {
	n := &Notifier{opt: o, wake: make(chan struct{}, 1)}
	n.targetsOf = n.newTargets
	return n
}

// Configure replaces the configuration; nil is none. Conditions that are raised stay so. The error says
// which file of the webhook is unusable, and then nothing has changed.
func (n *Notifier) Configure(c *Config) error {
	targets, err := n.targetsOf(c)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.retired = append(n.retired, n.targets...)
	n.config, n.targets = c, targets
	switch {
	case c == nil:
		n.machine = nil
	case n.machine == nil:
		n.machine = newMachine(c.Rules)
	default:
		n.machine.rules = c.Rules
	}
	n.signal()
	return nil
}

func (n *Notifier) signal() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// change changes the machine, if there is one.
func (n *Notifier) change(do func(m *machine, now time.Time)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.machine == nil {
		return
	}
	do(n.machine, time.Now())
	n.signal()
}

// Leads reports that the relay has become the leader, or leads in another session.
func (n *Notifier) Leads() { n.setLeads(true) }

// StandsBy reports that the relay is not the leader. It clears what it raised as a leader, because
// only the next one knows more.
func (n *Notifier) StandsBy() { n.setLeads(false) }

func (n *Notifier) setLeads(leads bool) {
	n.change(func(m *machine, now time.Time) {
		if n.leads != leads {
			m.leaderChanged(now)
		}
		if n.leads = leads; !leads {
			n.send(m.clear(now, false))
		}
	})
}

// Breakers reports all open circuit breakers of a sink.
func (n *Notifier) Breakers(sink string, all []dispatch.OpenBreaker) {
	prefix := sink + "\x00"
	hold := map[string]Details{}
	for i := range all {
		if b := &all[i]; !b.Idle {
			hold[prefix+b.Endpoint] = Details{Sink: sink, Endpoint: b.Endpoint, Class: b.LastFailure.Class.String(), Error: b.LastFailure.Detail}
		}
	}
	n.change(func(m *machine, now time.Time) {
		m.setOnly(now, BreakerOpen, func(subject string) bool { return strings.HasPrefix(subject, prefix) }, hold)
	})
}

// RowFailed reports a FAILED row.
func (n *Notifier) RowFailed(sink, outbox, id string) {
	n.change(func(m *machine, now time.Time) { m.rowFailed(now, sink, outbox+"/"+id) })
}

// Retained reports the bytes of log that the database retains, and their limit; 0 is none.
func (n *Notifier) Retained(bytes, limit int64) {
	n.change(func(m *machine, now time.Time) {
		percent := int64(m.rules.RetainedPercent)
		holds := percent > 0 && limit > 0 && bytes/100 >= limit/100*percent/100
		m.set(now, key{event: LogNearLimit}, holds, Details{RetainedBytes: bytes, LimitBytes: limit})
	})
}

// look looks at the age of the rows.
func (n *Notifier) look() {
	n.mu.Lock()
	wanted := n.machine != nil && n.opt.Age != nil && n.machine.rules.MaxAge > 0
	n.mu.Unlock()
	if !wanted {
		return
	}
	of := n.opt.Age() // without the lock, because it asks the dispatchers
	n.change(func(m *machine, now time.Time) {
		age := now.Sub(of.Oldest)
		holds := !of.Oldest.IsZero() && age >= m.rules.MaxAge && m.rules.MaxAge > 0
		m.set(now, key{event: RowsLate}, holds, Details{Seconds: age.Round(time.Second).Seconds(), Rows: of.Rows})
	})
}

// Run sends notices until the context ends. Then it clears what is raised, and delivers what is
// queued within endTimeout. Call Run once.
func (n *Notifier) Run(ctx context.Context) {
	deliver, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var running sync.WaitGroup
	started := map[*target]bool{}
	ages := time.NewTicker(ageInterval)
	defer ages.Stop()
	for {
		wait := n.step(func(t *target) {
			if !started[t] {
				started[t] = true
				running.Go(func() { t.run(deliver) })
			}
		})
		select {
		case <-ctx.Done():
			n.end()
			defer time.AfterFunc(endTimeout, stop).Stop()
			running.Wait()
			return
		case <-n.wake:
		case <-ages.C:
			n.look()
		case <-wait:
		}
	}
}

// step queues the notices that are due, and returns when there may be others. It starts new targets
// and ends retired ones.
func (n *Notifier) step(start func(*target)) <-chan time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, t := range n.targets {
		start(t)
	}
	for _, t := range n.retired {
		start(t) // for what it has queued
		t.end()
	}
	n.retired = nil
	if n.machine == nil {
		return nil
	}
	n.send(n.machine.due(time.Now()))
	at := n.machine.next()
	if at.IsZero() {
		return nil
	}
	return time.After(time.Until(at))
}

// end clears what is raised and ends the targets.
func (n *Notifier) end() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.machine != nil {
		n.send(n.machine.clear(time.Now(), true))
	}
	for _, t := range append(n.targets, n.retired...) {
		t.end()
	}
}

// send queues notices for each target. The caller holds the lock.
func (n *Notifier) send(all []Notice) {
	for i := range all {
		one := &all[i]
		one.ID, one.Relay, one.Holder = uuid.NewString(), n.opt.Relay, n.opt.Holder
		one.Since, one.At = one.Since.UTC(), one.At.UTC()
		n.opt.Log.Info("notice made", "event", string(one.Event), "state", string(one.State), "sink", one.Details.Sink, "id", one.ID)
		text, err := json.Marshal(one)
		if err != nil {
			panic("notices: encode a notice: " + err.Error()) // texts and numbers have no errors
		}
		for _, t := range n.targets {
			t.add(message{id: one.ID, text: text})
		}
	}
}
