package dispatch

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	pending "github.com/sluicebox/sluicebox/dispatch/internal/outcome"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// spillModel is the reference model for spilling. A log, a table, the spilled rows and a
// checkpoint outlive the core. The receiver is down for some lanes or for all.
type spillModel struct {
	t     *rapid.T
	now   time.Time
	cfg   Config
	core  *core
	epoch store.Epoch

	keys    []store.LaneKey
	log     []*storedRow
	byID    map[string]*storedRow
	spilled spilledTable
	holds   map[store.LaneKey]store.Hold
	// passed is the length of the log that the checkpoint has passed, seq that of its last
	// row.
	passed                               int
	seq                                  store.Seq
	seqs                                 int64 // assigned in this session
	receiverDown, misconfigured, logLost bool
	lanesDown                            map[store.LaneKey]bool
	lockedTables                         map[string]bool // outboxes whose table is locked
	logOnly                              map[string]bool // outboxes whose rows only the log has: all or none

	batches  []*logBatch // of this session, in order
	claiming []*request
	sending  []*request
	writing  [pending.Writers][]outcome
	spilling []store.Item
	reading  bool
	answers  [][]store.Item
	each     int

	catchUpEnd int                                   // length of the log at the start
	logRead    int                                   // length of the log read in this session
	results    [pending.Writers][]store.SettleResult // of writing, not yet reported
	ended      bool
	found      []store.Item // by a sweep that waits for its marker
	sweepStep  int          // 0: none, 1: it has its snapshot, 2: it waits for the marker
	mark       int          // in the log

	whole bool // see Options.SpillWhole; no log-only outbox is polled
	split int  // see outcome.Config.MinHalf

	spillReplayModel // replayed rows
}

// storedRow is a row of the table.
type storedRow struct {
	id               string
	key              store.LaneKey
	status           store.Status
	gone, unseen     bool
	poison, requeued bool
	unspillable      bool // the store refuses to spill it
	wasUnspillable   bool // and accepts it now
	arrived          bool
	refuse           int         // how many more outcomes the table refuses
	refusesClaim     bool        // the table refuses its claim
	locked           bool        // a session locks the row when its outcome is written
	outOfOrder       bool        // no longer in log order
	claimEpoch       store.Epoch // of the latest claim
	failedSeq        store.Seq   // when it became FAILED
	deliveredEpoch   store.Epoch // of the leader that delivered it
}

func (r *storedRow) settled() bool { return r.gone || r.status.Settled() }

// forever is a number of refusals that never runs out before the table is fixed.
const forever = 1 << 30

// logBatch is a batch of the log and the ticket of its rows.
type logBatch struct {
	rows []*storedRow
	end  int // in the log
	last store.Seq
	done int
}

func (s *logBatch) Done(n int) { s.done += n }

