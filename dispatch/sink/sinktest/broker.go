package sinktest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// Broker is a real broker that runs for one test, with the part of it that the sink fills.
type Broker interface {
	// Stop ends the broker at once, without a word to its clients. Start starts it again, with
	// what it has stored, and returns once clients can connect.
	Stop()
	Start()

	// Stored returns the ids of the stored messages, in the order in which a consumer gets them.
	Stored() []string
}

// Fault is one way in which a delivery fails. Exactly one of its functions is set.
type Fault struct {
	Name  string
	Class sink.Class // of the messages that fail
	Final bool       // alone, it says that no attempt can succeed

	// Message changes a message so that it alone fails.
	Message func(m *sink.Message)

	// Break changes the broker so that every message fails, and repair ends that.
	Break func(tb testing.TB, b Broker) (repair func())

	// Sink returns another sink of the broker, for example with a wrong password. It closes the
	// sink with tb.Cleanup.
	Sink func(tb testing.TB, b Broker) sink.Sink
}

// BrokerHarness describes a sink of a broker, in any mode.
type BrokerHarness struct {
	// New returns a sink and its empty broker. It closes both with tb.Cleanup. The messages of
	// a group go to one place, in which the broker keeps their order.
	New func(tb testing.TB) (sink.Sink, Broker)

	// Kind is the kind of the messages.
	Kind string

	// Mode is the mode that the sink must have.
	Mode sink.Mode

	// Faults are the ways to fail.
	Faults []Fault

	// Secrets are credentials of the sinks. No detail may show them.
	Secrets []string
}

// RunBroker runs the suite of sinks of a broker.
func RunBroker(t *testing.T, h BrokerHarness) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
	t.Run("Order", h.testOrder)
	for _, f := range h.Faults {
		t.Run("Fault/"+f.Name, func(t *testing.T) { h.testFault(t, f) })
	}
	t.Run("Stopped", h.testStopped)
	t.Run("Outage", h.testOutage)
	t.Run("Cancelled", h.testCancelled)
}

// runLength returns how many messages of a lane a request of several lanes has.
func (h *BrokerHarness) runLength(limits sink.Limits) int {
	if limits.Mode == sink.PerItem {
		return 1
	}
	return min(limits.MaxItems, 4)
}

// requests splits the messages of lanes, with n of each, into requests within the limits.
func requests(msgs []sink.Message, n int, limits sink.Limits) (all [][]sink.Message) {
	size := max(1, limits.MaxItems/n) * n
	if limits.MaxLanes > 0 {
		size = min(size, limits.MaxLanes*n)
	}
	for len(msgs) > 0 {
		size = min(size, len(msgs))
		all = append(all, renumber(msgs[:size]))
		msgs = msgs[size:]
	}
	return all
}

// testOrder: without a fault each message of 1000 groups is stored once, in order, also if
// several senders share the sink.
func (h BrokerHarness) testOrder(t *testing.T) {
	s, b := h.New(t)
	limits := s.Limits(h.Kind)
	if limits.Mode != h.Mode {
		t.Fatalf("the mode is %d, want %d", limits.Mode, h.Mode)
	}
	const groups, senders, rounds = 1000, 8, 3
	n := h.runLength(limits)
	for round := range rounds {
		queue := make(chan []sink.Message)
		var wg sync.WaitGroup
		for range senders {
			wg.Go(func() {
				for msgs := range queue {
					if left := rest(t, msgs, deliver(t, s, msgs...)); left != nil {
						t.Errorf("message %s is not delivered", left[0].ID)
					}
				}
			})
		}
		for _, msgs := range requests(lanes(h.Kind, groups, round*n, round*n+n-1), n, limits) {
			queue <- msgs
		}
		close(queue)
		wg.Wait()
	}
	wantStored(t, b, lanes(h.Kind, groups, 0, rounds*n-1), true)
}

// testFault: a fault has its class and affects no message that it does not concern. Once it is
// gone the messages are stored.
func (h BrokerHarness) testFault(t *testing.T, f Fault) {
	s, b := h.New(t)
	limits := s.Limits(h.Kind)
	n := h.runLength(limits)
	msgs := requests(lanes(h.Kind, 5, 0, n-1), n, limits)[0]
	repair := func() {}
	switch {
	case f.Sink != nil:
		s = f.Sink(t, b)
	case f.Break != nil:
		repair = f.Break(t, b)
	case f.Message != nil:
		h.testBadMessage(t, s, b, msgs, f)
		return
	}
	res := deliver(t, s, msgs...)
	for i := range msgs {
		if out := res.At(i); i%n == 0 || out.Class != sink.NotSent {
			h.wantFault(t, f.Class, msgs[i].ID, out)
		}
	}
	t.Logf("%s: %s", res.At(0).Class, res.At(0).Detail)
	if f.Sink != nil {
		return
	}
	repair()
	h.deliverAll(t, s, msgs)
	wantStored(t, b, msgs, false)
}

