package replay

import (
	"context"
	"fmt"
	"maps"
	"time"

	"golang.org/x/time/rate"

	"github.com/sluicebox/sluicebox/store"
)

const (
	// quiesceTimeout is the maximum time for a lane to become quiescent before others
	// go first, and deferDuration is how long they do. A lane is quiescent when its
	// request has ended and its outcomes are written. A table may refuse an outcome
	// forever.
	quiesceTimeout, deferDuration = 5 * time.Second, time.Second

	// pollInterval is how often a player checks conditions without a signal.
	pollInterval = time.Second
)

// player sends the copied rows of a job, lane by lane.
type player struct {
	*jobRun
	targets      map[string]*target // by sink
	pace         *rate.Limiter      // nil for no limit
	turns        map[store.LaneKey]*laneTurn
	scan         laneScan
	wake         chan struct{}
	meanRowBytes int64 // recent mean payload of a row in bytes

	rows       int       // in memory at the last refresh
	progressAt time.Time // time of the last progress

	// paused has the groups that an operator has paused.
	paused map[store.LaneKey]bool
}

// laneTurn is a lane whose rows are being sent.
type laneTurn struct {
	store.ReplayLane
	live, target *target

	// held is true while the live lane is held, which began at since. Then quiescent is true if none of
	// its rows is in flight, and waiting if live rows wait for the end of the turn.
	held, quiescent, waiting bool
	since                    time.Time
	lastRead                 int64 // number of the last row that was read
	allRead                  bool  // no row is left to read
}

func newPlayer(r *jobRun) *player {
	p := &player{
		jobRun: r, targets: map[string]*target{}, turns: map[store.LaneKey]*laneTurn{}, wake: make(chan struct{}, 1),
		meanRowBytes: 1 << 20, paused: map[store.LaneKey]bool{},
	}

	burst := 1
	for name, sink := range r.Sinks {
		p.targets[name] = newTarget(name, sink)
		burst = max(burst, sink.Config.APIBatchSize)
	}

	p.pace = newRateLimiter(r.spec.Rate, burst)
	return p
}

// forwardChanges wakes the player when rows leave memory, until stop is called.
func (p *player) forwardChanges(ctx context.Context) (stop func()) {
	ctx, stop = context.WithCancel(ctx)
	for _, e := range p.targets {
		_, _, changed := e.Lanes.ReplayLoad(p.ID)
		go func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-changed:
					notify(p.wake)
				}
			}
		}()
	}
	return stop
}

// play returns when no copied row is left. After an error rows may be in memory and
// lanes on hold; see withdrawAll.
func (p *player) play(ctx context.Context) error {
	p.scan, p.progressAt = laneScan{deferred: map[store.LaneKey]time.Time{}}, time.Now()
	for {
		next, err := p.round(ctx, time.Now())
		if err != nil || next < 0 {
			return err
		}
		if next > 0 {
			if err := p.waitForChange(ctx, next); err != nil {
				return err
			}
		}
	}
}

// sleepAttending sleeps for d. Meanwhile it ends the turns of finished lanes.
func (p *player) sleepAttending(ctx context.Context, d time.Duration) error {
	for end := time.Now().Add(d); time.Now().Before(end); {
		if err := p.waitForChange(ctx, time.Until(end)); err != nil {
			return err
		}
		now := time.Now()
		p.refreshLoads(now)
		p.updateTurns(now)
	}
	return nil
}

// waitForChange waits until rows leave memory, at most for a time.
func (p *player) waitForChange(ctx context.Context, most time.Duration) error {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-p.wake:
	case <-timer.C:
	}
	return nil
}

