package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// desk is a ledger and a sink whose time is the test's: statements and requests
// take what they are told to take.
type desk struct {
	mu       sync.Mutex
	claims   [][]string // ids of each claim statement
	settles  [][]string // "id status" of each outcome statement
	requests [][]string
	at       []time.Duration // of each request, since the test began
	began    time.Time
	takes    time.Duration // a statement
	answer   func(ids []string) sink.Result
	refuse   error // what statements answer while it is set
}

func newDesk() *desk {
	return &desk{began: time.Now(), takes: time.Millisecond, answer: func([]string) sink.Result {
		return sink.Result{Outcome: sink.Outcome{Class: sink.Delivered}}
	}}
}

func (d *desk) statement(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d.takes):
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.refuse
}

func (d *desk) Claim(ctx context.Context, _ store.Epoch, _ time.Time, rows []store.ClaimRow) ([]store.ClaimAnswer, error) {
	if err := d.statement(ctx); err != nil {
		return nil, err
	}
	var ids []string
	answers := make([]store.ClaimAnswer, len(rows))
	for i, r := range rows {
		ids = append(ids, r.ID)
		answers[i].Result = store.Claimed
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.claims = append(d.claims, ids)
	return answers, nil
}

func (d *desk) Settle(ctx context.Context, _ store.Epoch, outcomes []store.Outcome) ([]store.SettleResult, error) {
	if err := d.statement(ctx); err != nil {
		return nil, err
	}
	var lines []string
	results := make([]store.SettleResult, len(outcomes))
	for i, o := range outcomes {
		lines = append(lines, o.ID+" "+o.Status.String())
		results[i] = store.Written
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.settles = append(d.settles, lines)
	return results, nil
}

func (d *desk) Limits(string) sink.Limits {
	return sink.Limits{Mode: sink.Atomic, MaxItems: 100, MaxBytes: 1 << 20}
}

func (d *desk) Deliver(ctx context.Context, msgs []sink.Message) sink.Result {
	var ids []string
	for _, m := range msgs {
		ids = append(ids, m.ID)
	}
	d.mu.Lock()
	d.requests = append(d.requests, ids)
	d.at = append(d.at, time.Since(d.began))
	answer := d.answer
	d.mu.Unlock()
	return answer(ids)
}

func (d *desk) Claimed(store.ClaimResult, int)             {}
func (d *desk) Requested(*sink.Result, int, time.Duration) {}
func (d *desk) Settled(*store.Item, *store.Outcome)        {}
func (d *desk) StoreFailed(string, error)                  {}
func (d *desk) set(change func())                          { d.mu.Lock(); defer d.mu.Unlock(); change() }
func (d *desk) expect(t *testing.T, what string, got, want any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// counter is a ticket.
type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) Done(n int) { c.mu.Lock(); defer c.mu.Unlock(); c.n += n }

func items(group string, ids ...string) []store.Item {
	var out []store.Item
	for _, id := range ids {
		out = append(out, store.Item{
			Ref: store.Ref{Outbox: "events", ID: id}, Kind: "EVENT", Group: store.GroupOf(group),
			Payload: []byte("{}"), PayloadSize: 2,
		})
	}
	return out
}

// drive runs a dispatcher in fake time. The function it passes to the test ends
// the dispatcher and returns its error.
func drive(t *testing.T, cfg Config, test func(k *desk, d *Dispatcher, end func() error)) {
	synctest.Test(t, func(t *testing.T) {
		k := newDesk()
		d := New(cfg, k, k, 1, k, time.Second)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- d.Run(ctx) }()
		ended := false
		end := func() error { cancel(); ended = true; return <-done }
		test(k, d, end)
		if !ended {
			if err := end(); err != nil {
				t.Error(err)
			}
		}
	})
}

// pass lets fake time go by and everything that is due happen.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func add(t *testing.T, d *Dispatcher, c Ticket, rows []store.Item) {
	t.Helper()
	if err := d.Append(context.Background(), rows, c); err != nil {
		t.Fatal(err)
	}
}

func TestNaturalBatching(t *testing.T) {
	drive(t, DefaultConfig(), func(k *desk, d *Dispatcher, _ func() error) {
		var c counter
		add(t, d, &c, items("a", "1"))
		synctest.Wait() // the claim of 1 is under way
		for _, id := range []string{"2", "3", "4"} {
			add(t, d, &c, items("g"+id, id))
		}
		pass(time.Second)
		k.expect(t, "claims", k.claims, "[[1] [2 3 4]]")
		if c.n != 4 {
			t.Errorf("%d rows done, want 4", c.n)
		}
	})
}

