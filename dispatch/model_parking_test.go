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

// yard is the plain reference for parking: a log, a table, a table of parked rows
// and a checkpoint, which outlive the core, and a receiver that is away for some
// lanes or for all.
type yard struct {
	t     *rapid.T
	now   time.Time
	cfg   Config
	core  *core
	epoch store.Epoch

	keys   []store.LaneKey
	log    []*stored
	byID   map[string]*stored
	parked parkedTable
	holds  map[store.LaneKey]store.Hold
	// passed is how much of the log the checkpoint has passed, and seq that of
	// the last row there.
	passed          int
	seq             store.Seq
	counts          int64 // seqs given out in this life
	dead, bad, lost bool
	away            map[store.LaneKey]bool
	tables          map[string]bool // outboxes whose table is locked

	batches  []*stretch // of this life, in order
	claiming []*request
	sending  []*request
	writing  []outcome
	parking  []store.Item
	reading  bool
	answers  [][]store.Item
	each     int

	caught  int                  // how long the log was at the start
	brought int                  // how much of the log this life has read
	results []store.SettleResult // of writing, not yet told
	ended   bool
	found   []store.Item // found by a sweep that waits for its marker
	sweeps  int          // 0: none, 1: it has its view, 2: it waits for the marker
	mark    int          // in the log

	playing // what is replayed
}

// stored is a row of the table.
type stored struct {
	id               string
	key              store.LaneKey
	status           store.Status
	gone, unseen     bool
	poison, requeued bool
	unparkable       bool // the store does not park it
	wasSo            bool // and takes it now
	arrived          bool
	refuse           int         // how often the table refuses an outcome yet
	claimless        bool        // it refuses the claim
	locked           bool        // somebody locks the row when its outcome is written
	loose            bool        // its order is not that of the log any more
	holder           store.Epoch // that claimed it last
	took             store.Epoch // the leader under which it was delivered
}

func (r *stored) settled() bool { return r.gone || r.status.Settled() }

// forEver is how often a table refuses until somebody mends it.
const forEver = 1 << 30

// stretch is a batch of the log and the ticket of its rows.
type stretch struct {
	rows []*stored
	end  int // of the log
	last store.Seq
	told int
}

func (s *stretch) Done(n int) { s.told += n }

func newYard(t *rapid.T) *yard {
	cfg := DefaultConfig()
	cfg.APIBatchSize = rapid.IntRange(1, 4).Draw(t, "batch")
	cfg.MaxConcurrentGroups = rapid.IntRange(1, 3).Draw(t, "senders")
	cfg.MaxRetries = rapid.IntRange(0, 2).Draw(t, "retries")
	cfg.BufferRows = rapid.IntRange(4, 16).Draw(t, "buffer")
	cfg.OnFailed = rapid.SampledFrom([]OnFailed{Continue, Block}).Draw(t, "on failed")
	cfg.Ungrouped = rapid.SampledFrom([]Ungrouped{FIFO, Parallel}).Draw(t, "ungrouped")
	y := &yard{
		t: t, cfg: cfg, now: time.Unix(1e9, 0), byID: map[string]*stored{},
		holds: map[store.LaneKey]store.Hold{}, away: map[store.LaneKey]bool{},
		tables: map[string]bool{},
	}
	many := 0
	if rapid.IntRange(0, 3).Draw(t, "many lanes") == 0 { // more than a suspect receiver keeps in memory
		many = 40
		y.cfg.BufferRows *= 10
	}
	for _, kind := range []string{"EVENT", "JOB"} {
		for _, group := range []store.Group{{}, store.GroupOf(""), store.GroupOf("g"), store.GroupOf("h")} {
			y.keys = append(y.keys, store.LaneKey{Outbox: "box " + kind, Kind: kind, Group: group})
		}
		for i := range many {
			y.keys = append(y.keys, store.LaneKey{Outbox: "box " + kind, Kind: kind, Group: store.GroupOf(fmt.Sprint("m", i))})
		}
	}
	y.start()
	return y
}

