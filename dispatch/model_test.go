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
// receiver for each way of answering, and what is left of each lane in order.
type world struct {
	t      *rapid.T
	now    time.Time
	cfg    Config
	limits map[string]sink.Limits // by kind
	core   *core
	epoch  int
	ended  bool
	held   bool
	down   bool // the receivers are away

	keys    []store.LaneKey
	table   map[string]*record
	truth   map[store.LaneKey][]string // all ids in the order of first arrivals
	queue   map[store.LaneKey][]string // ids that the core has yet to deliver
	batches []*batch

	claiming []*run
	sending  []*run
	writing  []outcome

	accepted  time.Time                   // latest beginning of an accepted request
	notBefore map[store.LaneKey]time.Time // by Retry-After
	paused    map[store.LaneKey]time.Time // by the back-off of the head
	claims    map[store.LaneKey]int       // since the lane moved, or time did
}

// record is a row in the table.
type record struct {
	id      string
	key     store.LaneKey
	size    int
	dropped bool // the log's payload was dropped: the claim reads it again
	poison  bool
	visible bool
	gone    bool
	status  store.Status
	retries int
	holder  int // epoch of the latest claim; -1: somebody else's
	until   time.Time
	arrived bool
	changed bool // by somebody else

	known bool // delivered, as this core knows
	over  bool // nothing more is to come of the row under this core

	failed  time.Time // end of the latest failed attempt
	detail  string    // of the failure that was the head's
	excuses int       // failures that the rule may hold against the row

	refuse   int       // how often the table refuses an outcome yet
	refusals int       // how often it has refused the present one
	due      time.Time // when it may be tried again
}

func (r *record) settled() bool { return r.gone || r.status.Settled() }

// batch is a ticket for several rows.
type batch struct {
	rows []*record
	done int
}

func (b *batch) Done(n int) { b.done += n }

func newWorld(t *rapid.T) *world {
	cfg := DefaultConfig()
	cfg.APIBatchSize = rapid.IntRange(1, 7).Draw(t, "batch")
	cfg.MaxConcurrentGroups = rapid.IntRange(1, 4).Draw(t, "senders")
	cfg.MaxRetries = rapid.IntRange(0, 3).Draw(t, "retries")
	cfg.BufferRows = 40
	cfg.ProofWait = 10 * time.Second
	cfg.RetryAfterMax = 20 * time.Second
	w := &world{
		t: t, cfg: cfg, now: time.Unix(1e9, 0), limits: map[string]sink.Limits{},
		table: map[string]*record{}, truth: map[store.LaneKey][]string{},
	}
	for kind, mode := range []sink.Mode{sink.Atomic, sink.Ordered, sink.PerItem} {
		name := fmt.Sprint(kind)
		w.limits[name] = sink.Limits{
			Mode:     mode,
			MaxItems: rapid.IntRange(1, 6).Draw(t, "items"),
			MaxBytes: rapid.IntRange(1, 90).Draw(t, "bytes"),
		}
		for _, group := range []store.Group{{}, store.GroupOf(""), store.GroupOf("g")} {
			w.keys = append(w.keys, store.LaneKey{Outbox: "box" + name, Kind: name, Group: group})
		}
	}
	w.start()
	return w
}

func (w *world) mode(key store.LaneKey) sink.Mode { return w.limits[key.Kind].Mode }

// counted reports whether the table of a lane has a column for retries.
func (w *world) counted(key store.LaneKey) bool { return w.mode(key) != sink.PerItem }

// start begins a core as a new leader does: with the unsettled rows in order.
func (w *world) start() {
	w.epoch++
	w.ended, w.held = false, false
	limits := func(kind string) sink.Limits { return w.limits[kind] }
	w.core = newCore(w.cfg, limits, rand.New(rand.NewPCG(1, 2)).Float64)
	w.claiming, w.sending, w.writing, w.batches = nil, nil, nil, nil
	w.accepted = time.Time{}
	w.queue = map[store.LaneKey][]string{}
	w.notBefore, w.paused = map[store.LaneKey]time.Time{}, map[store.LaneKey]time.Time{}
	w.claims = map[store.LaneKey]int{}
	for _, key := range w.keys {
		for _, id := range w.truth[key] {
			r := w.table[id]
			r.known, r.over, r.failed, r.refusals = false, r.settled(), time.Time{}, 0
			if !w.counted(key) {
				r.retries, r.excuses = 0, 0
			}
			if !r.over {
				w.queue[key] = append(w.queue[key], id)
				w.enter(w.core.append, r)
			}
		}
	}
	w.check()
}

// enter hands rows to the core as one batch.
func (w *world) enter(how func([]store.Item, Ticket), rows ...*record) {
	items := make([]store.Item, len(rows))
	for i, r := range rows {
		items[i] = store.Item{
			Ref: store.Ref{Outbox: r.key.Outbox, ID: r.id}, Kind: r.key.Kind, Group: r.key.Group,
			PayloadSize: r.size, Txn: 1, // the log has the row as it was inserted
		}
		if !r.dropped {
			items[i].Payload = make([]byte, r.size)
		}
	}
	b := &batch{rows: rows}
	w.batches = append(w.batches, b)
	how(items, b)
}

// leaves takes a row out of what the core has yet to deliver.
func (w *world) leaves(r *record) {
	w.queue[r.key] = slices.DeleteFunc(w.queue[r.key], func(id string) bool { return id == r.id })
	w.claims[r.key] = 0
	delete(w.paused, r.key)
}

