package dispatch

import (
	"context"
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
	passed int
	seq    store.Seq
	counts int64 // seqs given out in this life
	dead   bool
	away   map[store.LaneKey]bool

	batches  []*stretch // of this life, in order
	claiming []*request
	sending  []*request
	writing  []outcome
	parking  []store.Item
	reading  bool
	answers  [][]store.Item
	each     int
}

// stored is a row of the table.
type stored struct {
	id               string
	key              store.LaneKey
	status           store.Status
	gone, unseen     bool
	poison, requeued bool
	arrived          bool
	refuse           int
}

func (r *stored) settled() bool { return r.gone || r.status.Settled() }

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
	}
	for _, kind := range []string{"EVENT", "JOB"} {
		for _, group := range []store.Group{{}, store.GroupOf(""), store.GroupOf("g"), store.GroupOf("h")} {
			y.keys = append(y.keys, store.LaneKey{Outbox: "box " + kind, Kind: kind, Group: group})
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
	y.claiming, y.sending, y.writing, y.batches = nil, nil, nil, nil
	y.parking, y.reading, y.answers = nil, false, nil
	y.parked.cut(y.seq)
	for _, r := range y.log[:y.passed] {
		if !r.settled() && !r.requeued && !y.parked.has(r.id) {
			y.t.Fatalf("row %s is behind the checkpoint, neither settled nor parked", r.id)
		}
	}
	y.core.shelve(y.parked.lanes())
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
	if rest := y.log[y.passed:]; len(rest) > 0 {
		y.bring(rest, len(y.log))
	}
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
	if y.core.rows >= 2*y.cfg.BufferRows {
		return
	}
	var rows []*stored
	for range rapid.IntRange(1, 6).Draw(t, "rows") {
		r := &stored{
			id: fmt.Sprint(len(y.log) + 1), key: rapid.SampledFrom(y.keys).Draw(t, "lane"), status: store.Pending,
			poison: y.rare(t, "poison"), unseen: y.rare(t, "unseen"),
		}
		if y.rare(t, "refused") {
			r.refuse = 2
		}
		y.log, y.byID[r.id] = append(y.log, r), r
		rows = append(rows, r)
	}
	y.bring(rows, len(y.log))
}

func (y *yard) rare(t *rapid.T, what string) bool { return rapid.IntRange(0, 9).Draw(t, what) == 0 }

// interfere settles or deletes a row as somebody else would.
func (y *yard) interfere(t *rapid.T) {
	if len(y.log) == 0 {
		return
	}
	r := rapid.SampledFrom(y.log).Draw(t, "row")
	if r.settled() {
		return
	}
	if rapid.Bool().Draw(t, "gone") {
		r.gone = true
	} else {
		r.status = store.Completed
	}
}

func (y *yard) claim(t *rapid.T) {
	if len(y.claiming) > 0 {
		return
	}
	y.core.tick(y.now)
	y.claiming = y.core.nextClaims(rapid.IntRange(1, 10).Draw(t, "most"), y.now)
}

func (y *yard) answerClaims(*rapid.T) {
	for _, req := range y.claiming {
		var answers []store.ClaimAnswer
		for _, run := range req.runs {
			for _, rw := range run.rows {
				r, a := y.byID[rw.ID], store.ClaimAnswer{Result: store.Claimed}
				switch {
				case r.unseen:
					a.Result, r.unseen = store.NotYetVisible, false
				case r.gone:
					a.Result = store.Gone
				case r.settled():
					a.Result = store.AlreadySettled
				default:
					r.status = store.Processing
					if rw.Payload == nil {
						a.Payload = []byte("{}")
					}
				}
				answers = append(answers, a)
			}
		}
		y.core.claimed(req, answers, y.now, y.now)
	}
	y.claiming = nil
	y.send()
}

func (y *yard) send() {
	for req := y.core.nextRequest(y.now); req != nil; req = y.core.nextRequest(y.now) {
		y.sending = append(y.sending, req)
	}
}

func (y *yard) answer(t *rapid.T) {
	if len(y.sending) == 0 {
		return
	}
	i := rapid.IntRange(0, len(y.sending)-1).Draw(t, "request")
	req := y.sending[i]
	y.sending = slices.Delete(y.sending, i, i+1)
	res := sink.Result{Outcome: outcomeOf(sink.Delivered)}
	for _, run := range req.runs {
		for _, rw := range run.rows {
			switch r := y.byID[rw.ID]; {
			case y.dead || y.away[r.key]:
				res.Outcome = outcomeOf(sink.Unavailable)
			case r.poison && res.Class == sink.Delivered:
				res.Outcome = outcomeOf(sink.Rejected)
			}
		}
	}
	if res.Class == sink.Delivered {
		for _, run := range req.runs {
			for _, rw := range run.rows {
				y.arrive(y.byID[rw.ID])
			}
		}
	}
	y.core.answered(req, &res, y.now)
	y.send()
}

// arrive states that the first arrivals of a group are in the order of the log.
func (y *yard) arrive(r *stored) {
	if !r.arrived && !r.requeued && (r.key.Group.Valid || y.cfg.Ungrouped == FIFO) {
		for _, before := range y.log {
			if before == r {
				break
			}
			if before.key == r.key && !before.arrived && !before.requeued && !before.settled() {
				y.t.Fatalf("row %s arrives before row %s\n%s", r.id, before.id, y.describe())
			}
		}
	}
	r.arrived = true
}

func (y *yard) takeOutcomes(t *rapid.T) {
	y.core.tick(y.now)
	if batch := y.core.nextOutcomes(rapid.IntRange(1, 10).Draw(t, "most")); len(batch) > 0 {
		y.writing = batch
	}
}

// write is the store: an outcome and the end of a parked row are one.
func (y *yard) write(*rapid.T) {
	if len(y.writing) == 0 {
		return
	}
	results := make([]store.SettleResult, len(y.writing))
	for i := range y.writing {
		o := &y.writing[i]
		r := y.byID[o.ID]
		switch {
		case r.refuse > 0:
			r.refuse--
			results[i] = store.Refused
			continue
		case o.Status == store.Completed && !r.arrived:
			y.t.Fatalf("row %s COMPLETED without an arrival", r.id)
		case r.gone:
			results[i] = store.WasGone
		case r.settled():
			results[i], o.Block = store.WasSettled, nil // by somebody else
		default:
			results[i], r.status = store.Written, o.Status
			if o.Block != nil {
				y.holds[r.key] = o.Hold()
			}
		}
		if o.Parked != 0 && o.Status.Settled() {
			y.parked.forget(store.ParkedRef{Ref: o.Ref, Seq: o.Parked})
		}
	}
	y.writing = nil
	y.core.written(results, y.now)
}

func (y *yard) busy() bool { return len(y.parking) > 0 || y.reading }

// park begins to park rows, or ends it.
func (y *yard) park(t *rapid.T) {
	switch {
	case len(y.parking) > 0:
		_ = y.parked.Park(context.Background(), y.epoch, y.parking)
		y.parking = nil
		y.core.parked()
	case !y.busy():
		y.parking = y.core.nextParks(rapid.IntRange(1, 10).Draw(t, "most"))
	}
}

// read begins to read rows back, or ends it; what it reads is of its beginning.
func (y *yard) read(*rapid.T) {
	switch {
	case y.reading:
		y.reading = false
		y.core.readBack(y.answers, y.each)
	case !y.busy():
		from, each := y.core.nextReads(y.now)
		if y.reading, y.each = len(from) > 0, each; y.reading {
			y.answers, _ = y.parked.Parked(context.Background(), from, each)
		}
	}
}

// endBusy ends what was begun.
func (y *yard) endBusy(t *rapid.T) {
	if y.reading {
		y.read(t)
	}
	if len(y.parking) > 0 {
		y.park(t)
	}
}

func (y *yard) unpark(*rapid.T) {
	if !y.busy() {
		refs := y.core.nextUnparks(3)
		y.parked.forget(refs...)
		y.core.unparked(refs...)
	}
}

func (y *yard) hold(t *rapid.T) {
	key := rapid.SampledFrom(y.keys).Draw(t, "lane")
	if _, held := y.holds[key]; held || !key.Group.Valid && y.cfg.Ungrouped == Parallel {
		return
	}
	y.holds[key] = store.Hold{Lane: key, Kind: store.Paused}
	y.core.pause(LaneName{LaneKey: key}, y.holds[key])
}

func (y *yard) letGo(t *rapid.T) { y.letLaneGo(rapid.SampledFrom(y.keys).Draw(t, "lane")) }

func (y *yard) letLaneGo(key store.LaneKey) {
	delete(y.holds, key)
	l := y.core.lanes[LaneName{LaneKey: key}]
	if l != nil && l.paused != nil {
		y.core.resume(l, y.now)
	}
	if l != nil && l.blocked != nil {
		y.core.unblock(l, y.now)
	}
}

// setBack makes a FAILED row PENDING again.
func (y *yard) setBack(t *rapid.T) {
	failed := slices.DeleteFunc(slices.Clone(y.log), func(r *stored) bool {
		return r.status != store.Failed || r.gone || slices.ContainsFunc(y.writing, func(o outcome) bool { return o.ID == r.id })
	})
	if len(failed) == 0 {
		return
	}
	r := rapid.SampledFrom(failed).Draw(t, "row")
	r.status, r.requeued, r.poison = store.Pending, true, false
	if y.holds[r.key].ID == r.id {
		delete(y.holds, r.key)
	}
	it := r.item()
	y.core.requeue([]store.Item{it})
	y.core.mended([]store.Ref{it.Ref}, y.now)
}

// sweep finds rows that nobody holds. Only those that were set back may be.
func (y *yard) sweep(*rapid.T) {
	held := map[string]bool{}
	for _, kind := range []string{"EVENT", "JOB"} {
		for _, id := range y.core.heldIDs("box " + kind) {
			held[id] = true
		}
	}
	for _, r := range y.log {
		if r.settled() || held[r.id] || y.parked.has(r.id) {
			continue
		}
		if !r.requeued {
			y.t.Fatalf("row %s is %s, and nobody knows it", r.id, r.status)
		}
		y.core.found([]store.Item{r.item()}, y.now)
	}
}

// crash ends the core. A statement under way may have been carried out.
func (y *yard) crash(t *rapid.T) {
	if len(y.parking) > 0 && rapid.Bool().Draw(t, "parked after all") {
		_ = y.parked.Park(context.Background(), y.epoch, y.parking)
	}
	for _, b := range y.batches {
		if b.told < len(b.rows) || rapid.IntRange(0, 3).Draw(t, "not saved") == 0 {
			break
		}
		y.passed, y.seq = b.end, b.last
	}
	y.start()
}

// check states that the checkpoint passes nothing that is not safe, and that the
// core counts what it holds.
func (y *yard) check(*rapid.T) {
	for _, b := range y.batches {
		safe := 0
		for _, r := range b.rows {
			if r.settled() || r.requeued || y.parked.has(r.id) {
				safe++
			}
		}
		if b.told > safe {
			y.t.Fatalf("a ticket was told of %d rows, %d of its %d are settled or parked", b.told, safe, len(b.rows))
		}
	}
	rows := y.core.passing
	seen := map[*row]bool{}
	for _, l := range y.core.lanes {
		rows += len(l.rows)
		if l.state == laneReady && len(l.rows) == 0 {
			y.t.Fatalf("lane %s is ready without a row", l.name)
		}
		for _, rw := range l.rows {
			seen[rw] = true
		}
	}
	for _, queue := range [][]outcome{y.core.outcomes, y.core.writing, y.core.refused} {
		for i := range queue {
			if rw := queue[i].row; !seen[rw] && !slices.ContainsFunc(queue[:i], func(o outcome) bool { return o.row == rw }) {
				rows++
			}
		}
	}
	for _, queue := range [][]parking{y.core.toPark, y.core.parkings} {
		for i := range queue {
			if rw := queue[i].row; queue[i].copied && !seen[rw] && rw.late != nil && rw.late.Status != 0 {
				rows++
			}
		}
	}
	if n := y.core.back; n > max(1, y.cfg.BufferRows/2)+y.each || n < 0 {
		y.t.Fatalf("%d rows were read back into a buffer of %d", n, y.cfg.BufferRows)
	}
	if rows != y.core.rows {
		y.t.Fatalf("%d rows are counted, %d are held\n%s", y.core.rows, rows, y.describe())
	}
}

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
			"park":          y.park,
			"read":          y.read,
			"unpark":        y.unpark,
			"relieve":       func(t *rapid.T) { y.core.relieve(rapid.Bool().Draw(t, "others")) },
			"press":         seldom(func(t *rapid.T) { y.core.press(rapid.Bool().Draw(t, "all")) }),
			"time": func(t *rapid.T) {
				y.now = y.now.Add(time.Duration(rapid.IntRange(1, 5000).Draw(t, "ms")) * time.Millisecond)
			},
			"dead": seldom(func(*rapid.T) { y.dead = !y.dead }),
			"away": func(t *rapid.T) {
				key := rapid.SampledFrom(y.keys).Draw(t, "lane")
				y.away[key] = !y.away[key]
			},
			"interfere": seldom(y.interfere),
			"hold":      seldom(y.hold),
			"let go":    y.letGo,
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
	text := fmt.Sprintf("%d rows, %d parked, %d hungry", y.core.rows, y.core.parkedRows, y.core.hungry.len())
	for _, l := range y.core.byAge() {
		text += fmt.Sprintf("\n%s %s: %s, behind %v, after %d, beyond %d, parking %d, shrinking %v:", l.name.LaneKey, l.name.RowID, l.word(), l.behind, l.after, l.beyond, l.parking, y.core.shrinking[l])
		for _, rw := range l.rows {
			text += fmt.Sprintf(" %s/%d", rw.ID, rw.Seq)
		}
	}
	for _, queue := range [][]outcome{y.core.outcomes, y.core.writing, y.core.refused} {
		for i := range queue {
			text += fmt.Sprintf("\noutcome %s of %s, returning %v", queue[i].Status, queue[i].ID, queue[i].row.returning)
		}
	}
	for _, s := range y.core.away {
		text += fmt.Sprintf("\naway of %s: %d, in order %d", s.kind, len(s.rows), s.order.len())
	}
	for i := range y.parked.items {
		it := &y.parked.items[i]
		text += fmt.Sprintf("\nparked %s %d of %s", it.ID, it.Seq, it.Lane())
	}
	return text
}