// start begins a core as a leader does behind an intact log.
func (y *yard) start() {
	y.epoch++
	y.counts = 0
	limits := func(kind string) sink.Limits {
		return sink.Limits{Mode: sink.Atomic, MaxItems: 100, MaxBytes: 1 << 20, Endpoint: kind}
	}
	y.core = newCore(y.cfg, limits, rand.New(rand.NewPCG(1, 2)).Float64)
	y.core.spillEnabled = true
	y.claiming, y.sending, y.writing, y.batches = nil, nil, nil, nil
	y.parking, y.reading, y.answers = nil, false, nil
	y.results, y.ended, y.found, y.sweeps = nil, false, nil, 0
	y.startPlaying()
	cut := y.lost
	y.lost = false
	if !cut {
		y.parked.cut(y.seq)
	}
	for _, r := range y.log[:y.passed] {
		if !r.settled() && !r.requeued && !y.parked.has(r.id) {
			y.t.Fatalf("row %s is behind the checkpoint, neither settled nor parked", r.id)
		}
	}
	y.core.addSpilledLanes(y.parked.lanes())
	var holds []store.Hold
	for _, key := range y.keys {
		if h, held := y.holds[key]; held {
			if h.Kind == store.Blocked && y.byID[h.ID].status != store.Failed {
				delete(y.holds, key)
				continue
			}
			holds = append(holds, h)
		}
	}
	y.core.restore(holds)
	y.brought, y.caught = y.passed, len(y.log)
	if cut { // a snapshot of the table, without what is parked
		var rows []*stored
		for _, r := range y.log {
			if !r.settled() {
				r.loose = true
				if !y.parked.has(r.id) {
					rows = append(rows, r)
				}
			}
		}
		y.brought = len(y.log)
		y.bring(rows, len(y.log))
	}
}

// read on in the log.
func (y *yard) readLog(t *rapid.T) {
	n := min(rapid.IntRange(1, 6+len(y.keys)/2).Draw(t, "of the log"), len(y.log)-y.brought)
	if n <= 0 || y.ended || y.core.rows >= 2*y.cfg.BufferRows {
		return
	}
	rows := y.log[y.brought : y.brought+n]
	y.brought += n
	if y.brought > y.caught { // what is settled is left out while the relay catches up
		y.bring(rows, y.brought)
		return
	}
	var open []*stored
	for _, r := range rows {
		if !r.settled() {
			open = append(open, r)
		}
	}
	y.bring(open, y.brought)
}

// bring hands rows of the log to the core.
func (y *yard) bring(rows []*stored, end int) {
	items := make([]store.Item, len(rows))
	for i, r := range rows {
		y.counts++
		items[i] = r.item()
		items[i].Seq = store.NewSeq(y.epoch, y.counts)
	}
	s := &stretch{rows: rows, end: end, last: store.NewSeq(y.epoch, y.counts)}
	y.batches = append(y.batches, s)
	y.core.append(items, s)
}

func (r *stored) item() store.Item {
	return store.Item{
		Ref: store.Ref{Outbox: r.key.Outbox, ID: r.id}, Kind: r.key.Kind, Group: r.key.Group,
		Payload: []byte("{}"), PayloadSize: 2, Txn: 1,
	}
}

func (y *yard) insert(t *rapid.T) {
	if len(y.log)-y.brought > 2*len(y.keys)+4 {
		return
	}
	most := 6
	if len(y.keys) > 8 {
		most = 40
	}
	for range rapid.IntRange(1, most).Draw(t, "rows") {
		r := &stored{
			id: fmt.Sprint(len(y.log) + 1), key: rapid.SampledFrom(y.keys).Draw(t, "lane"), status: store.Pending,
			poison: y.rare(t, "poison"), unseen: y.rare(t, "unseen"),
		}
		r.unparkable = y.rare(t, "unparkable")
		if y.rare(t, "refused") {
			r.refuse = rapid.SampledFrom([]int{2, forEver}).Draw(t, "refusals")
		}
		r.claimless = y.rare(t, "claimless") && y.rare(t, "so")
		r.locked = y.rare(t, "locked") && y.rare(t, "so")
		y.log, y.byID[r.id] = append(y.log, r), r
	}
}