// check states what holds at every moment.
func (w *world) check() {
	c := w.core
	if c.inUse != len(w.claiming)+len(w.sending) || c.inUse > w.cfg.MaxConcurrentGroups {
		w.t.Fatalf("%d senders in use, %d claims, %d requests, %d allowed", c.inUse, len(w.claiming), len(w.sending), w.cfg.MaxConcurrentGroups)
	}
	rows, bytes, over := 0, 0, map[string]bool{}
	for _, b := range w.batches {
		done := 0
		for _, r := range b.rows {
			over[r.id] = r.over
			if r.over {
				done++
				continue
			}
			rows++
			bytes += r.size
		}
		if b.done != done {
			w.t.Fatalf("a ticket was told of %d rows, %d of its %d are over", b.done, done, len(b.rows))
		}
	}
	if c.rows != rows || c.bytes != int64(bytes) {
		w.t.Fatalf("%d rows of %d bytes are counted, %d of %d are held", c.rows, c.bytes, rows, bytes)
	}
	held := map[string]bool{}
	for kind := range w.limits {
		for _, id := range c.heldIDs("box" + kind) {
			held[id] = true
			if w.table[id].key.Kind != kind {
				w.t.Fatalf("row %s of %s is held in box%s", id, w.table[id].key, kind)
			}
		}
	}
	for id, isOver := range over {
		if held[id] == isOver {
			w.t.Fatalf("row %s: over %v, held %v", id, isOver, held[id])
		}
	}
	w.checkLanes()
}

// checkLanes states that each lane is what the reference says, and is in the one
// place from which its state is left again.
func (w *world) checkLanes() {
	places := map[*lane][]laneState{}
	for _, l := range w.core.ready.items {
		places[l] = append(places[l], laneReady)
	}
	for _, l := range w.core.waiting {
		places[l] = append(places[l], laneWaiting)
	}
	for _, r := range w.claiming {
		places[r.lane] = append(places[r.lane], laneClaiming)
	}
	for _, r := range w.sending {
		places[r.lane] = append(places[r.lane], laneSending)
	}
	for _, queue := range [][]outcome{w.core.outcomes, w.core.writing, w.core.refused} {
		for _, o := range queue {
			if o.lane != nil {
				places[o.lane] = append(places[o.lane], laneWriting)
			}
		}
	}
	for l, in := range places {
		if w.core.lanes[l.key] != l || len(in) != 1 || in[0] != l.state {
			w.t.Fatalf("lane %s, %s, is in %v", l.key, l.state, in)
		}
	}
	for key, l := range w.core.lanes {
		ids := make([]string, len(l.rows))
		for i, rw := range l.rows {
			ids[i] = rw.ID
		}
		if len(ids) == 0 || !slices.Equal(ids, w.queue[key]) {
			w.t.Fatalf("lane %s holds %v, left are %v", key, ids, w.queue[key])
		}
		if !w.ended && len(places[l]) != 1 {
			w.t.Fatalf("lane %s, %s, is nowhere", key, l.state)
		}
	}
	for key, left := range w.queue {
		if len(left) > 0 && w.core.lanes[key] == nil {
			w.t.Fatalf("lane %s is forgotten with %v", key, left)
		}
	}
}

func TestCoreAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		seldom := func(do func()) func(*rapid.T) {
			return func(t *rapid.T) {
				if rapid.IntRange(0, 3).Draw(t, "seldom") == 0 {
					do()
				}
			}
		}
		actions := map[string]func(*rapid.T){
			"append":        w.appendRows,
			"prepend":       w.prependRows,
			"claim":         w.claim,
			"answer claims": w.answerClaims,
			"answer":        w.answer,
			"take outcomes": w.takeOutcomes,
			"write":         w.write,
			"time":          w.pass,
			"toggle":        func(*rapid.T) { w.down = !w.down },
			"interfere":     w.interfere,
			"hold":          seldom(func() { w.held = !w.held; w.core.hold(w.held) }),
			"crash":         seldom(w.start),
			"end":           seldom(w.end),
		}
		for _, often := range []string{"append", "claim", "answer claims", "answer", "write"} {
			actions[often+" more"] = actions[often]
		}
		t.Repeat(actions)
		w.finish(t)
	})
}

// finish heals the receivers and expects everything to end.
func (w *world) finish(t *rapid.T) {
	w.down, w.held = false, false
	w.core.hold(false)
	if w.ended {
		w.drain(t)
		w.start()
	}
	for range 3000 {
		if w.core.rows == 0 {
			break
		}
		w.claim(t)
		w.answerClaims(t)
		for len(w.sending) > 0 {
			w.answer(t)
		}
		w.takeOutcomes(t)
		w.write(t)
		w.sleep(20 * time.Second)
	}
	c := w.core
	if c.rows != 0 || c.bytes != 0 || len(c.lanes) != 0 || !c.quiet() || len(c.waiting)+len(c.refused)+c.ready.len() > 0 {
		t.Fatalf("left over: %d rows, %d bytes, %d lanes", c.rows, c.bytes, len(c.lanes))
	}
	for _, id := range slices.Sorted(maps.Keys(w.table)) {
		r := w.table[id]
		if !r.settled() {
			t.Fatalf("row %s is %s", id, r.status)
		}
		if r.poison && !r.changed && r.status != store.Failed {
			t.Fatalf("poisoned row %s is %s", id, r.status)
		}
	}
}

// drain lets an ended core come to rest: no claimed row may stay PROCESSING, but
// for one whose table refuses that.
func (w *world) drain(t *rapid.T) {
	w.answerClaims(t)
	for len(w.sending) > 0 {
		w.answer(t)
	}
	for !w.core.quiet() {
		w.takeOutcomes(t)
		w.write(t)
	}
	for id, r := range w.table {
		if r.status == store.Processing && r.holder == w.epoch && !r.gone && r.refusals == 0 {
			t.Fatalf("row %s is left PROCESSING by a clean end", id)
		}
	}
}