func TestARowIsRetriedBeforeTheNextOfItsGroup(t *testing.T) {
	cfg := DefaultConfig()
	drive(t, cfg, func(k *desk, d *Dispatcher, _ func() error) {
		k.set(func() {
			k.answer = func([]string) sink.Result {
				return sink.Result{Outcome: sink.Outcome{Class: sink.Unavailable, Detail: "down"}}
			}
		})
		var c counter
		add(t, d, &c, items("a", "1", "2"))
		pass(time.Minute)
		k.set(func() {
			for _, r := range k.requests {
				k.expect(t, "request", r, "[1 2]")
			}
			if n := len(k.requests); n < 8 || n > 12 {
				t.Errorf("%d requests in a minute of back-off from 200 ms to 30 s", n)
			}
			k.answer = newDesk().answer
		})
		pass(time.Minute)
		if c.n != 2 || slices.ContainsFunc(k.settles, func(l []string) bool { return l[0] != "1 COMPLETED" }) {
			t.Errorf("%d rows done; outcomes %v", c.n, k.settles)
		}
	})
}

func TestRetryAfterIsObeyedUpToTheCap(t *testing.T) {
	cfg := DefaultConfig()
	cfg.RetryAfterMax = 10 * time.Second
	drive(t, cfg, func(k *desk, d *Dispatcher, _ func() error) {
		asked := []time.Duration{2 * time.Second, 24 * time.Hour, 0}
		k.set(func() {
			k.answer = func([]string) sink.Result {
				res := sink.Result{Outcome: sink.Outcome{Class: sink.Unavailable}, RetryAfter: asked[0]}
				if asked = asked[1:]; len(asked) == 0 {
					res.Class = sink.Delivered
				}
				return res
			}
		})
		var c counter
		add(t, d, &c, items("a", "1"))
		pass(time.Minute)
		if c.n != 1 || len(k.at) != 3 {
			t.Fatalf("%d rows done by %d requests", c.n, len(k.at))
		}
		for i, want := range []time.Duration{2 * time.Second, 10 * time.Second} {
			if got := k.at[i+1] - k.at[i]; got < want || got > want+100*time.Millisecond {
				t.Errorf("wait %d was %s, want %s", i+1, got, want)
			}
		}
	})
}

func TestAFullBufferWaitsForRoom(t *testing.T) {
	cfg := DefaultConfig()
	cfg.BufferRows = 2
	drive(t, cfg, func(k *desk, d *Dispatcher, _ func() error) {
		k.set(func() { k.takes = time.Second })
		add(t, d, nil, items("a", "1", "2"))
		began := time.Now()
		add(t, d, nil, items("a", "3"))
		if waited := time.Since(began); waited < 2*time.Second {
			t.Errorf("a third row was taken after %s, before the first two had settled", waited)
		}
	})
}

func TestACleanEndFinishesRequestsAndGivesClaimsBack(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxConcurrentGroups = 2
	drive(t, cfg, func(k *desk, d *Dispatcher, end func() error) {
		k.set(func() {
			k.answer = func(ids []string) sink.Result {
				<-time.After(500 * time.Millisecond)
				return sink.Result{Outcome: sink.Outcome{Class: sink.Delivered}}
			}
		})
		add(t, d, nil, items("a", "1"))
		pass(100 * time.Millisecond) // 1 is being sent
		add(t, d, nil, items("b", "2"))
		synctest.Wait() // 2 is being claimed
		add(t, d, nil, items("c", "3"))
		if err := end(); err != nil {
			t.Fatal(err)
		}
		k.expect(t, "requests", k.requests, "[[1]]")
		k.expect(t, "outcomes", k.settles, "[[2 PENDING] [1 COMPLETED]]")
	})
}

func TestALostLeaderStopsAtOnce(t *testing.T) {
	drive(t, DefaultConfig(), func(k *desk, d *Dispatcher, end func() error) {
		k.set(func() { k.refuse = store.ErrNotLeader })
		add(t, d, nil, items("a", "1"))
		pass(time.Second)
		if err := end(); !errors.Is(err, store.ErrNotLeader) {
			t.Fatalf("%v", err)
		}
		if len(k.requests) > 0 {
			t.Errorf("sent %v without leadership", k.requests)
		}
	})
}

func TestAStoreThatIsAwayIsWaitedFor(t *testing.T) {
	drive(t, DefaultConfig(), func(k *desk, d *Dispatcher, _ func() error) {
		k.set(func() { k.refuse = errors.New("connection refused") })
		var c counter
		add(t, d, &c, items("a", "1"))
		pass(time.Minute)
		k.set(func() { k.refuse = nil })
		pass(10 * time.Second)
		if c.n != 1 {
			t.Error("the row did not go out once the store was back")
		}
	})
}

func TestHoldAndPrepend(t *testing.T) {
	drive(t, DefaultConfig(), func(k *desk, d *Dispatcher, _ func() error) {
		d.Hold(true)
		add(t, d, nil, items("a", "3", "4"))
		d.Prepend(items("a", "1", "2"), nil)
		pass(time.Second)
		k.expect(t, "requests while held", k.requests, "[]")
		d.Hold(false)
		pass(time.Second)
		k.expect(t, "requests", k.requests, "[[1 2 3 4]]")
	})
}