func (y *yard) rare(t *rapid.T, what string) bool { return rapid.IntRange(0, 9).Draw(t, what) == 0 }

func TestParkingAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		y := newYard(t)
		seldom := func(do func(*rapid.T)) func(*rapid.T) {
			return func(t *rapid.T) {
				if rapid.IntRange(0, 3).Draw(t, "seldom") == 0 {
					do(t)
				}
			}
		}
		actions := map[string]func(*rapid.T){
			"insert":        y.insert,
			"claim":         y.claim,
			"answer claims": y.answerClaims,
			"answer":        y.answer,
			"take outcomes": y.takeOutcomes,
			"write":         y.write,
			"written":       y.written,
			"written more":  y.written,
			"log":           y.readLog,
			"log more":      y.readLog,
			"skip":          seldom(y.skip),
			"end":           seldom(seldom(y.end)),
			"park":          y.park,
			"read":          y.read,
			"unpark":        y.unpark,
			"relieve":       func(t *rapid.T) { y.core.spillExcess(rapid.Bool().Draw(t, "others")) },
			"try":           seldom(func(*rapid.T) { y.core.retryUnspillable() }),
			"parkable":      seldom(seldom(func(*rapid.T) { y.makeParkable() })),
			"press":         seldom(func(t *rapid.T) { y.core.spillForLog(rapid.Bool().Draw(t, "all")) }),
			"time": func(t *rapid.T) {
				y.now = y.now.Add(time.Duration(rapid.IntRange(1, 5000).Draw(t, "ms")) * time.Millisecond)
			},
			"dead": seldom(func(t *rapid.T) { y.dead, y.bad = !y.dead, rapid.Bool().Draw(t, "misconfigured") }),
			"away": func(t *rapid.T) {
				key := rapid.SampledFrom(y.keys).Draw(t, "lane")
				y.away[key] = !y.away[key]
			},
			"lock table": seldom(func(t *rapid.T) {
				key := rapid.SampledFrom(y.keys).Draw(t, "lane")
				y.tables[key.Outbox] = !y.tables[key.Outbox]
			}),
			"interfere": seldom(y.interfere),
			"hold":      seldom(y.hold),
			"let go":    y.letGo,
			"hold for":  seldom(y.holdFor),
			"move on":   y.letGoFor,
			"replay":    seldom(y.replay),
			"take back": seldom(y.takeBack),
			"note":      y.note,
			"set back":  seldom(y.setBack),
			"sweep":     y.sweep,
			"crash":     seldom(y.crash),
			"":          y.check,
		}
		for _, often := range []string{"insert", "claim", "answer claims", "answer", "write", "park", "read"} {
			actions[often+" more"] = actions[often]
		}
		t.Repeat(actions)
		y.finish(t)
	})
}

// describe says what the core holds.
func (y *yard) describe() string {
	text := fmt.Sprintf("%d rows, %d parked, %d hungry", y.core.rows, y.core.spilledRows, y.core.reloadQueue.len())
	for _, l := range y.core.lanesByAge() {
		text += fmt.Sprintf("\n%s %s: %s, behind %v, after %d, beyond %d, parking %d, shrinking %v:", l.name.LaneKey, l.name.RowID, l.stateName(), l.hasSpilled, l.reloadedUpTo, l.spilledRows, l.spilling, y.core.shrinking[l])
		for _, rw := range append(slices.Clone(l.rows), l.unspillableTail...) {
			text += fmt.Sprintf(" %s/%d", rw.ID, rw.Seq)
		}
	}
	for _, s := range y.core.spilledLanes {
		text += fmt.Sprintf("\naway of %s: %d", s.kind, s.lanes.n)
	}
	for i := range y.parked.items {
		it := &y.parked.items[i]
		text += fmt.Sprintf("\nparked %s %d of %s", it.ID, it.Seq, it.Lane())
	}
	return text
}

