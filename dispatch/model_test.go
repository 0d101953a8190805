package dispatch

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	pending "github.com/sluicebox/sluicebox/dispatch/internal/outcome"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// coreModel is the reference model of the core: a table, a receiver for each mode, and the
// remaining rows of each lane in order.
type coreModel struct {
	t      *rapid.T
	now    time.Time
	cfg    Config
	limits map[string]sink.Limits // by kind
	core   *core
	epoch  int
	ended  bool
	frozen bool
	down   bool // the receivers are down
	// unclaimed: claims write nothing and check no row of the log.
	unclaimed bool
	canPing   bool // the sink is a Pinger
	split     int  // see outcome.Config.MinHalf

	keys    []store.LaneKey
	table   map[string]*record
	truth   map[LaneName][]string // all ids in the order of first arrivals
	queue   map[LaneName][]string // ids that the core has yet to deliver
	batches []*batch

	claiming []*request
	sending  []*request
	pings    []sentPing
	writing  [pending.Writers][]outcome

	notBefore map[LaneName]time.Time // by Retry-After
	paused    map[LaneName]time.Time // by the backoff of the head
	claims    map[LaneName]int       // since the lane moved, time passed or the breaker closed

	endpoints map[string]*endpointModel // by endpoint
	named     map[string]bool           // kinds whose rows name their endpoint

	holds map[store.LaneKey]map[store.HoldKind]store.Hold // in the store

	replayModel // replayed rows
	lockModel   // held by other sessions
	lateModel   // fresh rows
	lastSeq     store.Seq
}

// endpointModel is the model of an endpoint.
type endpointModel struct {
	accepted      time.Time // latest start of an accepted request
	failures      int       // failed requests since a row was accepted or rejected
	rejections    int       // rejected requests since a row was accepted
	breakerOpen   bool      // by the rule
	openedAt      time.Time // time of the opening
	probes        int       // requests since the opening
	allowedProbes int       // limit of probes so far
	pings         int       // accepted since a row was accepted
	nextPing      time.Time
}

// endpoint returns the model of a row's endpoint.
func (w *coreModel) endpoint(r *record) *endpointModel {
	if w.named[r.key.Kind] {
		return w.endpointNamed(r.to)
	}
	return w.endpointNamed(w.limits[r.key.Kind].Endpoint)
}

// endpointNamed returns the model of an endpoint.
func (w *coreModel) endpointNamed(name string) *endpointModel {
	if w.endpoints[name] == nil {
		w.endpoints[name] = &endpointModel{}
	}
	return w.endpoints[name]
}

// rowEndpoints are the endpoints that rows name.
func rowEndpoints() []string { return []string{"row's first", "row's second", "row's third"} }

// forgetEndpoints forgets the endpoints that the core has forgotten. Nothing may be counted
// for them.
func (w *coreModel) forgetEndpoints() {
	for _, name := range rowEndpoints() {
		known := slices.ContainsFunc(w.core.endpoints(), func(r *receiver) bool { return r.Endpoint == name })
		if by := w.endpoints[name]; by != nil && !known {
			if by.breakerOpen || by.failures+by.rejections > 0 {
				w.t.Fatalf("endpoint %s is forgotten with its breaker open %v, %d failures, %d rejections", name, by.breakerOpen, by.failures, by.rejections)
			}
			delete(w.endpoints, name)
		}
	}
}

// allow allows one more request to endpoints with an open breaker.
func (w *coreModel) allow() {
	for _, s := range w.endpoints {
		s.allowedProbes++
	}
}

// record is a row in the table.
type record struct {
	id         string
	key        store.LaneKey
	to         string // the endpoint that it names
	size       int
	dropped    bool // the log's payload was dropped: the claim reads it again
	poison     bool
	requeued   bool // it was FAILED and reset
	visible    bool
	gone       bool
	status     store.Status
	retries    int
	claimEpoch int // epoch of the latest claim; -1: another owner's
	taken      int // epoch of a relay's latest claim: the row may have changed since
	until      time.Time
	arrived    bool
	changed    bool // by another session

	known bool // delivered, as this core knows
	over  bool // done under this core

	firstFailed time.Time    // end of the first failed attempt
	lastFailed  time.Time    // end of the latest
	proof       bool         // a row was accepted between it and the current attempt
	detail      string       // of the head's latest failure
	countable   int          // failures that may count against the row
	skipped     <-chan error // an operator waits for the skip

	copyOf string // the id of the replayed row
	job    string
	n      int64

	freshness

	lock     int       // how many more outcome writes find the row locked
	refuse   int       // how many more outcomes the table refuses
	refusals int       // refusals of the current outcome
	due      time.Time // when it may be retried
}

func (r *record) settled() bool { return r.gone || r.status.Settled() }

// batch is a ticket for several rows.
type batch struct {
	rows          []*record
	done          int
	withoutTicket bool // the rows have no ticket
}

func (b *batch) Done(n int) { b.done += n }

