package replay

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

const (
	// stillFor is how long a lane may take to come to rest before others go first, and
	// setAside for how long they do. A lane comes to rest when its request ends and its
	// outcomes are written, which a table may refuse for ever.
	stillFor, setAside = 5 * time.Second, time.Second
	// lookEvery is how often a player looks for what nobody signals.
	lookEvery = time.Second
)

// player sends the rows that were copied for a job, lane by lane.
type player struct {
	*run
	exits map[string]*exit // by sink
	pace  rate
	turns map[store.LaneKey]*turn
	pass  pass
	wake  chan struct{}
	mean  int64 // bytes of payload of a row, as of late

	rows  int       // in memory, when last looked
	moved time.Time // when anything last went on
	// paused are groups that somebody has paused.
	paused map[store.LaneKey]bool
}

// turn is a lane whose rows are being sent.
type turn struct {
	store.ReplayLane
	home, to *exit
	// held: the live lane is kept from moving, since a moment; still: nothing of it is
	// under way.
	held, still bool
	since       time.Time
	read        int64 // the number of the last row that was read
	whole       bool  // none is left to read
}

func newPlayer(r *run) *player {
	p := &player{
		run: r, exits: map[string]*exit{}, turns: map[store.LaneKey]*turn{}, wake: make(chan struct{}, 1),
		mean: 1 << 20, paused: map[store.LaneKey]bool{},
	}
	burst := 1
	for name, sink := range r.Sinks {
		p.exits[name] = newExit(name, sink)
		burst = max(burst, sink.Config.APIBatchSize)
	}
	p.pace = newRate(r.spec.Rate, burst)
	return p
}