// finish heals everything and expects every row to be settled, and nothing left. First
// it heals all but the tables, and expects the checkpoint to pass the rows that they
// refuse or keep locked.
func (y *yard) finish(t *rapid.T) {
	y.dead = false
	clear(y.away)
	y.written(t)
	y.goOn(t, 1000, func() bool {
		y.core.spillForLog(y.core.tooManyUnwritten())
		return y.brought == len(y.log) && y.stuck() == nil
	})
	if b := y.stuck(); b != nil {
		t.Fatalf("the log is held: a ticket was told of %d of %d rows\n%s", b.told, len(b.rows), y.describe())
	}
	for _, r := range y.log {
		r.refuse, r.claimless, r.locked = 0, false, false
	}
	clear(y.tables)
	y.goOn(t, 2000, func() bool {
		return len(y.rows) == 0 && y.core.rows == 0 && len(y.parked.items) == 0 && y.brought == len(y.log) && y.sweeps == 0 && !slices.ContainsFunc(y.log, func(r *stored) bool { return !r.settled() })
	})
	y.checkLeft(t)
}

// makeParkable has the store take every row from now on.
func (y *yard) makeParkable() {
	if y.ended {
		return
	}
	for _, r := range y.log {
		r.unparkable, r.wasSo = false, r.wasSo || r.unparkable
	}
	y.core.retryUnspillable()
	y.core.spillForLog(false)
}

// stuck returns a batch of the log that the checkpoint cannot pass, though its rows can
// be parked; nil if there is none.
func (y *yard) stuck() *stretch {
	for _, b := range y.batches {
		kept := slices.ContainsFunc(b.rows, func(r *stored) bool { return r.unparkable })
		if b.told < len(b.rows) && !kept {
			return b
		}
	}
	return nil
}

// advancePastHead has everything happen that is due until done, at most so often.
func (y *yard) goOn(t *rapid.T, most int, done func() bool) {
	for range most {
		for _, key := range y.keys {
			y.letLaneGo(key)
			y.moveOn(key)
		}
		for _, step := range []func(*rapid.T){y.claim, y.answerClaims} {
			step(t)
		}
		for len(y.sending) > 0 {
			y.answer(t)
		}
		for _, step := range []func(*rapid.T){y.readLog, y.takeOutcomes, y.write, y.written, y.endBusy, y.park, y.endBusy, y.unpark, y.read, y.endBusy, y.sweep, y.note, y.note, y.check} {
			step(t)
		}
		y.now = y.now.Add(20 * time.Second)
		if y.leaving {
			y.replay(t)
		}
		if done() {
			return
		}
	}
}

// checkLeft expects nothing to be left.
func (y *yard) checkLeft(t *rapid.T) {
	for _, key := range y.keys {
		y.letLaneGo(key)
	}
	for _, id := range slices.Sorted(maps.Keys(y.byID)) {
		if r := y.byID[id]; !r.settled() {
			t.Fatalf("row %s is %s\n%s", id, r.status, y.describe())
		}
	}
	c := y.core
	if c.rows != 0 || c.bytes != 0 || c.refusedOutcomes+c.detachedRows != 0 || c.spilledRows != 0 || c.directSpills != 0 || len(c.settlingSpilled)+len(c.shrinking)+len(c.toSpill)+len(c.jobs)+len(y.rows)+c.unspillableRows > 0 || !c.drained() {
		t.Fatalf("left over: %d rows, %d bytes, %d parked, %d passing, %d settling, %d shrinking", c.rows, c.bytes, c.spilledRows, c.directSpills, len(c.settlingSpilled), len(c.shrinking))
	}
}