func newCoreModel(t *rapid.T) *coreModel {
	cfg := DefaultConfig()
	cfg.APIBatchSize = rapid.IntRange(1, 7).Draw(t, "batch")
	cfg.MaxConcurrentGroups = rapid.IntRange(1, 4).Draw(t, "senders")
	cfg.MaxRetries = rapid.IntRange(0, 3).Draw(t, "retries")
	cfg.BufferRows = 40
	cfg.BufferBytes = int64(rapid.IntRange(1, 1000).Draw(t, "buffer"))
	cfg.ProofWait = 10 * time.Second
	cfg.RetryAfterMax = 20 * time.Second
	cfg.GiveUpAfter = time.Duration(rapid.SampledFrom([]int{0, 0, 30}).Draw(t, "give up after")) * time.Second
	cfg.OnFailed = rapid.SampledFrom([]OnFailed{Continue, Block}).Draw(t, "on failed")
	cfg.Ungrouped = rapid.SampledFrom([]Ungrouped{FIFO, Parallel}).Draw(t, "ungrouped")
	cfg.Retry.Compat = rapid.SampledFrom([]Compat{CompatNone, CompatNone, CompatNone, CompatFlowCatalyst, CompatPostbox}).Draw(t, "compat")
	cfg.Chain = rapid.Bool().Draw(t, "chain")
	w := &coreModel{
		unclaimed: rapid.IntRange(0, 2).Draw(t, "unclaimed") == 0,
		canPing:   rapid.Bool().Draw(t, "pings"),
		split:     rapid.IntRange(1, 4).Draw(t, "outcomes of a half"),
		t:         t, cfg: cfg, now: time.Unix(1e9, 0), limits: map[string]sink.Limits{},
		table: map[string]*record{}, truth: map[LaneName][]string{},
		holds:       map[store.LaneKey]map[store.HoldKind]store.Hold{},
		replayModel: newReplayModel(), lockModel: newLockModel(),
		named:     map[string]bool{},
		lateModel: lateModel{late: rapid.Bool().Draw(t, "late"), allowed: true},
	}
	for kind, mode := range []sink.Mode{sink.Atomic, sink.Ordered, sink.PerItem, sink.Prefix} {
		name := fmt.Sprint(kind)
		limits := sink.Limits{
			Mode:     mode,
			Endpoint: rapid.SampledFrom([]string{"here", "there"}).Draw(t, "endpoint"),
			MaxItems: rapid.IntRange(1, 6).Draw(t, "items"),
			MaxBytes: rapid.IntRange(1, 90).Draw(t, "bytes"),
			MaxLanes: rapid.IntRange(0, 3).Draw(t, "lanes"),
			MaxRun:   rapid.IntRange(0, 3).Draw(t, "run"),
		}
		if w.named[name] = rapid.IntRange(0, 2).Draw(t, "named") == 0; w.named[name] {
			limits.Endpoint = "of rows"
			limits.EndpointOf = func(m *sink.Message) string {
				to, _ := m.Attributes.Get("to")
				return to
			}
		}
		w.limits[name] = limits
		for _, group := range []store.Group{{}, store.GroupOf(""), store.GroupOf("g"), store.GroupOf("h")} {
			w.keys = append(w.keys, store.LaneKey{Outbox: "box" + name, Kind: name, Group: group})
		}
	}
	w.start()
	return w
}

func (w *coreModel) mode(kind string) sink.Mode { return w.limits[kind].Mode }

// counted reports whether the table of a lane has a column for retries.
func (w *coreModel) counted(key store.LaneKey) bool { return w.mode(key.Kind) != sink.PerItem }

// lane returns the lane of a row.
func (w *coreModel) lane(r *record) LaneName {
	name := LaneName{LaneKey: r.key, Job: r.job}
	if !r.key.Group.Valid && w.cfg.Ungrouped == Parallel {
		name.RowID = cmp.Or(r.copyOf, r.id)
	}
	return name
}

// onHold reports whether a lane is on hold. A pause also holds its replay lanes.
func (w *coreModel) onHold(name LaneName) bool {
	if name.Job != "" {
		_, paused := w.holds[name.LaneKey][store.Paused]
		return paused && name.RowID == ""
	}
	return name.RowID == "" && len(w.holds[name.LaneKey])+len(w.replayHolds[name.LaneKey]) > 0
}