// listen wakes the player when something has left memory, until stop is called.
func (p *player) listen(ctx context.Context) (stop func()) {
	ctx, stop = context.WithCancel(ctx)
	for _, e := range p.exits {
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

// play returns when none of the copied rows is left. With an error some may be in
// memory, and lanes may stand: see clear.
func (p *player) play(ctx context.Context) error {
	p.pass, p.moved = pass{later: map[store.LaneKey]time.Time{}}, time.Now()
	for {
		next, err := p.round(ctx, time.Now())
		if err != nil || next < 0 {
			return err
		}
		if next > 0 {
			if err := p.await(ctx, next); err != nil {
				return err
			}
		}
	}
}

// letPass rests, but for ending the turns of lanes.
func (p *player) letPass(ctx context.Context, d time.Duration) error {
	for end := time.Now().Add(d); time.Now().Before(end); {
		if err := p.await(ctx, time.Until(end)); err != nil {
			return err
		}
		now := time.Now()
		p.look(now)
		p.attend(now)
	}
	return nil
}

// await returns when something has left memory, or after a time.
func (p *player) await(ctx context.Context, most time.Duration) error {
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

// round does what can be done now, and returns after which time there may be more:
// a negative one says that all is done.
func (p *player) round(ctx context.Context, now time.Time) (next time.Duration, err error) {
	p.look(now)
	p.attend(now)
	listed, err := p.list(ctx, now)
	if err != nil {
		return 0, err
	}
	sent, next, err := p.send(ctx, now)
	switch {
	case err != nil:
		return 0, err
	case sent:
		p.moved = now
		if err := p.say(ctx, store.JobPlaying, ""); err != nil {
			return 0, err
		}
		return 0, p.letPass(ctx, p.restOf(now))
	case listed:
		return 0, nil
	case p.pass.done && len(p.turns) == 0:
		return -1, nil
	case now.Sub(p.moved) < stillFor:
		return next, nil
	case p.jammed():
		return 0, p.clear(ctx)
	}
	return next, p.tell(ctx)
}

// look reads what every sink has in memory.
func (p *player) look(now time.Time) {
	rows := 0
	for _, e := range p.exits {
		e.look(p.ID)
		e.hungry = 0
		rows += e.total.Rows
	}
	for key, t := range p.turns {
		if !t.whole && t.to.byLane[key] == 0 {
			t.to.hungry++
		}
	}
	if rows < p.rows {
		p.moved = now
	}
	p.rows = rows
}

// attend ends the turns of lanes whose rows were all sent and written down, and puts
// aside those that do not come to rest, that get nothing or that somebody has paused:
// their live rows are not to wait for others' rows.
func (p *player) attend(now time.Time) {
	for key, t := range p.turns {
		inMemory := t.to.byLane[key]
		if t.whole && inMemory == 0 {
			p.end(t)
			p.moved = now
			delete(p.paused, key)
			continue
		}
		p.stand(t, inMemory, now)
		if !t.held {
			continue
		}
		var paused bool
		if t.still, paused = t.home.Lanes.Still(key); paused {
			p.paused[key] = true
		} else {
			delete(p.paused, key)
		}
		if inMemory == 0 && (paused || now.Sub(t.since) >= stillFor) {
			p.end(t)
			p.pass.later[key] = now.Add(setAside)
		}
	}
}

// stand keeps the live lane of a turn from moving, or lets it go, where its rows go to
// another sink: it stands while the tables are asked for its rows, and no longer.
func (p *player) stand(t *turn, inMemory int, now time.Time) {
	if t.home == t.to || t.whole {
		return
	}
	switch wanted := inMemory < t.to.batch && p.roomOf(t.to) > 0; {
	case wanted && !t.held:
		t.home.Lanes.HoldFor(p.ID, t.LaneKey)
		t.held, t.since = true, now
	case !wanted && t.held:
		t.home.Lanes.LetGo(p.ID, t.LaneKey)
		t.held, t.still = false, false
	}
}

// end ends a lane's turn: its live rows move on.
func (p *player) end(t *turn) {
	if t.held {
		t.home.Lanes.LetGo(p.ID, t.LaneKey)
	}
	t.to.turns--
	delete(p.turns, t.LaneKey)
}

// clear takes all that is in memory back, once requests under way have ended, and lets
// all lanes go.
func (p *player) clear(ctx context.Context) error {
	for _, e := range p.exits {
		e.Lanes.TakeBack(p.ID)
	}
	for {
		left := 0
		for _, e := range p.exits {
			e.look(p.ID)
			left += e.total.Rows
		}
		if left == 0 {
			break
		}
		if err := p.await(ctx, lookEvery); err != nil {
			return err
		}
	}
	for _, t := range p.turns {
		p.end(t)
	}
	p.pass, p.moved = pass{later: map[store.LaneKey]time.Time{}}, time.Now()
	return nil
}

// jammed reports whether rows of paused groups are in memory, where they may be in the
// way of others.
func (p *player) jammed() bool {
	for key := range p.paused {
		if t := p.turns[key]; t != nil && t.to.byLane[key] > 0 {
			return true
		}
	}
	return false
}

// tell says what the job waits for.
func (p *player) tell(ctx context.Context) error {
	switch n := len(p.turns) + len(p.pass.later); {
	case len(p.paused) > 0:
		return p.say(ctx, store.JobPlaying, fmt.Sprintf("%d paused groups", len(p.paused)))
	case n > 0:
		return p.say(ctx, store.JobPlaying, fmt.Sprintf("%d groups to come to rest or to be taken by their sink", n))
	}
	return nil
}

// pass is a way through the lanes of a job, in the order of their first rows.
type pass struct {
	after int64
	seen  int
	over  bool // it has come to the end
	done  bool // and found nothing
	later map[store.LaneKey]time.Time
	full  *exit // what the next lane waits for
}

// lanesAtOnce is how many lanes are listed in one statement.
const lanesAtOnce = 200

// list gives turns to further lanes, and reports whether there were any. Lanes that were
// put aside have their turn in another pass.
func (p *player) list(ctx context.Context, now time.Time) (listed bool, err error) {
	ps, had := &p.pass, len(p.pass.later)
	maps.DeleteFunc(ps.later, func(_ store.LaneKey, at time.Time) bool { return !now.Before(at) })
	if ps.over && !ps.done && (len(ps.later) < had || len(ps.later) == 0 && len(p.turns) == 0) {
		*ps = pass{later: ps.later}
	}
	for !ps.over && (ps.full == nil || p.open(ps.full) && ps.full.hungry < p.roomOf(ps.full)) {
		lanes, err := p.Store.ReplayLanes(ctx, p.ID, ps.after, lanesAtOnce)
		if err != nil {
			return listed, err
		}
		took, all, err := p.give(lanes, now)
		if err != nil {
			return listed, err
		}
		listed = listed || took
		if !all {
			break
		}
		ps.over = len(lanes) < lanesAtOnce
	}
	ps.done = ps.over && ps.seen == 0
	return listed, nil
}

// give gives turns to lanes, up to the first whose sink has no room for more.
func (p *player) give(lanes []store.ReplayLane, now time.Time) (listed, all bool, err error) {
	ps := &p.pass
	ps.full = nil
	for _, l := range lanes {
		_, later := ps.later[l.LaneKey]
		if p.turns[l.LaneKey] == nil && !later {
			home, to, err := p.way(l.Outbox)
			if err != nil {
				return listed, false, err
			}
			if to.turns >= p.pageOf(to.lanes) || to.hungry >= p.roomOf(to) {
				ps.full = to
				return listed, false, nil
			}
			to.turns++
			to.hungry++
			p.turns[l.LaneKey] = &turn{ReplayLane: l, home: home, to: to, held: true, since: now}
			home.Lanes.HoldFor(p.ID, l.LaneKey)
			listed = true
		}
		ps.after = l.First
		ps.seen++
	}
	return listed, true, nil
}

// way returns the sink of an outbox, whose live rows are to wait, and the one that its
// replayed rows go to.
func (p *player) way(outbox string) (home, to *exit, err error) {
	if home = p.exits[p.Routes[outbox]]; home == nil {
		return nil, nil, fail("outbox %q of rows that are left is not configured any more", outbox)
	}
	if to = home; p.spec.Sink != "" {
		to = p.exits[p.spec.Sink]
	}
	return home, to, nil
}