func newSpillModel(t *rapid.T) *spillModel {
	cfg := DefaultConfig()
	cfg.APIBatchSize = rapid.IntRange(1, 4).Draw(t, "batch")
	cfg.MaxConcurrentGroups = rapid.IntRange(1, 3).Draw(t, "senders")
	cfg.MaxRetries = rapid.IntRange(0, 2).Draw(t, "retries")
	cfg.BufferRows = rapid.IntRange(4, 16).Draw(t, "buffer")
	cfg.OnFailed = rapid.SampledFrom([]OnFailed{Continue, Block}).Draw(t, "on failed")
	cfg.Ungrouped = rapid.SampledFrom([]Ungrouped{FIFO, Parallel}).Draw(t, "ungrouped")
	y := &spillModel{
		t: t, cfg: cfg, now: time.Unix(1e9, 0), byID: map[string]*storedRow{},
		holds: map[store.LaneKey]store.Hold{}, lanesDown: map[store.LaneKey]bool{},
		lockedTables: map[string]bool{},
	}
	many := 0
	if rapid.IntRange(0, 3).Draw(t, "many lanes") == 0 { // more than an open breaker keeps in memory
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
	if rapid.IntRange(0, 2).Draw(t, "log only") == 0 {
		y.logOnly = map[string]bool{"box EVENT": true, "box JOB": true}
		y.spilled.keepsContent, y.cfg.BufferBytes = true, 16 // the ninth row of others loses its payload
	}
	y.split = rapid.IntRange(1, 4).Draw(t, "outcomes of a half")
	y.whole = y.logOnly == nil && rapid.IntRange(0, 2).Draw(t, "whole") == 0
	y.start()
	return y
}

// start starts a core like a leader with an intact log.
func (y *spillModel) start() {
	y.epoch++
	y.seqs = 0
	limits := func(kind string) sink.Limits {
		return sink.Limits{Mode: sink.Atomic, MaxItems: 100, MaxBytes: 1 << 20, Endpoint: kind}
	}
	y.core = newTestCore(y.cfg, limits, rand.New(rand.NewPCG(1, 2)).Float64)
	y.core.splitOutcomes(y.split)
	y.core.enableSpill()
	if y.whole {
		y.core.spill.SpillWhole()
	}
	y.core.lanes.Memory.LogOnly = y.logOnly
	y.claiming, y.sending, y.batches = nil, nil, nil
	y.writing, y.results = [pending.Writers][]outcome{}, [pending.Writers][]store.SettleResult{}
	y.spilling, y.reading, y.answers = nil, false, nil
	y.ended, y.found, y.sweepStep = false, nil, 0
	y.startReplay()
	cut := y.logLost
	y.logLost = false
	if !cut {
		y.spilled.deleteAfter(y.seq)
	}
	for _, r := range y.log[:y.passed] {
		if !r.settled() && !r.requeued && !y.spilled.has(r.id) {
			y.t.Fatalf("row %s is behind the checkpoint, neither settled nor spilled", r.id)
		}
	}
	y.core.addSpilledLanes(y.spilled.lanes())
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
	y.logRead, y.catchUpEnd = y.passed, len(y.log)
	if cut { // a snapshot of the table, without spilled rows
		var rows []*storedRow
		for _, r := range y.log {
			if !r.settled() {
				r.outOfOrder = true
				if !y.spilled.has(r.id) {
					rows = append(rows, r)
				}
			}
		}
		y.logRead = len(y.log)
		y.appendLog(rows, len(y.log))
	}
}

// readLog reads on in the log.
func (y *spillModel) readLog(t *rapid.T) {
	n := min(rapid.IntRange(1, 6+len(y.keys)/2).Draw(t, "of the log"), len(y.log)-y.logRead)
	if n <= 0 || y.ended || y.core.heldRows() >= 2*y.cfg.BufferRows {
		return
	}
	rows := y.log[y.logRead : y.logRead+n]
	y.logRead += n
	if y.logRead > y.catchUpEnd { // settled rows are dropped during the catch-up
		y.appendLog(rows, y.logRead)
		return
	}
	var open []*storedRow
	for _, r := range rows {
		if !r.settled() {
			open = append(open, r)
		}
	}
	y.appendLog(open, y.logRead)
}

// appendLog appends rows of the log to the core.
func (y *spillModel) appendLog(rows []*storedRow, end int) {
	items := make([]store.Item, len(rows))
	for i, r := range rows {
		y.seqs++
		items[i] = r.item()
		items[i].Seq = store.NewSeq(y.epoch, y.seqs)
	}
	s := &logBatch{rows: rows, end: end, last: store.NewSeq(y.epoch, y.seqs)}
	y.batches = append(y.batches, s)
	y.core.append(items, s)
}

func (r *storedRow) item() store.Item {
	return store.Item{
		Ref: store.Ref{Outbox: r.key.Outbox, ID: r.id}, Kind: r.key.Kind, Group: r.key.Group,
		Payload: []byte("{}"), PayloadSize: 2, Txn: 1,
	}
}

func (y *spillModel) insert(t *rapid.T) {
	if len(y.log)-y.logRead > 2*len(y.keys)+4 {
		return
	}
	most := 6
	if len(y.keys) > 8 {
		most = 40
	}
	for range rapid.IntRange(1, most).Draw(t, "rows") {
		r := &storedRow{
			id: fmt.Sprint(len(y.log) + 1), key: rapid.SampledFrom(y.keys).Draw(t, "lane"), status: store.Pending,
			poison: y.rare(t, "poison"), unseen: y.rare(t, "unseen"),
		}
		r.unspillable = y.rare(t, "unspillable")
		if y.rare(t, "refused") {
			r.refuse = rapid.SampledFrom([]int{2, forever}).Draw(t, "refusals")
		}
		r.refusesClaim = y.rare(t, "claimless") && y.rare(t, "so")
		r.locked = y.rare(t, "locked") && y.rare(t, "so")
		y.log, y.byID[r.id] = append(y.log, r), r
	}
}

func (y *spillModel) rare(t *rapid.T, what string) bool {
	return rapid.IntRange(0, 9).Draw(t, what) == 0
}

func TestSpillAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		y := newSpillModel(t)
		seldom := func(do func(*rapid.T)) func(*rapid.T) {
			return func(t *rapid.T) {
				if rapid.IntRange(0, 3).Draw(t, "seldom") == 0 {
					do(t)
				}
			}
		}
		actions := map[string]func(*rapid.T){
			"insert":         y.insert,
			"claim":          y.claim,
			"answer claims":  y.answerClaims,
			"answer":         y.answer,
			"take outcomes":  y.takeOutcomes,
			"write":          y.write,
			"written":        y.written,
			"written more":   y.written,
			"log":            y.readLog,
			"log more":       y.readLog,
			"skip":           seldom(y.skip),
			"end":            seldom(seldom(y.end)),
			"spill":          y.spill,
			"read":           y.read,
			"delete spilled": y.deleteSpilled,
			"spill excess":   func(t *rapid.T) { y.core.spillExcess(rapid.Bool().Draw(t, "others")) },
			"try":            seldom(func(*rapid.T) { y.core.retryUnspillable() }),
			"spillable":      seldom(seldom(func(*rapid.T) { y.makeSpillable() })),
			"spill for log":  seldom(func(t *rapid.T) { y.core.spillForLog(rapid.Bool().Draw(t, "all")) }),
			"time": func(t *rapid.T) {
				y.now = y.now.Add(time.Duration(rapid.IntRange(1, 5000).Draw(t, "ms")) * time.Millisecond)
			},
			"dead": seldom(func(t *rapid.T) {
				y.receiverDown, y.misconfigured = !y.receiverDown, rapid.Bool().Draw(t, "misconfigured")
			}),
			"away": func(t *rapid.T) {
				key := rapid.SampledFrom(y.keys).Draw(t, "lane")
				y.lanesDown[key] = !y.lanesDown[key]
			},
			"lock table": seldom(func(t *rapid.T) {
				key := rapid.SampledFrom(y.keys).Draw(t, "lane")
				y.lockedTables[key.Outbox] = !y.lockedTables[key.Outbox]
			}),
			"interfere": seldom(y.interfere),
			"hold":      seldom(y.hold),
			"let go":    y.releaseHold,
			"hold for":  seldom(y.holdForReplay),
			"move on":   y.releaseReplayHold,
			"replay":    seldom(y.replay),
			"take back": seldom(y.withdrawReplay),
			"note":      y.recordFinished,
			"set back":  seldom(y.resetFailed),
			"sweep":     y.sweep,
			"crash":     seldom(y.crash),
			"":          y.check,
		}
		for _, often := range []string{"insert", "claim", "answer claims", "answer", "write", "spill", "read"} {
			actions[often+" more"] = actions[often]
		}
		t.Repeat(actions)
		y.finish(t)
	})
}

