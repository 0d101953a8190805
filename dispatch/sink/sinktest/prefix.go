package sinktest

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// Log is the destination of a sink in mode [sink.Prefix]. It may have several parts, as long
// as each group is in one.
type Log interface {
	// Refuse lets the log refuse the messages with these ids, alone or with all behind them
	// in their part. Messages are accepted again after a call without ids.
	Refuse(ids ...string)

	// Stop makes the log unavailable, Start ends that.
	Stop()
	Start()

	// Stored returns the ids of the stored messages. Those of a group are in their order.
	Stored() []string
}

// LogHarness describes a sink in mode [sink.Prefix].
type LogHarness struct {
	// New returns a sink and its empty destination. It closes both with tb.Cleanup.
	New func(tb testing.TB) (sink.Sink, Log)

	// Kind is the kind of the messages.
	Kind string
}

// RunLog runs the suite of sinks in mode [sink.Prefix].
func RunLog(t *testing.T, h LogHarness) {
	t.Run("Order", h.testOrder)
	t.Run("Refused", h.testRefused)
	t.Run("Stopped", h.testStopped)
	t.Run("Cancelled", h.testCancelled)
}

// lanes returns a request: the messages first to last of some lanes.
func (h LogHarness) lanes(n, first, last int) []sink.Message { return lanes(h.Kind, n, first, last) }

// lanes returns the messages first to last of n lanes.
func lanes(kind string, n, first, last int) (msgs []sink.Message) {
	for lane := range n {
		for i := first; i <= last; i++ {
			id := fmt.Sprintf("%d-%d", lane, i)
			msgs = append(msgs, sink.Message{
				ID: id, Kind: kind, Group: store.GroupOf(fmt.Sprint(lane)), Lane: lane, Attempt: 1,
				Payload: fmt.Appendf(nil, `{"id":%q}`, id),
			})
		}
	}
	return msgs
}

// rest returns the messages that were not delivered. It fails the test if a lane has a
// delivered message behind another.
func rest(t *testing.T, msgs []sink.Message, res sink.Result) (left []sink.Message) {
	t.Helper()
	if first := res.At(0); first.Class == sink.NotSent {
		t.Error("the first message of the request is not_sent")
	}
	for i := range msgs {
		out := res.At(i)
		if out.Class != sink.Delivered {
			left = append(left, msgs[i])
		} else if n := len(left); n > 0 && left[n-1].Lane == msgs[i].Lane {
			t.Errorf("message %s is delivered, %s before it is not", msgs[i].ID, left[n-1].ID)
		}
		if (out.Detail == "") != (out.Class == sink.Delivered || out.Class == sink.NotSent) {
			t.Errorf("message %s is %s with the detail %q", msgs[i].ID, out.Class, out.Detail)
		}
	}
	return left
}

// wantStored compares the first arrivals of each lane with the messages. With once, no
// message may be stored twice.
func wantStored(t *testing.T, log interface{ Stored() []string }, msgs []sink.Message, once bool) {
	t.Helper()
	got, want := map[string][]string{}, map[string][]string{}
	group := map[string]string{}
	for i := range msgs {
		g := msgs[i].Group.Name
		group[msgs[i].ID], want[g] = g, append(want[g], msgs[i].ID)
	}
	for _, id := range log.Stored() {
		if g := group[id]; once || !slices.Contains(got[g], id) {
			got[g] = append(got[g], id)
		}
	}
	for g := range want {
		if !slices.Equal(got[g], want[g]) {
			t.Errorf("lane %s: stored %v, want %v", g, got[g], want[g])
		}
	}
}

// testOrder: without a fault each message of 1000 lanes is stored once, in order.
func (h LogHarness) testOrder(t *testing.T) {
	s, log := h.New(t)
	limits := s.Limits(h.Kind)
	if limits.Mode != sink.Prefix {
		t.Fatalf("the mode is %d, want Prefix", limits.Mode)
	}
	const lanes = 1000
	for round := range 3 {
		all := h.lanes(lanes, 2*round, 2*round+1)
		for msgs := range slices.Chunk(all, max(2, min(limits.MaxItems, 100))/2*2) {
			if left := rest(t, msgs, deliver(t, s, renumber(msgs)...)); left != nil {
				t.Fatalf("message %s is not delivered", left[0].ID)
			}
		}
	}
	wantStored(t, log, h.lanes(lanes, 0, 5), true)
}

// renumber numbers the lanes of a request from 0.
func renumber(msgs []sink.Message) []sink.Message {
	msgs = slices.Clone(msgs)
	n, last := -1, -1
	for i := range msgs {
		if msgs[i].Lane != last {
			last = msgs[i].Lane
			n++
		}
		msgs[i].Lane = n
	}
	return msgs
}

// testRefused: of the lanes with a refused message a prefix is stored and reported, the
// others are stored as a whole. Another request with the rest completes each lane, and
// nothing is stored twice.
func (h LogHarness) testRefused(t *testing.T) {
	s, log := h.New(t)
	msgs := h.lanes(4, 0, 9)
	log.Refuse("1-0", "2-5")
	res := deliver(t, s, msgs...)
	left := rest(t, msgs, res)
	for i := range msgs {
		if id := msgs[i].ID; id == "2-5" && !slices.ContainsFunc(left, func(m sink.Message) bool { return m.ID == id }) {
			t.Errorf("message %s is refused, and reported as delivered", id)
		}
	}
	if slices.ContainsFunc(left, func(m sink.Message) bool { return m.Lane == 0 || m.Lane == 3 }) {
		t.Errorf("a lane fails with another: %v", res.Items)
	}

	log.Refuse()
	if left = rest(t, renumber(left), deliver(t, s, renumber(left)...)); left != nil {
		t.Fatalf("message %s is not delivered", left[0].ID)
	}
	wantStored(t, log, msgs, true)
}

// testStopped: a log that is unavailable blames no message. Once it is back, the messages
// are stored in order, though some may be stored twice.
func (h LogHarness) testStopped(t *testing.T) {
	s, log := h.New(t)
	msgs := h.lanes(4, 0, 9)
	log.Stop()
	res := deliver(t, s, msgs...)
	left := rest(t, msgs, res)
	if len(left) != len(msgs) {
		t.Errorf("%d messages are delivered to a log that is down", len(msgs)-len(left))
	}
	for i := range msgs {
		if class := res.At(i).Class; class != sink.Unavailable && class != sink.NotSent {
			t.Fatalf("message %s is %s, want unavailable", msgs[i].ID, class)
		}
	}

	log.Start()
	for tries := 0; left != nil && tries < 100; tries++ {
		left = rest(t, renumber(left), deliver(t, s, renumber(left)...))
	}
	wantStored(t, log, msgs, false)
}

// testCancelled: a request whose context has ended is unavailable.
func (h LogHarness) testCancelled(t *testing.T) {
	s, _ := h.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	want(t, deliverCtx(ctx, s, h.lanes(1, 0, 0)...), 1, sink.Unavailable)
}
