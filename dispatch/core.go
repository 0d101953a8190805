package dispatch

import (
	"math/rand/v2"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/internal/breaker"
	"github.com/sluicebox/sluicebox/dispatch/internal/chain"
	lanes "github.com/sluicebox/sluicebox/dispatch/internal/lane"
	pending "github.com/sluicebox/sluicebox/dispatch/internal/outcome"
	"github.com/sluicebox/sluicebox/dispatch/internal/spill"
	"github.com/sluicebox/sluicebox/dispatch/internal/trail"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

type (
	lane     = lanes.Lane
	row      = lanes.Row
	run      = lanes.Run
	request  = lanes.Request
	receiver = lanes.Receiver
	outcome  = lanes.Outcome
	owner    = lanes.Owner
)

// core is the pure state machine of one sink's lanes. It is not safe for concurrent use.
type core struct {
	cfg   Config
	lanes *lanes.Set
	spill *spill.Spiller

	outcomes  pending.Queue[owner]
	answers   answers
	replays   replays
	operator  operator
	late      lateClaims
	overtaken frontiers
	trail     trail.Ring // of rows that were settled last
	kept      trail.Kept // the attempts of failing rows

	notBefore time.Time // no claim before this time
	ended     bool

	lastSeq   store.Seq            // of the rows that were appended
	doneRows  int64                // total of finished rows
	cameRows  int64                // rows that came from the source
	delivered map[string]time.Time // when a receiver last accepted a row, by outbox
}

func newCore(cfg Config, of lanes.Config) *core {
	c := &core{
		cfg: cfg, lanes: lanes.NewSet(of),
		delivered: map[string]time.Time{}, trail: trail.NewRing(trailRows), kept: trail.NewKept(keptRows),
	}
	if cfg.Chain {
		c.lanes.Requests.Chains = chain.New[lanes.Name](rand.Uint64())
	}
	c.answers = answers{core: c, policy: cfg.policy(), pings: pings{core: c}}
	c.replays, c.operator = newReplays(c), operator{core: c, blocked: map[store.Ref]*lane{}, skips: map[string]skipped{}}
	c.late = lateClaims{core: c}
	c.outcomes = pending.NewQueue(pending.Config[owner]{EarlyWait: lanes.VisibilityWait, Half: halves(c.lanes), MinHalf: minHalf})
	c.spill = spill.New(spill.Config{BatchRows: cfg.APIBatchSize, BufferRows: cfg.BufferRows}, c.lanes, c)
	c.overtaken = newFrontiers(&c.lanes.Memory, c.spill.Row)
	return c
}

// minHalf is from how many outcomes of half of the lanes on they are written by themselves.
const minHalf = 200

// halves divides the outcomes of lanes.
func halves(of *lanes.Set) func(owner) int {
	return func(o owner) int {
		key := o.Row.Group.Name
		if of.HasRowLanes(o.Row.Lane()) {
			key = o.Row.ID
		}
		hash := uint32(2166136261) // FNV-1a
		for i := range len(key) {
			hash = (hash ^ uint32(key[i])) * 16777619
		}
		return int(hash>>24) & 1 // its lower bits hardly depend on the last letter
	}
}

// lanes returns the configuration of the lanes.
func (c *Config) lanes(limits func(kind string) sink.Limits, random func() float64) lanes.Config {
	return lanes.Config{
		BatchRows: c.APIBatchSize, Senders: c.MaxConcurrentGroups, Rate: float64(c.RateLimit), ClaimAhead: c.claimAhead(),
		BufferRows: c.BufferRows, BufferBytes: c.BufferBytes, RowLanes: c.Ungrouped == Parallel,
		Breaker: &breaker.Config{
			Backoff:            func(n int) time.Duration { return lanes.Delay(n, c.Backoff.Initial, c.Backoff.Max, random) },
			RetryAfterMax:      c.RetryAfterMax,
			MaxConcurrentEager: max(1, c.MaxConcurrentGroups/2),
			PingInterval:       3 * c.Backoff.Initial,
			MaxPings:           c.MaxRetries + 1,
		},
		Limits: limits, Random: random,
	}
}

// policy returns the rules by which failures count.
func (c *Config) policy() lanes.Policy {
	return lanes.Policy{
		ProofWait: c.ProofWait, GiveUpAfter: c.GiveUpAfter,
		CountAll: c.Retry.Compat == CompatFlowCatalyst, CountClientErrors: c.Retry.Compat == CompatPostbox,
	}
}

// append is appendFresh for rows that are claimed before they are sent.
func (c *core) append(items []store.Item, t Ticket) { c.appendFresh(items, t, time.Time{}) }

// appendFresh puts rows at the end of their lanes, in the given order. Until a time they may be
// sent before they are claimed. Each row is allocated separately, so that a row that waits for
// long does not retain its whole batch.
func (c *core) appendFresh(items []store.Item, t Ticket, until time.Time) {
	c.cameRows += int64(len(items))
	for i := range items {
		c.lastSeq = max(c.lastSeq, items[i].Seq)
		name := c.lanes.NameOf(&items[i])
		l := c.lanes.Get(name)
		if l != nil && l.MergeRequeued(&items[i], t) {
			continue
		}
		rw := &row{Item: items[i], Ticket: t, FreshUntil: until}
		c.lanes.Memory.Enter(rw, lanes.Buffered)
		if l == nil {
			l = c.spill.Lane(name)
		}
		l.InternName(rw)
		c.spill.Append(l, rw)
		c.overtaken.add(l, rw, items[0].Seq)
		c.Wake(l)
	}
}

// insertFront puts requeued rows in front of their lanes, in the given order and behind a
// run in flight. These rows have no ticket. A row with a Seq is among the spilled rows.
func (c *core) insertFront(items []store.Item) {
	front, order := map[*lane][]*row{}, []*lane{}
	for i := range items {
		rw := &row{Item: items[i], Origin: lanes.Requeued}
		l := c.admit(rw)
		if rw.Seq != 0 {
			c.spill.AddCopy(rw)
		}
		if front[l] == nil {
			order = append(order, l)
		}
		front[l] = append(front[l], rw)
	}
	for _, l := range order {
		l.Insert(front[l])
		c.lanes.Reroute(l)
		c.Wake(l)
	}
}

// admit counts a row and returns its lane.
func (c *core) admit(rw *row) *lane {
	c.lanes.Memory.Enter(rw, lanes.Buffered)
	l := c.spill.Lane(c.lanes.NameOf(&rw.Item))
	l.InternName(rw)
	return l
}

// drop removes a settled row from the counts and completes its ticket.
func (c *core) drop(rw *row) {
	c.spill.Remove(rw)
	c.overtaken.done(rw)
	c.doneRows++
	rw.Finish()
	rw.ReleaseTicket()
	rw.Skip.Report()
}

// Wake queues a lane unless it waits for something else.
func (c *core) Wake(l *lane) {
	switch {
	case l.State != lanes.Idle:
	case c.operator.skipHead(l):
	case l.OnHold() && (l.Job == nil || len(l.Rows) > 0):
		l.Hold()
	case len(l.Rows) > 0:
		if l.Rows[0].Sight != lanes.Unclaiming {
			c.lanes.Queue(l)
		}
	case !l.HasSpilled:
		c.lanes.Remove(l)
		c.spill.Forget(l)
	}

	c.spill.Reloads.Request(l)
}

// Left records that a row has left memory.
func (c *core) Left(rw *row) {
	if c.operator.left != nil {
		c.operator.left[rw.Ref] = true
	}
}

// release ends the lane's current step. The lane is queued again, or removed if it is
// empty.
func (c *core) release(l *lane) {
	l.Rest()
	c.spill.Rested(l)
	if l.Withdrawing() {
		c.replays.withdrawLane(l)
	}
	c.Wake(l)
	c.unclaimLane(l)
}

// wait sets the lane aside until a time.
func (c *core) wait(l *lane, until time.Time) {
	l.Rest()
	c.spill.Rested(l)
	l.WakeAt = until
	if c.ended || l.Withdrawing() || l.Rows[0].Skippable() || l.OnHold() && l.Rows[0].Skip == nil {
		c.release(l)
		return
	}
	c.lanes.Wait(l)
}

// tick queues the lanes and outcomes that are due.
func (c *core) tick(now time.Time) {
	for o, ok := c.outcomes.Due(now); ok; o, ok = c.outcomes.Due(now) {
		c.requeueOutcome(o)
	}
	for l := c.lanes.Due(now); l != nil; l = c.lanes.Due(now) {
		c.release(l)
	}
	c.overtaken.look(now)
}

// nextWake returns the time when tick or a probe is due next; false if none is.
func (c *core) nextWake(now time.Time) (at time.Time, ok bool) {
	sooner := func(t time.Time) {
		if !ok || t.Before(at) {
			at, ok = t, true
		}
	}

	if due, some := c.lanes.NextDue(); some {
		sooner(due)
	}
	if due, some := c.outcomes.NextDue(); some {
		sooner(due)
	}
	if due, some := c.overtaken.due(); some {
		sooner(due)
	}
	if due, some := c.lanes.Requests.Fresh.NextDue(); some && !c.ended {
		sooner(due)
	}
	if c.ended || c.tooManyUnwritten() || c.lanes.Requests.Free() <= 0 {
		return at, ok
	}

	if slow, some := c.late.slowFrom(); some && c.lanes.Requests.Fresh.Wait && slow.After(now) {
		sooner(slow)
	}
	if next, some := c.lanes.Requests.NextPacedClaim(now); some && next.After(now) {
		sooner(next)
	}
	if next, some := c.lanes.NextClaim(c.notBefore, now); some {
		sooner(next)
	}
	if next, some := c.lanes.NextReplay(now); some {
		sooner(next)
	}

	return at, ok
}

// mayClaim reports whether new runs may begin.
func (c *core) mayClaim(now time.Time) bool {
	if !now.Before(c.notBefore) {
		c.notBefore = time.Time{} // the takeover wait is over
	}
	return !c.ended && c.notBefore.IsZero() && !c.tooManyUnwritten()
}

// tooManyUnwritten reports whether outcomes pile up, because the table accepts claims and
// refuses outcomes, or shows its rows much later than the log. The pile must not exhaust
// memory.
func (c *core) tooManyUnwritten() bool {
	return c.outcomes.Piled() > max(1, c.cfg.BufferRows/2)
}

// heldIDs returns the ids of an outbox that are in lanes or have an unwritten outcome.
func (c *core) heldIDs(outbox string) []string {
	var ids []string
	for _, l := range c.lanes.Live() {
		if l.Name.Outbox != outbox {
			continue
		}
		for _, rows := range [][]*row{l.Rows, l.UnspillableTail} {
			for _, rw := range rows {
				ids = append(ids, rw.ID)
			}
		}
	}

	for o := range c.outcomes.All() {
		if o.Outbox == outbox {
			ids = append(ids, o.ID)
		}
	}

	for p := range c.spill.All() {
		if p.Row.Outbox == outbox {
			ids = append(ids, p.Row.ID)
		}
	}

	for rw := range c.lanes.Requests.Fresh.All() { // the outcome of some waits for a late claim
		if rw.Outbox == outbox {
			ids = append(ids, rw.ID)
		}
	}

	return ids
}

// bufferedRows is the number of rows that count against the buffer.
func (c *core) bufferedRows() int { return c.lanes.Memory.Used(lanes.Buffered) }

// spillForLog spills the rows that keep the checkpoint from advancing: rows of lanes that
// do not move, or of all lanes, and rows with a deferred outcome. The rows stay in memory
// too.
func (c *core) spillForLog(all bool) {
	if c.ended {
		return
	}
	for o := range c.outcomes.Unready() {
		c.spill.Unwritten(o)
		if o.Of.Lane != nil {
			c.spill.Rows(o.Of.Lane)
		}
	}
	c.spill.ForLog(all)
}

// unclaimed handles a row whose claim was given back.
func (c *core) unclaimed(rw *row, now time.Time) {
	if !rw.GivenBack() {
		return
	}
	l := c.lanes.Get(c.lanes.NameOf(&rw.Item))
	if l == nil {
		return
	}
	c.spill.Evict(l)

	switch {
	case c.lanes.Get(l.Name) != l || l.State != lanes.Idle:
	case len(l.Rows) > 0 && !l.OnHold() && l.WakeAt.After(now) && l.Rows[0].Sight != lanes.Unclaiming:
		c.wait(l, l.WakeAt)
	default:
		c.Wake(l)
	}
}

// addReloaded adds the rows of a reload; see spill.Reloads.Add.
func (c *core) addReloaded(answers [][]store.Item, each int) {
	requeued := map[store.Ref]*row{}
	for o := range c.outcomes.All() {
		if o.Of.Row.Origin == lanes.Requeued && o.Of.Row.Seq == 0 && o.Status.Settled() {
			requeued[o.Ref] = o.Of.Row
		}
	}
	c.spill.Reloads.Add(answers, each, requeued)
	if c.ended { // the rows whose spill was canceled, because the lane has no spilled rows left
		c.overtaken.spillAll()
	}
}