// describe describes the state of the core.
func (y *spillModel) describe() string {
	text := fmt.Sprintf("%d rows, %d spilled, %d to reload", y.core.heldRows(), y.core.spillCounts().spilled, len(y.core.reloadWaiting()))
	for _, l := range y.core.lanesByAge() {
		text += fmt.Sprintf("\n%s %s: %s, has spilled %v, reloaded up to %d, spilled %d, spilling %d, shrinking %v:", l.Name.LaneKey, l.Name.RowID, l.StateName(), l.HasSpilled, l.ReloadedUpTo, l.SpilledRows, l.Spilling, y.core.isShrinking(l))
		for _, rw := range append(slices.Clone(l.Rows), l.UnspillableTail...) {
			text += fmt.Sprintf(" %s/%d", rw.ID, rw.Seq)
		}
	}
	text += fmt.Sprintf("\nspilled lanes: %d", y.core.stats().Lanes[stateSpilled])
	for i := range y.spilled.items {
		it := &y.spilled.items[i]
		text += fmt.Sprintf("\nparked %s %d of %s", it.ID, it.Seq, it.Lane())
	}
	return text
}

// finish repairs everything and expects every row to be settled and nothing to be left. It
// repairs the tables last: before that, the checkpoint must pass rows that the tables
// refuse or lock.
func (y *spillModel) finish(t *rapid.T) {
	y.receiverDown = false
	clear(y.lanesDown)
	y.written(t)
	y.advanceUntil(t, 1000, func() bool {
		y.core.spillForLog(y.core.tooManyUnwritten())
		return y.logRead == len(y.log) && y.stuckBatch() == nil
	})
	if b := y.stuckBatch(); b != nil {
		t.Fatalf("the log is held: a ticket counts %d of %d rows\n%s", b.done, len(b.rows), y.describe())
	}
	for _, r := range y.log {
		r.refuse, r.refusesClaim, r.locked = 0, false, false
	}
	clear(y.lockedTables)
	y.advanceUntil(t, 2000, func() bool {
		return len(y.rows) == 0 && y.core.heldRows() == 0 && len(y.spilled.items) == 0 && y.logRead == len(y.log) && y.sweepStep == 0 && !slices.ContainsFunc(y.log, func(r *storedRow) bool { return !r.settled() })
	})
	y.checkLeft(t)
}

