package sinktest_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store"
)

// fakeBroker is a broker and its sink, which answers each message.
type fakeBroker struct {
	mu      sync.Mutex
	stored  []string
	stopped bool
	full    bool
	wrong   bool // the address is
}

func (b *fakeBroker) Limits(string) sink.Limits {
	return sink.Limits{Mode: sink.PerItem, MaxItems: 100, MaxBytes: 1 << 20}
}

func (b *fakeBroker) Deliver(ctx context.Context, msgs []sink.Message) (res sink.Result) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range msgs {
		out := sink.Outcome{Class: sink.Delivered}
		switch {
		case b.wrong:
			out = sink.Outcome{Class: sink.Misconfigured, Reason: store.ReasonForbidden, Detail: "not allowed"}
		case b.stopped, b.full, ctx.Err() != nil:
			out = sink.Outcome{Class: sink.Unavailable, Reason: store.ReasonGateway, Detail: "no broker"}
		case len(msgs[i].Payload) > 100:
			out = sink.Outcome{Class: sink.Rejected, Reason: store.ReasonBadRequest, Detail: "too large", Final: true}
		default:
			b.stored = append(b.stored, msgs[i].ID)
		}
		res.Items = append(res.Items, out)
	}
	return res
}

func (b *fakeBroker) set(field *bool, value bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	*field = value
}

func (b *fakeBroker) Stop()  { b.set(&b.stopped, true) }
func (b *fakeBroker) Start() { b.set(&b.stopped, false) }

func (b *fakeBroker) Stored() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.stored)
}

func TestBrokerSuite(t *testing.T) {
	sinktest.RunBroker(t, sinktest.BrokerHarness{
		Kind: "EVENT", Mode: sink.PerItem, Secrets: []string{"hunter2"},
		New: func(testing.TB) (sink.Sink, sinktest.Broker) {
			b := &fakeBroker{}
			return b, b
		},
		Faults: []sinktest.Fault{
			{Name: "too large", Class: sink.Rejected, Final: true, Message: func(m *sink.Message) { m.Payload = make([]byte, 101) }},
			{Name: "full", Class: sink.Unavailable, Break: func(_ testing.TB, b sinktest.Broker) (repair func()) {
				fake := b.(*fakeBroker)
				fake.set(&fake.full, true)
				return func() { fake.set(&fake.full, false) }
			}},
			{Name: "forbidden", Class: sink.Misconfigured, Sink: func(testing.TB, sinktest.Broker) sink.Sink { return &fakeBroker{wrong: true} }},
		},
	})
}
