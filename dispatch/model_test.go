package dispatch

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// world is the plain reference that the core is held against: a table, a
// receiver and the true order of the rows.
type world struct {
	t    *rapid.T
	now  time.Time
	cfg  Config
	core *core

	table   map[string]*record
	truth   map[store.LaneKey][]string // ids in commit order
	arrived map[store.LaneKey][]string // first arrivals
	poison  map[string]bool            // rejected whenever alone or with others
	down    bool                       // the receiver is away

	accepted time.Time // latest beginning of an accepted request

	claiming []*run
	sending  []*run
	writing  []outcome
	nextID   int
	epoch    int64
	ended    bool
}

type record struct {
	key     store.LaneKey
	visible bool
	status  store.Status
	retries int
	arrived bool
	done    int   // tickets told, under this epoch
	claimed int64 // epoch of the latest claim
	// failed is when the latest failed attempt ended; excuses counts the failed
	// attempts that the rule may hold against the row.
	failed  time.Time
	excuses int
}

// Done makes a record the ticket of its row.
func (r *record) Done(n int) { r.done += n }

func newWorld(t *rapid.T) *world {
	cfg := DefaultConfig()
	cfg.APIBatchSize = rapid.IntRange(1, 7).Draw(t, "batch")
	cfg.MaxConcurrentGroups = rapid.IntRange(1, 4).Draw(t, "senders")
	cfg.MaxRetries = rapid.IntRange(0, 3).Draw(t, "retries")
	cfg.BufferRows = 40
	cfg.ProofWait = 10 * time.Second
	w := &world{
		t: t, cfg: cfg, now: time.Unix(1e9, 0),
		table: map[string]*record{}, truth: map[store.LaneKey][]string{},
		arrived: map[store.LaneKey][]string{}, poison: map[string]bool{},
	}
	w.start()
	return w
}

// start begins a core as a new leader does: with the unsettled rows in order.
func (w *world) start() {
	w.epoch++
	w.ended = false
	limits := sink.Limits{Mode: sink.Atomic, MaxItems: 5, MaxBytes: 50}
	w.core = newCore(w.cfg, func(string) sink.Limits { return limits }, rand.New(rand.NewPCG(1, 2)).Float64)
	w.claiming, w.sending, w.writing = nil, nil, nil
	for _, key := range w.keys() {
		for _, id := range w.truth[key] {
			w.table[id].done = 0
			if !w.settled(id) {
				w.core.append([]store.Item{w.item(id)}, w.table[id])
			}
		}
	}
}

func (w *world) keys() []store.LaneKey {
	return slices.SortedFunc(maps.Keys(w.truth), func(a, b store.LaneKey) int {
		return slices.Compare([]byte(a.String()), []byte(b.String()))
	})
}

func (w *world) settled(id string) bool { return w.table[id].status.Settled() }

func (w *world) item(id string) store.Item {
	r := w.table[id]
	return store.Item{
		Ref:  store.Ref{Outbox: r.key.Outbox, ID: id},
		Kind: r.key.Kind, Group: r.key.Group,
		Payload: make([]byte, 20), PayloadSize: 20, Txn: 1, // the log has the row as it was inserted
	}
}

func (w *world) appendRows(t *rapid.T) {
	if !w.core.room() || w.ended {
		return
	}
	for range rapid.IntRange(1, 6).Draw(t, "rows") {
		group := store.Group{}
		if g := rapid.IntRange(0, 4).Draw(t, "group"); g > 0 {
			group = store.GroupOf(fmt.Sprint(g))
		}
		key := store.LaneKey{Outbox: "events", Kind: "EVENT", Group: group}
		w.nextID++
		id := fmt.Sprint(w.nextID)
		w.table[id] = &record{key: key, status: store.Pending, visible: rapid.IntRange(0, 9).Draw(t, "seen") > 1}
		w.poison[id] = rapid.IntRange(0, 9).Draw(t, "poison") == 0
		w.truth[key] = append(w.truth[key], id)
		w.core.append([]store.Item{w.item(id)}, w.table[id])
	}
}