// finish heals everything and expects every row to be settled, and nothing left.
func (y *yard) finish(t *rapid.T) {
	y.dead = false
	clear(y.away)
	for range 2000 {
		for _, key := range y.keys {
			y.letLaneGo(key)
		}
		for _, step := range []func(*rapid.T){y.claim, y.answerClaims} {
			step(t)
		}
		for len(y.sending) > 0 {
			y.answer(t)
		}
		for _, step := range []func(*rapid.T){y.takeOutcomes, y.write, y.endBusy, y.park, y.endBusy, y.unpark, y.read, y.endBusy, y.sweep, y.check} {
			step(t)
		}
		y.now = y.now.Add(20 * time.Second)
		if y.core.rows == 0 && len(y.parked.items) == 0 {
			break
		}
	}
	for _, key := range y.keys {
		y.letLaneGo(key)
	}
	for _, id := range slices.Sorted(maps.Keys(y.byID)) {
		if r := y.byID[id]; !r.settled() {
			t.Fatalf("row %s is %s\n%s", id, r.status, y.describe())
		}
	}
	c := y.core
	if c.rows != 0 || c.bytes != 0 || c.parkedRows != 0 || c.passing != 0 || len(c.settling)+len(c.shrinking)+len(c.toPark) > 0 || !c.quiet() {
		t.Fatalf("left over: %d rows, %d bytes, %d parked, %d passing, %d settling, %d shrinking", c.rows, c.bytes, c.parkedRows, c.passing, len(c.settling), len(c.shrinking))
	}
}
