package sluicebox

import (
	"context"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/backoff"
)

// This file decides when a relay pauses its source, spills rows or saves a checkpoint early:
//   - intake.hasRoom: the source is paused while no buffer has room. A full buffer spills.
//   - pressure.enforceLimit: rows that keep the database from discarding its log are spilled, in time
//     before the log reaches its limit.

// Intervals between checks of the retained log. The relay checks every retainedInterval,
// and every fastRetainedInterval once an eighth of the limit is retained. It checks
// sooner, down to minRetainedInterval, if another eighth would be written before the next
// check.
const (
	retainedInterval     = 2 * time.Second
	fastRetainedInterval = 200 * time.Millisecond
	minRetainedInterval  = 20 * time.Millisecond
)

// spillLead is how long rows may take until they hold no log: moving lanes are spilled after
// retainedInterval, and two full buffers in about a second (*measured*: 20 000 rows in 1.2 s). So the relay
// starts to spill that long before the log reaches its limit at its present rate.
const spillLead = retainedInterval + time.Second

// marginShare is the share of the limit that is kept for what the estimate misses (*measured*: at 28 000
// rows/s the log passed its limit by 4 %).
const marginShare = 8

// pinnedAfter is how long the checkpoint may take to pass the position that the relay had read. After that, rows in memory
// count as the cause of a long log. A row that takes seconds would otherwise hold it for as long as others pass.
const pinnedAfter = 10 * time.Second

// maxBufferFactor limits the rows a sink may hold while it spills, as a multiple of its
// buffer.
const maxBufferFactor = 2

// compareInterval is the shortest interval in which buffers are compared. Rows end in batches, so a
// shorter one, or one in which none has done half a buffer, would compare chance.
const compareInterval = 2 * time.Second

// setLogPressure reports whether the retained log has reached its limit. Under pressure the
// intake no longer pauses the source and spills every row that holds the log.
func (f *intake) setLogPressure(pressed bool) {
	f.logPressure.Store(pressed)
	select {
	case f.freed <- struct{}{}:
	default:
	}
}

// isPaused reports whether the source is paused because no buffer has room.
func (f *intake) isPaused() bool { return f.paused.Load() }

// setAside excludes buffers from the decision to read more. The one of rows that no route matches is
// almost always empty, so otherwise the relay would read on, and spill, while all destinations catch
// up.
func (f *intake) setAside(lanes []*dispatch.Dispatcher) {
	for _, t := range f.buffers {
		t.aside = slices.Contains(lanes, t.Dispatcher)
	}
}

// hasRoom reports whether the intake may read more: some buffer has room, and none exceeds
// maxBufferFactor.
//
// A full buffer spills lanes that do not move. If the buffer of another sink has room, or the log is at
// its limit, it spills moving lanes too. So a slow or dead sink takes no room from the others. Routes of an
// outbox that catch up, about as fast as each other, spill nothing; see starves.
func (f *intake) hasRoom() bool {
	some, over, now := false, false, time.Now()
	for _, t := range f.buffers {
		n := t.measure(now)
		t.roomy = !t.aside && n > 0
		some = some || t.roomy
		least := -(maxBufferFactor - 1) * t.rows
		over = over || n <= least && n+t.InFlightRows() <= least
	}

	f.comparePaces(now)
	f.delivers.Store(!slices.ContainsFunc(f.buffers, func(t *bufferState) bool { return t.slowly >= slowlyAfter }))
	pressed := f.spillEnabled && f.logPressure.Load()
	for _, t := range f.buffers {
		if f.spillEnabled && t.full {
			t.SpillExcess(pressed || t.slow && f.starves(t))
		}
	}

	may := (some || pressed) && !over
	f.paused.Store(!may)
	return may
}