// round does the work that is possible now. It returns the time until the next round,
// which is negative if the job is finished.
func (p *player) round(ctx context.Context, now time.Time) (next time.Duration, err error) {
	p.refreshLoads(now)
	p.updateTurns(now)
	listed, err := p.startTurns(ctx, now)
	if err != nil {
		return 0, err
	}

	sent, next, err := p.send(ctx, now)
	switch {
	case err != nil:
		return 0, err
	case sent:
		p.progressAt = now
		if err := p.saveJob(ctx, p.Job, store.JobPlaying, ""); err != nil {
			return 0, err
		}
		if p.isAwaited() {
			return 0, nil
		}
		return 0, p.sleepAttending(ctx, p.pauseAfter(now))
	case listed:
		return 0, nil
	case p.scan.exhausted && len(p.turns) == 0:
		return -1, nil
	case now.Sub(p.progressAt) < quiesceTimeout:
		return next, nil
	case p.pausedInMemory():
		return 0, p.withdrawAll(ctx)
	}

	return next, p.reportWaiting(ctx)
}

// refreshLoads reads the job's load in the memory of each sink.
func (p *player) refreshLoads(now time.Time) {
	rows := 0
	for _, e := range p.targets {
		e.total, e.byLane, _ = e.Lanes.ReplayLoad(p.ID)
		e.emptyLanes = 0
		rows += e.total.Rows
	}

	for key, t := range p.turns {
		if !t.allRead && t.target.byLane[key] == 0 {
			t.target.emptyLanes++
		}
	}

	if rows < p.rows {
		p.progressAt = now
	}

	p.rows = rows
}

// updateTurns ends the turns of finished lanes. It defers a lane that does not become
// quiescent, gets no rows, or is paused by an operator, because its live rows must
// not wait for rows of other lanes.
func (p *player) updateTurns(now time.Time) {
	for key, t := range p.turns {
		inMemory := t.target.byLane[key]
		if t.allRead && inMemory == 0 {
			p.endTurn(t)
			p.progressAt = now
			delete(p.paused, key)
			continue
		}
		p.updateHold(t, inMemory, now)
		if !t.held {
			continue
		}
		held := t.live.Lanes.HeldLane(key)
		t.quiescent, t.waiting = held.Quiescent, held.Waiting
		if held.Paused {
			p.paused[key] = true
		} else {
			delete(p.paused, key)
		}
		if inMemory == 0 && (held.Paused || now.Sub(t.since) >= quiesceTimeout) {
			p.endTurn(t)
			p.scan.deferred[key] = now.Add(deferDuration)
		}
	}
}

// updateHold holds or releases the live lane of a turn whose rows go to another sink.
// Such a lane is on hold only while the tables are read for its rows.
func (p *player) updateHold(t *laneTurn, inMemory int, now time.Time) {
	if t.live == t.target || t.allRead {
		return
	}
	switch wanted := inMemory < t.target.batch && p.rowRoom(t.target) > 0; {
	case wanted && !t.held:
		t.live.Lanes.HoldForReplay(p.ID, t.LaneKey)
		t.held, t.since = true, now
	case !wanted && t.held:
		t.live.Lanes.ReleaseReplayHold(p.ID, t.LaneKey)
		t.held, t.quiescent, t.waiting = false, false, false
	}
}

// endTurn ends the turn of a lane, so its live rows continue.
func (p *player) endTurn(t *laneTurn) {
	if t.held {
		t.live.Lanes.ReleaseReplayHold(p.ID, t.LaneKey)
	}
	t.target.turns--
	delete(p.turns, t.LaneKey)
}

// withdrawAll removes the job's rows from memory, after their requests have ended,
// and releases all lanes.
func (p *player) withdrawAll(ctx context.Context) error {
	for _, e := range p.targets {
		e.Lanes.WithdrawReplay(p.ID)
	}

	for {
		if p.refreshLoads(time.Now()); p.rows == 0 {
			break
		}
		if err := p.waitForChange(ctx, pollInterval); err != nil {
			return err
		}
	}

	for _, t := range p.turns {
		p.endTurn(t)
	}

	p.scan, p.progressAt = laneScan{deferred: map[store.LaneKey]time.Time{}}, time.Now()
	return nil
}