// start starts a core like a new leader, with the holds in the store and the unsettled rows
// in order.
func (w *coreModel) start() {
	w.epoch++
	w.ended, w.frozen = false, false
	limits := func(kind string) sink.Limits { return w.limits[kind] }
	w.core = newTestCore(w.cfg, limits, rand.New(rand.NewPCG(1, 2)).Float64)
	w.core.setPingable(w.canPing)
	w.core.splitOutcomes(w.split)
	w.lateRows, w.writes = nil, [pending.Writers]time.Time{}
	if w.late {
		w.core.setLate(func() bool { return w.allowed })
	}
	if w.unclaimed {
		w.core.setUnwritten(w.keys)
	}
	w.claiming, w.sending, w.pings, w.batches = nil, nil, nil, nil
	w.writing = [pending.Writers][]outcome{}
	w.endpoints = map[string]*endpointModel{}
	for _, limits := range w.limits {
		w.endpoints[limits.Endpoint] = &endpointModel{}
	}
	w.queue = map[LaneName][]string{}
	w.notBefore, w.paused = map[LaneName]time.Time{}, map[LaneName]time.Time{}
	w.claims = map[LaneName]int{}
	clear(w.known)
	w.startReplays()
	w.restore()
	for _, key := range w.keys {
		for _, id := range w.inserted(key) {
			r := w.table[id]
			r.requeued, r.freshness = false, freshness{}
			r.known, r.over, r.firstFailed, r.lastFailed, r.refusals, r.skipped = false, r.settled(), time.Time{}, time.Time{}, 0, nil
			if !w.counted(key) {
				r.retries, r.countable = 0, 0
			}
			if !r.over {
				w.queue[w.lane(r)] = append(w.queue[w.lane(r)], id)
				w.enterRows(w.core.append, r)
			}
		}
	}
	w.check()
}

// inserted returns the ids of a key in the order of first arrivals of each lane.
func (w *coreModel) inserted(key store.LaneKey) (ids []string) {
	var names []LaneName
	for name := range w.truth {
		if name.LaneKey == key && name.Job == "" {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b LaneName) int { return strings.Compare(a.RowID, b.RowID) })
	for _, name := range names {
		ids = append(ids, w.truth[name]...)
	}
	return ids
}

// restore restores the holds from the store. A row that is no longer FAILED has none.
func (w *coreModel) restore() {
	var holds []store.Hold
	for _, key := range w.keys {
		for _, kind := range []store.HoldKind{store.Blocked, store.Paused} {
			h, held := w.holds[key][kind]
			switch {
			case held && kind == store.Blocked && w.table[h.ID].status != store.Failed:
				delete(w.holds[key], kind)
			case held:
				holds = append(holds, h)
			}
		}
	}
	for outbox := range w.pauses {
		holds = append(holds, *w.pauseOf(outbox))
	}
	w.core.restore(holds)
}

// enterRows gives rows to the core as one batch.
func (w *coreModel) enterRows(how func([]store.Item, Ticket), rows ...*record) {
	b := &batch{rows: rows}
	w.batches = append(w.batches, b)
	how(w.items(rows), b)
}

// items returns rows like a source or a store.
func (w *coreModel) items(rows []*record) []store.Item {
	items := make([]store.Item, len(rows))
	for i, r := range rows {
		items[i] = store.Item{
			Ref: store.Ref{Outbox: r.key.Outbox, ID: r.id}, Kind: r.key.Kind, Group: r.key.Group,
			PayloadSize: r.size, Seq: r.seq, Txn: 1, // the log has the row as inserted
		}
		if !r.dropped {
			items[i].Payload, items[i].Attributes = make([]byte, r.size), r.attributes()
		}
	}
	return items
}

// attributes returns the attributes of a row.
func (r *record) attributes() store.Attributes {
	return store.Attributes{{Name: "to", Value: r.to}}
}

// removeRow removes a row from those the core has yet to deliver.
func (w *coreModel) removeRow(r *record) {
	name := w.lane(r)
	w.queue[name] = slices.DeleteFunc(w.queue[name], func(id string) bool { return id == r.id })
	w.claims[name] = 0
	delete(w.paused, name)
	if len(w.queue[name]) == 0 {
		delete(w.notBefore, name) // the lane is removed with its state
	}
}

// seldom does something in one of four turns.
func seldom(do func()) func(*rapid.T) { return seldomIn(func(*rapid.T) { do() }) }

func seldomIn(do func(*rapid.T)) func(*rapid.T) {
	return func(t *rapid.T) {
		if rapid.IntRange(0, 3).Draw(t, "seldom") == 0 {
			do(t)
		}
	}
}

func TestCoreAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newCoreModel(t)
		actions := map[string]func(*rapid.T){
			"append":        w.appendRows,
			"claim":         w.claim,
			"answer claims": w.answerClaims,
			"answer":        w.answer,
			"answer ping":   w.answerPing,
			"take outcomes": w.takeOutcomes,
			"write":         w.write,
			"time":          w.advance,
			"toggle":        func(*rapid.T) { w.down = !w.down },
			"interfere":     w.interfere,
			"lock":          w.lockTable,
			"await":         w.await,
			"await more":    w.await,
			"freeze":        seldom(func() { w.frozen = !w.frozen; w.core.freeze(w.frozen) }),
			"pause":         w.pauseLane,
			"pause outbox":  seldomIn(w.pauseOutbox),
			"let go":        w.releaseHold,
			"copy":          w.copyRows,
			"hold for":      w.holdForReplay,
			"let go for":    w.releaseReplayHold,
			"replay":        w.replay,
			"replay more":   w.replay,
			"take back":     w.withdrawReplay,
			"note":          w.recordFinished,
			"note more":     w.recordFinished,
			"skip":          w.skip,
			"requeue":       w.requeue,
			"retry now":     w.retryNow,
			"start fresh":   w.startFresh,
			"permit":        w.permit,
			"little time":   w.littleTime,
			"lose lease":    w.loseLease,
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