// comparePaces ends the interval in which buffers are compared, if it is long enough.
func (f *intake) comparePaces(now time.Time) {
	enough := func(t *bufferState) bool { return t.done-t.before >= int64(t.rows/2) }
	if now.Sub(f.measured) < compareInterval || !slices.ContainsFunc(f.buffers, enough) {
		return
	}
	f.measured = now
	for _, t := range f.buffers {
		t.lately, t.before = t.done-t.before, t.done
	}
}

// starves reports whether a slow buffer that is full keeps rows from another one that has room. How much
// room does not matter: rows that stand still, of a paused group, may fill the rest.
//
// While the relay catches up, routes of one outbox wait for each other as long as they are about as
// fast, because to spill rows slows all of them down. Which of them waits for rows is chance then.
func (f *intake) starves(t *bufferState) bool {
	return slices.ContainsFunc(f.buffers, func(other *bufferState) bool {
		return other.roomy && (t.isBehind(other) || f.statuses == nil || !f.fan.together(t.Dispatcher, other.Dispatcher))
	})
}

// isBehind reports whether a buffer crawls, or lately did less than half as many rows as another. A buffer that
// gets fewer rows does fewer although it is as fast, so the limit falls with its share, down to a quarter:
// to spill the few rows of a small share costs little. A route that gets few of the rows shows no pace. It
// does not wait for a route that hardly drains and never did better.
func (t *bufferState) isBehind(other *bufferState) bool {
	most := min(max(t.came, other.came), 2*t.came)
	return t.crawled >= crawlsAfter || 2*t.lately*most < other.lately*t.came || t.hardly >= crawlsAfter && 2*other.came < t.came
}

// bufferState is the intake's view of a sink's buffer.
type bufferState struct {
	*dispatch.Dispatcher
	aside    bool // its room is no reason to read more
	rows     int  // its size
	full     bool
	roomy    bool      // it has room, which counts
	slow     bool      // it will stay full for long
	slowly   int       // intervals in turn in which it did fewer than spillPace rows
	hardly   int       // intervals in turn in which it hardly drained
	crawled  int       // intervals in turn in which it hardly drained, and drained four times as fast before
	best     int64     // rows done per interval, when it drained best lately
	since    time.Time // start of the current measurement; zero while there is room
	doneRows int64     // rows done at that time

	came                 int64 // rows from the source
	done, before, lately int64 // rows done, until the current interval of all buffers, and in the one before
}

// slowBufferAfter is the measuring interval of a full buffer. A buffer is slow if it drains
// less than a quarter per interval, because it would then take more than two seconds to
// empty.
const slowBufferAfter = 500 * time.Millisecond

// slowlyAfter is how many intervals in turn a full buffer does fewer than spillPace rows until spilling frees the log
// sooner than delivering does. Spilling does at least twice as many (*measured*).
const slowlyAfter, spillPace = 4, 2500

// crawlsAfter is how many intervals in turn a buffer hardly drains until it crawls: so slowly that it
// would take more than eight seconds to empty, and four times as slowly as before. On a busy machine
// every buffer is slow, and stands still for a second, and spilled rows would make it slower.
const crawlsAfter = 8

// measure updates the state and returns how many rows fit in.
func (t *bufferState) measure(now time.Time) (room int) {
	level := t.BufferLevel()
	room, done := level.Room, level.Done
	t.rows, t.full, t.done, t.came = level.Size, room <= 0, done, level.Came
	switch {
	case room > t.rows/4:
		t.since, t.slow, t.slowly, t.hardly, t.crawled = time.Time{}, false, 0, 0, 0
	case !t.full:
	case level.BreakersOpen:
		t.slow, t.slowly, t.crawled = true, slowlyAfter, crawlsAfter
	case t.since.IsZero():
		t.since, t.doneRows = now, done
	case now.Sub(t.since) >= slowBufferAfter:
		t.compare(done-t.doneRows, now.Sub(t.since))
		t.since, t.doneRows = now, done
	}

	return room
}

