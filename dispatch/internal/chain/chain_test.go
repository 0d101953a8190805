package chain_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/deploy/inbox/chain"
	relay "github.com/sluicebox/sluicebox/dispatch/internal/chain"
)

// message is a message of one lane, as its receiver gets it.
type message struct {
	lane   int
	header string
}

// world is a relay with a receiver. The relay sends a run of a lane, and learns of some of its rows
// that the receiver has accepted them.
type world struct {
	t      *rapid.T
	chains *relay.Chains[int]
	check  *chain.Checker
	next   map[int]int // first row of a lane that is not settled
	late   []message   // copies that are still on the way
	starts uint64
}

func (w *world) restart() {
	w.starts++
	w.chains = relay.New[int](w.starts)
}

// restartReceiver keeps a late copy of each chain: of two that follow each other, the second would
// prove the first. Neither does it keep one of a chain's first request, from which a chain is checked.
func (w *world) restartReceiver() {
	w.check = chain.New()
	seen := map[string]bool{}
	w.late = slices.DeleteFunc(w.late, func(m message) bool {
		name, place, _ := strings.Cut(m.header, ";")
		old := seen[name] || strings.HasPrefix(place, "0;")
		seen[name] = true
		return old
	})
}

// accept gives a message to the receiver, which must find nothing missing.
func (w *world) accept(m message) {
	if v := w.check.Accept(m.header); v == chain.Gap || v == chain.None {
		w.t.Fatalf("lane %d: %s is a %s", m.lane, m.header, v)
	}
}

// run returns the messages of a run.
func (w *world) run(lane, size int) (msgs []message) {
	accepted := w.chains.Of(lane)
	link := accepted
	for i := range size {
		next := link.Next(fmt.Sprint(w.next[lane] + i))
		msgs = append(msgs, message{lane, link.Header(next, accepted)})
		link = next
	}
	return msgs
}

// answer tells the relay that the receiver of a lane accepted sure messages of a run. It may give up on
// the one behind them.
func (w *world) answer(lane, sure int, msgs []message) {
	link := w.chains.Of(lane)
	for i := range sure {
		link = link.Next(fmt.Sprint(w.next[lane] + i))
	}
	if sure > 0 {
		w.chains.Accept(lane, link)
	}
	w.next[lane] += sure
	if sure < len(msgs) && rapid.Bool().Draw(w.t, "gives up") {
		w.next[lane]++ // FAILED or skipped
	}
}

func newWorld(t *rapid.T) *world {
	w := &world{t: t, check: chain.New(), next: map[int]int{}}
	w.restart()
	return w
}

// TestNoFalseAlarm: no lost answer, repeat, late copy, FAILED row and restart of either side is a gap.
func TestNoFalseAlarm(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		t.Repeat(map[string]func(*rapid.T){
			"send": func(t *rapid.T) {
				lane := rapid.IntRange(0, 2).Draw(t, "lane")
				msgs := w.run(lane, rapid.IntRange(1, 4).Draw(t, "size"))
				got := rapid.IntRange(0, len(msgs)).Draw(t, "accepted")
				for _, m := range msgs[:got] {
					w.accept(m)
					if rapid.Bool().Draw(t, "copied") {
						w.late = append(w.late, m)
					}
				}
				w.answer(lane, rapid.IntRange(0, got).Draw(t, "answered"), msgs)
			},
			"late": func(t *rapid.T) {
				if len(w.late) > 0 {
					i := rapid.IntRange(0, len(w.late)-1).Draw(t, "copy")
					w.accept(w.late[i])
					w.late = slices.Delete(w.late, i, i+1)
				}
			},
			"restart":  func(*rapid.T) { w.restart() },
			"receiver": func(*rapid.T) { w.restartReceiver() },
		})
	})
}

// TestFaults: within a chain that the receiver has seen, a message that the relay believes accepted
// and that is lost, or arrives behind a later one, is a gap at the next message, once.
func TestFaults(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		send := func(drop int, swap bool) (gaps int) {
			msgs := w.run(0, rapid.IntRange(2, 4).Draw(t, "size"))
			w.answer(0, len(msgs), msgs)
			if swap {
				msgs[drop], msgs[drop+1] = msgs[drop+1], msgs[drop]
			} else if drop >= 0 { // the last one of them too
				msgs = slices.Delete(msgs, drop, drop+1)
			}
			for _, m := range msgs {
				if w.check.Accept(m.header) == chain.Gap {
					gaps++
				}
			}
			return gaps
		}
		if n := send(-1, false); n != 0 {
			t.Fatalf("%d gaps before the fault", n)
		}
		swap := rapid.Bool().Draw(t, "swap")
		which := 0
		if !swap {
			which = rapid.IntRange(0, 1).Draw(t, "which")
		}
		n := send(which, swap)
		n += send(-1, false)
		n += send(-1, false)
		if n != 1 {
			t.Fatalf("%d gaps, want 1", n)
		}
	})
}

// TestLossBehindFork: a row takes the place of one whose answer was lost. If the receiver never
// got it, that is a gap, though the number of messages is right.
func TestLossBehindFork(t *testing.T) {
	chains, check := relay.New[int](1), chain.New()
	start := chains.Of(0)
	check.Accept(start.Header(start.Next("1"), start)) // its answer is lost; then it is FAILED
	lost := start.Next("2")
	if v := check.Accept(lost.Header(lost.Next("3"), lost)); v != chain.Gap {
		t.Errorf("got %s, want gap", v)
	}
}

// TestEviction: a lane that is used keeps its chain, and one that is not starts another.
func TestEviction(t *testing.T) {
	c := relay.New[int](1)
	relay.SetMax(c, 2)
	used, unused := c.Of(1).Next("a"), c.Of(2)
	c.Accept(1, used)
	for lane := range 10 {
		c.Of(10 + lane)
		if c.Of(1) != used {
			t.Fatal("a lane that is used has another chain")
		}
	}
	if c.Of(2) == unused {
		t.Error("a lane that was not used has its chain still")
	}
}

// BenchmarkHeader is the cost of a row in a request of its own.
func BenchmarkHeader(b *testing.B) {
	b.ReportAllocs()
	chains := relay.New[[3]string](1 << 60)
	lane := [3]string{"outbox_events", "EVENT", "customer-4711"}
	for b.Loop() {
		link := chains.Of(lane)
		next := link.Next("0192c3f0-7d3a-7b0c-9f3e-5a1c2e3d4f50")
		if link.Header(next, link) == "" {
			b.Fatal("no header")
		}
		chains.Accept(lane, next)
	}
}