// prependRow places a row that was found outside the log: in front of its lane,
// behind what has arrived or is in flight.
func (w *world) prependRow(t *rapid.T) {
	if w.ended || !w.core.room() {
		return
	}
	w.nextID++
	id := fmt.Sprint(w.nextID)
	key := store.LaneKey{Outbox: "events", Kind: "EVENT", Group: store.GroupOf(fmt.Sprint(rapid.IntRange(1, 4).Draw(t, "group")))}
	before := slices.Clone(w.arrived[key])
	if l := w.core.lanes[key]; l != nil {
		for _, rw := range l.rows[:l.inFlight] {
			before = append(before, rw.ID)
		}
	}
	at := 0
	for _, b := range before {
		at = max(at, slices.Index(w.truth[key], b)+1)
	}
	w.truth[key] = slices.Insert(w.truth[key], at, id)
	w.table[id] = &record{key: key, status: store.Pending, visible: true}
	w.core.prepend([]store.Item{w.item(id)}, w.table[id])
}

func (w *world) takeClaims(*rapid.T) {
	if len(w.claiming) == 0 {
		w.claiming = w.core.nextClaims(100)
	}
	w.check()
}

func (w *world) answerClaims(t *rapid.T) {
	for _, r := range w.claiming {
		answers := make([]store.ClaimAnswer, len(r.rows))
		for i, rw := range r.rows {
			rec := w.table[rw.ID]
			switch {
			case !rec.visible:
				answers[i].Result = store.NotYetVisible
				rec.visible = rapid.Bool().Draw(t, "seen now")
			case rec.status.Settled():
				answers[i].Result = store.AlreadySettled
			default:
				rec.status, rec.claimed = store.Processing, w.epoch
				answers[i] = store.ClaimAnswer{Result: store.Claimed, RetryCount: rec.retries}
			}
		}
		w.core.claimed(r, answers, w.now, w.now)
	}
	w.claiming = nil
	for r := w.core.nextRequest(w.now); r != nil; r = w.core.nextRequest(w.now) {
		w.sending = append(w.sending, r)
	}
	w.check()
}

func (w *world) answerRequest(t *rapid.T) {
	if len(w.sending) == 0 {
		return
	}
	i := rapid.IntRange(0, len(w.sending)-1).Draw(t, "request")
	r := w.sending[i]
	w.sending = slices.Delete(w.sending, i, i+1)
	res := w.receive(t, r)
	for _, rw := range r.rows {
		rec := w.table[rw.ID]
		if res.Class == sink.Delivered {
			w.accepted = later(w.accepted, r.started)
			continue
		}
		proof := !rec.failed.IsZero() && w.accepted.After(rec.failed)
		if len(r.rows) == 1 && (proof || res.Class == sink.Rejected || res.Class == sink.Refused) {
			rec.excuses++
		}
		rec.failed = w.now
	}
	w.core.answered(r, &res, w.now)
	w.check()
}

// receive is the receiver: it takes all rows of a request or none.
func (w *world) receive(t *rapid.T, r *run) sink.Result {
	fail := func(c sink.Class) sink.Result {
		return sink.Result{Outcome: sink.Outcome{Class: c, Detail: c.String()}}
	}
	if w.down {
		return fail(rapid.SampledFrom([]sink.Class{sink.Unavailable, sink.Misconfigured, sink.Refused}).Draw(t, "away"))
	}
	for _, rw := range r.rows {
		if w.poison[rw.ID] {
			return fail(rapid.SampledFrom([]sink.Class{sink.Rejected, sink.Refused}).Draw(t, "poisoned"))
		}
	}
	took := fail(sink.Delivered)
	for _, rw := range r.rows {
		if rec := w.table[rw.ID]; !rec.arrived {
			rec.arrived = true
			w.arrived[rec.key] = append(w.arrived[rec.key], rw.ID)
		}
	}
	if rapid.IntRange(0, 9).Draw(t, "lost") == 0 {
		return fail(sink.Unavailable) // it has them, and the answer got lost
	}
	return took
}

func (w *world) takeOutcomes(*rapid.T) {
	if len(w.writing) == 0 {
		w.writing = w.core.nextOutcomes(3)
	}
}

func (w *world) write(*rapid.T) {
	if len(w.writing) == 0 {
		return
	}
	results := make([]store.SettleResult, len(w.writing))
	for i, o := range w.writing {
		rec := w.table[o.ID]
		if rec.status.Settled() {
			w.t.Fatalf("row %s settled twice", o.ID)
		}
		results[i] = store.Written
		if o.Status != store.Completed && o.RetryCount < rec.retries {
			w.t.Fatalf("row %s: the count goes back from %d to %d", o.ID, rec.retries, o.RetryCount)
		}
		rec.status = o.Status
		if o.Status != store.Completed {
			rec.retries = o.RetryCount
		}
		if o.Status == store.Failed {
			if rec.excuses <= w.cfg.MaxRetries || rec.retries != w.cfg.MaxRetries {
				w.t.Fatalf("row %s FAILED after %d retries with %d failures that count", o.ID, rec.retries, rec.excuses)
			}
			if !rec.arrived {
				w.arrived[rec.key] = append(w.arrived[rec.key], o.ID) // an explicit gap
			}
		}
		if o.Status == store.Completed && !rec.arrived {
			w.t.Fatalf("row %s COMPLETED and never arrived", o.ID)
		}
	}
	w.writing = nil
	w.core.written(results, w.now)
	w.check()
}