// compare judges how many rows were done in a time.
func (t *bufferState) compare(done int64, took time.Duration) {
	pace := int64(float64(done) * slowBufferAfter.Seconds() / took.Seconds())
	t.best = max(pace, t.best-t.best/8)
	t.slow = done < int64(t.rows/4)
	if t.slowly++; pace >= spillPace {
		t.slowly = 0
	}
	if t.hardly++; 16*done >= int64(t.rows) {
		t.hardly = 0
	}
	if t.crawled++; t.hardly == 0 || 4*pace >= t.best {
		t.crawled = 0
	}
}

// pressure limits the log that the database retains for the relay. Near the limit it
// spills rows, so that the checkpoint can advance past them.
type pressure struct {
	*Relay
	source       capture.Retention
	intake       *intake
	dispatchers  map[string]*dispatch.Dispatcher
	saveRequests chan<- struct{} // requests a checkpoint save

	pressedSince time.Time // see notePressure; zero without pressure
	growth       growth

	// Of catchesUp.
	compare  func(a, b store.Position) int
	mark     store.Position // the position read when the checkpoint had passed the mark before
	markedAt time.Time
	unread   int64 // the log when its end at the start was read; 0 before
	caughtUp bool  // the ordinary limit applies from now on
}

// run checks the retained log until the context ends and returns the context's error.
func (p *pressure) run(ctx context.Context) error {
	for wait := retainedInterval; ; {
		if err := backoff.Sleep(ctx, wait); err != nil {
			return err
		}
		p.observer.Paused(p.intake.isPaused())
		p.progress.current(time.Now())
		retained, err := p.source.Retained(ctx)
		if err != nil { // the source reports errors of the log itself
			continue
		}
		p.reportRetained(retained)
		eighth := p.limit(retained) / 8
		interval := p.growth.timeToGrow(eighth, retained.Bytes, time.Now())
		p.enforceLimit(retained, time.Now())
		if wait = retainedInterval; retained.Bytes >= eighth || !p.pressedSince.IsZero() {
			wait = interval
		}
	}
}

// growth estimates how fast the retained log grows.
type growth struct {
	bytes int64 // at the last check
	at    time.Time
	rate  float64 // bytes per second
	usual float64 // the same, about that of the last second
}

// timeToGrow records the retained bytes and estimates how long the log needs to grow by
// the given bytes. The result is between minRetainedInterval and fastRetainedInterval.
//
// A checkpoint saved between two checks hides growth. So an earlier rate stays in effect
// and halves with each check that measures less.
func (g *growth) timeToGrow(bytes, retained int64, now time.Time) time.Duration {
	took := now.Sub(g.at).Seconds()
	if g.at.IsZero() || took <= 0 {
		g.bytes, g.at = retained, now
		return fastRetainedInterval
	}
	if grown := float64(retained - g.bytes); grown >= 0 {
		g.usual += (grown/took - g.usual) * min(1, took)
	}
	g.rate = max(float64(retained-g.bytes)/took, g.rate/2)
	g.bytes, g.at = retained, now
	if g.rate*fastRetainedInterval.Seconds() <= float64(bytes) {
		return fastRetainedInterval
	}
	return max(minRetainedInterval, time.Duration(float64(bytes)/g.rate*float64(time.Second)))
}

// lead returns the log that is written within spillLead, at most half of a limit.
func (g *growth) lead(limit int64) int64 {
	return int64(min(g.usual*spillLead.Seconds(), float64(limit)/2))
}