// testBadMessage: a message that can never be stored is reported. The messages of other lanes
// are stored, unless the sink is atomic, and those of its lane once they are sent without it.
func (h BrokerHarness) testBadMessage(t *testing.T, s sink.Sink, b Broker, msgs []sink.Message, f Fault) {
	bad := len(msgs) / 2
	lane := msgs[bad].Lane
	f.Message(&msgs[bad])
	res := deliver(t, s, msgs...)
	h.wantFault(t, f.Class, msgs[bad].ID, res.At(bad))
	alone := deliver(t, s, renumber(msgs[bad:bad+1])...)
	h.wantFault(t, f.Class, msgs[bad].ID, alone.At(0))
	if final := alone.At(0).Final; final != f.Final {
		t.Errorf("alone it is final: %t, want %t", final, f.Final)
	}
	for i := range msgs {
		if i != bad && res.At(i).Final {
			t.Errorf("message %s is final, although another one is at fault", msgs[i].ID)
		}
	}
	t.Logf("%s: %s", f.Class, res.At(bad).Detail)
	isBad := func(m sink.Message) bool { return m.ID == msgs[bad].ID }
	left := rest(t, msgs, res)
	for i := range left {
		if left[i].Lane != lane && (h.Mode == sink.PerItem || h.Mode == sink.Prefix) {
			t.Errorf("message %s of another lane is not delivered", left[i].ID)
		}
	}
	h.deliverAll(t, s, slices.DeleteFunc(left, isBad))
	wantStored(t, b, slices.DeleteFunc(slices.Clone(msgs), isBad), true)
}

// wantFault fails the test unless a message has the class, and a detail without secrets.
func (h *BrokerHarness) wantFault(t *testing.T, class sink.Class, id string, out sink.Outcome) {
	t.Helper()
	if out.Class != class || out.Detail == "" {
		t.Errorf("message %s is %s (%q), want %s", id, out.Class, out.Detail, class)
	}
	for _, secret := range h.Secrets {
		if strings.Contains(out.Detail, secret) {
			t.Errorf("message %s: the detail shows a secret: %q", id, out.Detail)
		}
	}
}

// retryPause is the pause between two attempts to a broker that is away.
const retryPause = 20 * time.Millisecond

// deliverAll delivers messages, request by request, until all are delivered.
func (h *BrokerHarness) deliverAll(t *testing.T, s sink.Sink, msgs []sink.Message) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), longTimeout+slack)
	defer cancel()
	h.deliverUntil(ctx, t, s, msgs)
}

// deliverUntil is deliverAll with another bound.
func (h *BrokerHarness) deliverUntil(ctx context.Context, t *testing.T, s sink.Sink, msgs []sink.Message) {
	t.Helper()
	limits := s.Limits(h.Kind)
	for _, left := range requests(msgs, 1, limits) {
		for len(left) > 0 {
			res := s.Deliver(ctx, left)
			left = renumber(rest(t, left, res))
			if len(left) == 0 {
				break
			}
			select {
			case <-ctx.Done():
				t.Errorf("message %s is not delivered in time", left[0].ID)
				return
			case <-time.After(retryPause):
			}
		}
	}
}

// testStopped: a broker that is down blames no message. Once it is back the messages are
// stored in order, though some may be stored twice.
func (h BrokerHarness) testStopped(t *testing.T) {
	s, b := h.New(t)
	first := requests(lanes(h.Kind, 5, 0, 0), 1, s.Limits(h.Kind))[0]
	h.deliverAll(t, s, first)
	b.Stop()
	msgs := requests(lanes(h.Kind, 5, 1, 1), 1, s.Limits(h.Kind))[0]
	res := deliver(t, s, msgs...)
	for i := range msgs {
		h.wantFault(t, sink.Unavailable, msgs[i].ID, res.At(i))
	}
	if p, ok := s.(sink.Prober); ok {
		if out := p.Probe(t.Context(), h.Kind); out.Class != sink.Unavailable || out.Detail == "" {
			t.Errorf("a probe of a broker that is down is %s (%q), want unavailable", out.Class, out.Detail)
		}
	}
	b.Start()
	h.deliverAll(t, s, msgs)
	wantStored(t, b, append(first, msgs...), false)
}

// testOutage: the broker crashes while many senders deliver. Each of their groups arrives
// without a gap, in order, and soon after the broker is back, however long its start takes.
func (h BrokerHarness) testOutage(t *testing.T) {
	const groups, each = 20, 30
	s, b := h.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var delivered atomic.Int64
	third := make(chan struct{})
	var wg sync.WaitGroup
	for g := range groups {
		wg.Go(func() {
			for i := range each {
				msgs := lanes(h.Kind, groups, i, i)[g : g+1]
				h.deliverUntil(ctx, t, s, renumber(msgs))
				if delivered.Add(1) == groups*each/3 {
					close(third)
				}
			}
		})
	}
	select {
	case <-third:
		b.Stop()
		b.Start()
	case <-time.After(longTimeout + slack):
		t.Error("a third of the messages is not delivered in time")
	}
	defer time.AfterFunc(longTimeout+slack, cancel).Stop()
	wg.Wait()
	wantStored(t, b, lanes(h.Kind, groups, 0, each-1), false)
}

// testCancelled: a request whose context has ended is unavailable.
func (h BrokerHarness) testCancelled(t *testing.T) {
	s, _ := h.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	res := deliverCtx(ctx, s, lanes(h.Kind, 1, 0, 0)...)
	h.wantFault(t, sink.Unavailable, fmt.Sprint(0), res.At(0))
}