func (w *world) pass(t *rapid.T) {
	w.now = w.now.Add(time.Duration(rapid.IntRange(1, 5000).Draw(t, "ms")) * time.Millisecond)
	w.core.tick(w.now)
	if wake, ok := w.core.nextWake(); ok && !wake.After(w.now) {
		t.Fatalf("a lane due at %v still waits at %v", wake, w.now)
	}
}

func (w *world) crash(*rapid.T)  { w.start() }
func (w *world) toggle(*rapid.T) { w.down = !w.down }

func (w *world) endCore(*rapid.T) {
	if !w.ended {
		w.core.end()
		w.ended = true
	}
}

// check states what holds at every moment.
func (w *world) check() {
	if w.core.inUse != len(w.claiming)+len(w.sending) || w.core.inUse > w.cfg.MaxConcurrentGroups {
		w.t.Fatalf("%d senders in use, %d claims, %d requests, %d allowed", w.core.inUse, len(w.claiming), len(w.sending), w.cfg.MaxConcurrentGroups)
	}
	busy := map[store.LaneKey]bool{}
	for _, r := range append(slices.Clone(w.claiming), w.sending...) {
		if busy[r.lane.key] {
			w.t.Fatalf("lane %s has two runs in flight", r.lane.key)
		}
		busy[r.lane.key] = true
	}
	for key, got := range w.arrived {
		want := w.truth[key]
		if len(got) > len(want) || !slices.Equal(got, want[:len(got)]) {
			w.t.Fatalf("lane %s: arrived %v, committed %v", key, got, want)
		}
	}
	for id, rec := range w.table {
		if rec.done > 1 || (rec.done == 1 && !rec.status.Settled()) {
			w.t.Fatalf("row %s: %s, reported done %d times", id, rec.status, rec.done)
		}
	}
}

// finish heals the receiver and expects everything to end.
func (w *world) finish(t *rapid.T) {
	w.down = false
	if w.ended {
		w.drain(t)
		w.start()
	}
	for range 5000 {
		if w.core.rows == 0 {
			break
		}
		w.takeClaims(t)
		w.answerClaims(t)
		for len(w.sending) > 0 {
			w.answerRequest(t)
		}
		w.takeOutcomes(t)
		w.write(t)
		w.now = w.now.Add(20 * time.Second)
		w.core.tick(w.now)
	}
	if w.core.rows != 0 || w.core.bytes != 0 || len(w.core.lanes) != 0 || !w.core.quiet() {
		t.Fatalf("left over: %d rows, %d bytes, %d lanes", w.core.rows, w.core.bytes, len(w.core.lanes))
	}
	for id, rec := range w.table {
		if !rec.status.Settled() {
			t.Fatalf("row %s is %s", id, rec.status)
		}
		if w.poison[id] && rec.status != store.Failed {
			t.Fatalf("poisoned row %s is %s", id, rec.status)
		}
	}
}

// drain lets an ended core come to rest: no claimed row may stay PROCESSING.
func (w *world) drain(t *rapid.T) {
	w.answerClaims(t)
	for len(w.sending) > 0 {
		w.answerRequest(t)
	}
	for !w.core.quiet() {
		w.takeOutcomes(t)
		w.write(t)
	}
	for id, rec := range w.table {
		if rec.status == store.Processing && rec.claimed == w.epoch {
			t.Fatalf("row %s is left PROCESSING by a clean end", id)
		}
	}
}

func TestCoreAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		t.Repeat(map[string]func(*rapid.T){
			"append":        w.appendRows,
			"append more":   w.appendRows,
			"prepend":       w.prependRow,
			"prepend more":  w.prependRow,
			"claim":         w.takeClaims,
			"answer claims": w.answerClaims,
			"answer":        w.answerRequest,
			"answer more":   w.answerRequest,
			"take outcomes": w.takeOutcomes,
			"write":         w.write,
			"time":          w.pass,
			"toggle":        w.toggle,
			"crash":         w.crash,
			"end":           w.endCore,
		})
		w.finish(t)
	})
}