// makeSpillable lets the store spill every row from now on.
func (y *spillModel) makeSpillable() {
	if y.ended {
		return
	}
	for _, r := range y.log {
		r.unspillable, r.wasUnspillable = false, r.wasUnspillable || r.unspillable
	}
	y.core.retryUnspillable()
	y.core.spillForLog(false)
}

// stuckBatch returns a batch of the log that the checkpoint cannot pass although its rows
// can be spilled; nil if there is none.
func (y *spillModel) stuckBatch() *logBatch {
	for _, b := range y.batches {
		kept := slices.ContainsFunc(b.rows, func(r *storedRow) bool { return r.unspillable })
		if b.done < len(b.rows) && !kept {
			return b
		}
	}
	return nil
}

// advanceUntil runs everything that is due until done, at most most times.
func (y *spillModel) advanceUntil(t *rapid.T, most int, done func() bool) {
	for range most {
		for _, key := range y.keys {
			y.releaseLane(key)
			y.advance(key)
		}
		for _, step := range []func(*rapid.T){y.claim, y.answerClaims} {
			step(t)
		}
		for len(y.sending) > 0 {
			y.answer(t)
		}
		for _, step := range []func(*rapid.T){y.readLog, y.takeOutcomes, y.write, y.written, y.endBusy, y.spill, y.endBusy, y.deleteSpilled, y.read, y.endBusy, y.sweep, y.recordFinished, y.recordFinished, y.check} {
			step(t)
		}
		y.now = y.now.Add(20 * time.Second)
		if y.withdrawn {
			y.replay(t)
		}
		if done() {
			return
		}
	}
}

// checkLeft expects nothing to be left.
func (y *spillModel) checkLeft(t *rapid.T) {
	for _, key := range y.keys {
		y.releaseLane(key)
	}
	for _, id := range slices.Sorted(maps.Keys(y.byID)) {
		if r := y.byID[id]; !r.settled() {
			t.Fatalf("row %s is %s\n%s", id, r.status, y.describe())
		}
	}
	c := y.core
	if c.heldRows() != 0 || c.heldBytes() != 0 || c.refusedCount() != 0 || c.spillCounts() != (spillCounts{}) || c.settlingCount()+len(c.shrinkingLanes())+c.unspilledCount()+c.jobCount()+len(y.rows) > 0 || !c.drained() {
		t.Fatalf("left over: %d rows, %d bytes, %+v, %d settling, %d shrinking", c.heldRows(), c.heldBytes(), c.spillCounts(), c.settlingCount(), len(c.shrinkingLanes()))
	}
}
