package poll_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/capture/poll"
	"github.com/sluicebox/sluicebox/store"
)

// TestRowsInFlightAreNotReadAgain: rows that wait in the channel, not yet held by a lane, are not read
// again. A full batch is followed by the next at once.
func TestRowsInFlightAreNotReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		m.insert("shop", "a", 25)
		out := make(chan capture.Batch, 16)
		var held []string // by the receiver, which takes nothing for 5 s
		src := poll.New(config(10), m, capturetest.HeldFunc(func(string) []string {
			m.mu.Lock()
			defer m.mu.Unlock()
			return slices.Clone(held)
		}))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- src.Run(ctx, capture.Span{}, out) }()
		time.Sleep(5 * time.Second) // fake time: five more reads
		synctest.Wait()
		m.mu.Lock()
		if reads := m.reads["shop"]; len(reads) < 5 || reads[2] != 0 || reads[3] != time.Second {
			t.Errorf("reads at %v, want three at once, then one each second", reads)
		}
		for len(out) > 0 {
			b := <-out
			for i := range b.Items {
				held = append(held, b.Items[i].ID)
			}
		}
		m.mu.Unlock()
		time.Sleep(5 * time.Second)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
		if len(held) != 25 {
			t.Errorf("%d rows came, want 25, once each", len(held))
		}
		for len(out) > 0 {
			if b := <-out; len(b.Items) > 0 {
				t.Errorf("rows %v came again", b.Items)
			}
		}
	})
}

// TestReleasedRowIsReadAgain: a row that is neither held nor in flight any more is read again, although no
// other row comes.
func TestReleasedRowIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		m.insert("shop", "a", 1)
		out := make(chan capture.Batch)
		src := poll.New(config(10), m, capturetest.HeldFunc(nil))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- src.Run(ctx, capture.Span{}, out) }()
		times := 0
		for times < 3 {
			times += len((<-out).Items)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
	})
}

// large is a table store whose rows fill the bytes that a read may have.
type large struct {
	*memory
	asked []store.UnsettledQuery
}

func (l *large) View(context.Context, string) (store.View, error) { return l, nil }

func (l *large) Unsettled(_ context.Context, q store.UnsettledQuery) ([]store.Item, error) {
	l.asked = append(l.asked, q)
	if len(l.asked) > 2 {
		return nil, nil
	}
	return []store.Item{{Ref: store.Ref{Outbox: "shop", ID: strings.Repeat("x", int(q.MaxBytes))}}}, nil
}

// TestReadIsLimitedInBytes: a read takes a small part of the buffer's bytes, and no payload above its share
// of them. A read that ended at the byte limit is followed by the next at once.
func TestReadIsLimitedInBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tables, out := &large{memory: newMemory()}, make(chan capture.Batch)
		cfg := config(10, "shop")
		cfg.Room = store.ReadLimit{Rows: 100, Bytes: 64_000}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- poll.New(cfg, tables, capturetest.HeldFunc(nil)).Run(ctx, capture.Span{}, out) }()
		began, rows := time.Now(), 0
		for rows < 2 {
			rows += len((<-out).Items)
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("two reads took %s", took)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("the source ends with %v", err)
		}
		if q := tables.asked[0]; q.MaxPayload != 640 || q.MaxBytes != 4000 || q.Limit != 10 {
			t.Errorf("it asked for %+v", q)
		}
	})
}

func TestFailedRead(t *testing.T) {
	m := newMemory()
	m.fail = errors.New("no server")
	src := poll.New(config(10), m, capturetest.HeldFunc(nil))
	if err := src.Run(t.Context(), capture.Span{}, nil); !errors.Is(err, m.fail) {
		t.Errorf("Run returned %v", err)
	}
}

func TestValidate(t *testing.T) {
	err := (&poll.Config{}).Validate()
	for _, key := range []string{"poll-interval", "poll-batch-size", "poll-backoff.threshold", "poll-backoff.multiplier", "poll-backoff.max", "outboxes"} {
		if err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("an empty configuration: %v, want %s", err, key)
		}
	}
	if c := config(1); c.Validate() != nil {
		t.Error(c.Validate())
	}
}

// TestMessagesAreRefused: no poll finds messages without a table.
func TestMessagesAreRefused(t *testing.T) {
	cfg := config(10)
	cfg.Outboxes = []store.Outbox{{Name: "orders", MessagePrefix: "orders", Layout: store.Layout{Name: "custom", State: store.StateNone}}}
	_, err := poll.New(cfg, nil, nil).Open(t.Context(), store.Checkpoint{}, nil)
	var setup *store.SetupError
	if !errors.As(err, &setup) || !strings.Contains(setup.Problem, "outbox orders: messages with the prefix orders are in the log alone, and polling reads tables") {
		t.Error(err)
	}
}

// TestTablesWithoutStateAreRefused: each poll would send all rows of such a table again, unless
// the relay deletes them.
func TestTablesWithoutStateAreRefused(t *testing.T) {
	for deletes, refused := range map[bool]bool{false: true, true: false} {
		cfg := config(10)
		cfg.Outboxes = []store.Outbox{{Name: "kept", Layout: store.Layout{Name: "debezium", State: store.StateNone, DeleteDelivered: deletes}}}
		_, err := poll.New(cfg, nil, nil).Open(t.Context(), store.Checkpoint{}, nil)
		var setup *store.SetupError
		if errors.As(err, &setup) != refused || refused && !strings.Contains(setup.Problem, "outbox kept: polling needs a state") {
			t.Errorf("with delete-delivered %v: %v", deletes, err)
		}
	}
}