// pausedInMemory reports whether rows of paused groups are in memory, where they may
// take the room of other rows.
func (p *player) pausedInMemory() bool {
	for key := range p.paused {
		if t := p.turns[key]; t != nil && t.target.byLane[key] > 0 {
			return true
		}
	}
	return false
}

// reportWaiting saves the condition that the job waits for.
func (p *player) reportWaiting(ctx context.Context) error {
	switch n := len(p.turns) + len(p.scan.deferred); {
	case len(p.paused) > 0:
		return p.saveJob(ctx, p.Job, store.JobPlaying, fmt.Sprintf("%d paused groups", len(p.paused)))
	case n > 0:
		return p.saveJob(ctx, p.Job, store.JobPlaying, fmt.Sprintf("%d groups to become quiescent or to be accepted by their sink", n))
	}
	return nil
}

// laneScan is a pass over the lanes of a job, in the order of their first rows.
type laneScan struct {
	after     int64
	seen      int
	complete  bool // it reached the end
	exhausted bool // and found no lane
	deferred  map[store.LaneKey]time.Time
	waitsFor  *target // the target without room for the next lane
}

// laneBatch is the number of lanes that one statement lists.
const laneBatch = 200

// startTurns starts turns of further lanes and reports whether it did. Deferred lanes
// get their turn in a later pass.
func (p *player) startTurns(ctx context.Context, now time.Time) (listed bool, err error) {
	ps, had := &p.scan, len(p.scan.deferred)
	maps.DeleteFunc(ps.deferred, func(_ store.LaneKey, at time.Time) bool { return !now.Before(at) })
	if ps.complete && !ps.exhausted && (len(ps.deferred) < had || len(ps.deferred) == 0 && len(p.turns) == 0) {
		*ps = laneScan{deferred: ps.deferred}
	}

	for !ps.complete && (ps.waitsFor == nil || p.hasLaneRoom(ps.waitsFor) && ps.waitsFor.emptyLanes < p.rowRoom(ps.waitsFor)) {
		lanes, err := p.Store.ReplayLanes(ctx, p.ID, ps.after, laneBatch)
		if err != nil {
			return listed, err
		}
		started, all, err := p.admitLanes(lanes, now)
		if err != nil {
			return listed, err
		}
		listed = listed || started
		if !all {
			break
		}
		ps.complete = len(lanes) < laneBatch
	}

	ps.exhausted = ps.complete && ps.seen == 0
	return listed, nil
}

// admitLanes starts turns of lanes, up to the first lane whose sink has no room.
func (p *player) admitLanes(lanes []store.ReplayLane, now time.Time) (listed, all bool, err error) {
	ps := &p.scan
	ps.waitsFor = nil
	for _, l := range lanes {
		_, later := ps.deferred[l.LaneKey]
		if p.turns[l.LaneKey] == nil && !later {
			live, to, err := p.route(l.Outbox)
			if err != nil {
				return listed, false, err
			}
			if !p.admits(to) {
				ps.waitsFor = to
				return listed, false, nil
			}
			to.turns++
			to.emptyLanes++
			p.turns[l.LaneKey] = &laneTurn{ReplayLane: l, live: live, target: to, held: true, since: now}
			live.Lanes.HoldForReplay(p.ID, l.LaneKey)
			listed = true
		}
		ps.after = l.First
		ps.seen++
	}

	return listed, true, nil
}

// route returns the sink of an outbox, whose live rows have to wait, and the sink for
// its replayed rows.
func (p *player) route(outbox string) (live, to *target, err error) {
	if live = p.targets[p.Routes[outbox]]; live == nil {
		return nil, nil, failf("outbox %q of the remaining rows is no longer configured", outbox)
	}
	if to = live; p.spec.Sink != "" {
		to = p.targets[p.spec.Sink]
	}
	return live, to, nil
}