// enforceLimit spills rows in two cases: the log would reach its limit within spillLead, or no checkpoint
// could be saved yet because rows of the snapshot are still undelivered. The second case
// matters because a relay that takes over without a checkpoint needs another snapshot,
// which loses the commit order of rows written since.
//
// Lanes that do not move are spilled first. If the pressure lasts for retainedInterval,
// all lanes are, but not while the relay catches up: to spill a backlog takes longer, and writes more log.
func (p *pressure) enforceLimit(retained capture.RetainedLog, now time.Time) {
	limit := p.limit(retained)
	session := p.progress.current(now)
	saved := session.saved.Position
	unsaved := saved == ""
	near := retained.Bytes+p.growth.lead(limit)+limit/marginShare >= limit || unsaved
	if retained.Bytes >= limit/2 || unsaved {
		select {
		case p.saveRequests <- struct{}{}:
		default:
		}
	}

	read, _ := session.lastRead()
	catchesUp := p.catchesUp(retained, saved, read, now) && !unsaved
	p.intake.setLogPressure(retained.Bytes >= limit && !catchesUp || unsaved)
	p.notePressure(near && !catchesUp, unsaved, retained.Bytes, limit, now)
	if !near {
		return
	}
	all := !p.pressedSince.IsZero() && now.Sub(p.pressedSince) >= retainedInterval
	for name, d := range p.dispatchers {
		if unsaved || retained.Bytes >= limit || p.holdsLog(name, limit) {
			d.Spill(all)
		}
	}
}

// notePressure records since when the log is near its limit, except while the relay catches up.
func (p *pressure) notePressure(pressed, unsaved bool, bytes, limit int64, now time.Time) {
	switch was := !p.pressedSince.IsZero(); {
	case pressed && !was:
		p.pressedSince = now
		if unsaved {
			p.log.Info("spilling initial backlog", "reason", "no checkpoint saved yet")
			break
		}
		p.log.Warn("retained log near limit; spilling rows", "bytes", bytes, "limit", limit)
	case !pressed && was:
		p.log.Info("no longer spilling for the retained log", "bytes", bytes, "limit", limit)
		p.pressedSince = time.Time{}
	}
}

// catchesUp reports whether the log is long because the relay has not read it yet, as after an outage, and reads it as
// fast as if it spilled its rows. To spill them would free little then.
func (p *pressure) catchesUp(retained capture.RetainedLog, saved, read store.Position, now time.Time) bool {
	if saved == "" || p.mark == "" || p.compare(saved, p.mark) >= 0 {
		p.mark, p.markedAt = read, now
	}
	behind := p.intake.behind.Load()
	if !behind && p.unread == 0 {
		p.unread = retained.Bytes // of the outcomes that were written meanwhile
	}
	switch {
	case !p.intake.delivers.Load(), now.Sub(p.markedAt) > pinnedAfter:
		p.caughtUp = true // do not flap
	case retained.Limit > 0 && retained.Bytes >= retained.Limit/2:
		p.caughtUp = true
	case !behind && (retained.Bytes > p.unread+p.limit(retained)/marginShare || retained.Bytes < p.limit(retained)):
		p.caughtUp = true
	}
	return !p.caughtUp
}

// holdsLog reports whether rows of a sink may keep a quarter of the limit or more. To spill the rows of
// any other sink would slow it down and free little.
func (p *pressure) holdsLog(sink string, limit int64) bool {
	session := p.progress.current(time.Now())
	for leg, to := range p.opt().routes() {
		if to != sink {
			continue
		}
		if bytes := session.logBytes(leg); bytes == nil || *bytes >= limit/4 {
			return true
		}
	}
	return false
}

// reportRetained publishes the retained bytes and their limit.
func (p *pressure) reportRetained(retained capture.RetainedLog) {
	limit := p.limit(retained)
	p.observer.Retained(retained.Bytes, limit)
	p.progress.update(func() { p.progress.retained, p.progress.retainedLimit = retained, limit })
}

// limit returns the most log the relay may retain: checkpoint.max-hold, but at most half
// of the amount at which the server discards the log.
func (p *pressure) limit(retained capture.RetainedLog) int64 {
	limit := p.opt().MaxHold
	if retained.Limit > 0 {
		limit = min(limit, max(1, retained.Limit/2))
	}
	return limit
}
