package replay

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

// target is a sink, with bounds on the rows of a job in its memory.
type target struct {
	Sink
	name     string
	batch    int // rows per request
	maxRows  int
	maxLanes int
	maxBytes int64
	turns    int // lanes with a turn

	// emptyLanes is the number of lanes without rows in memory at the last refresh.
	// Their live rows wait, so there are no more such lanes than room for rows.
	emptyLanes int

	total  dispatch.JobLoad
	byLane map[store.LaneKey]int
}

// maxRowsInMemory is the maximum number of rows of a job in the memory of one sink. A
// crash may send them twice.
const maxRowsInMemory = 1000

// newTarget bounds the rows of a job in memory: two requests for each of a quarter of
// the sink's senders, or a row for each sender if that is more.
func newTarget(name string, s Sink) *target {
	c := &s.Config
	share := max(1, c.MaxConcurrentGroups/4)
	rows := max(1, min(maxRowsInMemory, c.BufferRows/4, max(c.MaxConcurrentGroups, 2*share*c.APIBatchSize)))
	return &target{Sink: s, name: name, batch: c.APIBatchSize, maxRows: rows, maxLanes: rows, maxBytes: max(1, c.BufferBytes/8)}
}

// hasLaneRoom reports whether there is room for enough lanes to list more.
func (p *player) hasLaneRoom(e *target) bool {
	lanes := p.pageSize(e.maxLanes)
	return lanes-e.turns >= max(1, lanes/4) && !p.hasBegun(e)
}

// admits reports whether another lane of a sink may have a turn.
func (p *player) admits(e *target) bool {
	return e.turns < p.pageSize(e.maxLanes) && e.emptyLanes < p.rowRoom(e) && !p.hasBegun(e)
}

// isSlow reports whether the job sends few rows at once, so that live rows behind it wait for long.
func (p *player) isSlow() bool { return p.pace != nil || p.isThrottled() }

// hasBegun reports whether the next page of a slow job belongs to a lane that has begun; see nextTurns.
// Another lane would be on hold for nothing.
func (p *player) hasBegun(e *target) bool {
	if !p.isSlow() {
		return false
	}
	for _, t := range p.turns {
		if t.lastRead > 0 && p.isReady(e, t) {
			return true
		}
	}
	return false
}

// page returns the most rows of the next page, for nextTurns. A lane whose own live rows wait gets more at
// once, although others flow.
func (p *player) page(turns []*laneTurn, room int) int {
	if turns[0].isAwaited() && p.isThrottled() {
		return min(room, awaitedPageRows)
	}
	return p.pageSize(room)
}

// isAwaited reports whether live rows wait for a lane that has begun and has rows left to read.
func (t *laneTurn) isAwaited() bool { return t.waiting && t.lastRead > 0 && !t.allRead }

// isAwaited reports whether live rows wait for a lane that has begun.
func (p *player) isAwaited() bool {
	for _, t := range p.turns {
		if t.isAwaited() {
			return true
		}
	}
	return false
}

// nextTurns returns the turns that share the next page. If the job is slow, a lane that has begun gets its
// pages alone until all its rows are read. Its live rows are on hold: with a row in each page of twenty
// lanes, a thousand rows would take a thousand pages.
func (p *player) nextTurns(ready []*laneTurn) []*laneTurn {
	begun := slices.IndexFunc(ready, func(t *laneTurn) bool { return t.lastRead > 0 })
	if begun < 0 || !p.isSlow() {
		return ready
	}
	return ready[begun : begun+1]
}

// send sends rows of quiescent lanes and reports whether there were any. next is the
// time until there may be more.
func (p *player) send(ctx context.Context, now time.Time) (sent bool, next time.Duration, err error) {
	next = pollInterval
	for _, e := range p.targets {
		ready, room := p.readyTurns(e), p.rowRoom(e)
		if len(ready) == 0 || room <= 0 {
			continue
		}
		turns := p.nextTurns(ready)
		rows, wait := allowedRows(p.pace, now, p.page(turns, room))
		if rows == 0 {
			next = min(next, wait)
			continue
		}
		if err := p.sendPage(ctx, e, turns[:min(len(turns), rows)], rows, now); err != nil {
			return sent, next, err
		}
		sent = true
	}
	return sent, next, nil
}

// rowRoom returns how many more rows a sink may get now, within the limits of its
// memory and the job's rate.
func (p *player) rowRoom(e *target) int {
	room := e.maxRows - e.total.Rows
	if e.total.Rows > 0 {
		room = min(room, int((e.maxBytes-e.total.Bytes)/p.meanRowBytes))
	}
	if p.pace != nil {
		room = min(room, p.pace.Burst())
	}
	return max(0, room)
}

// readyTurns returns the turns of a sink that can take rows, in the order of their
// first rows.
func (p *player) readyTurns(e *target) (list []*laneTurn) {
	for _, t := range p.turns {
		if p.isReady(e, t) {
			list = append(list, t)
		}
	}
	slices.SortFunc(list, func(a, b *laneTurn) int { return cmp.Compare(a.First, b.First) })
	return list
}

// isReady reports whether a turn is one of a sink and can take rows.
func (p *player) isReady(e *target, t *laneTurn) bool {
	return t.target == e && t.held && t.quiescent && !t.allRead && e.byLane[t.LaneKey] < e.batch && !p.paused[t.LaneKey]
}

// sendPage reads at most most rows of lanes, checks their status in the tables, and
// sends the delivered ones.
func (p *player) sendPage(ctx context.Context, e *target, lanes []*laneTurn, most int, now time.Time) error {
	each := max(1, min(most/len(lanes), 2*e.batch, int(e.maxBytes/p.meanRowBytes)/len(lanes)))
	from := make([]store.ReplayRange, len(lanes))
	for i, t := range lanes {
		from[i] = store.ReplayRange{Outbox: t.Outbox, Lane: t.Hash, After: t.lastRead}
	}

	lists, err := p.Store.ReplayRows(ctx, p.ID, from, each+1) // one more row shows whether there are more
	if err != nil {
		return err
	}

	more := make([]bool, len(lanes))
	for i, list := range lists {
		more[i] = len(list) > each
		lists[i] = list[:min(len(list), each)]
	}

	rows := slices.Concat(lists...)
	send, done, err := p.partition(ctx, rows)
	if err != nil {
		return err
	}
	if len(done) > 0 {
		if err := p.Store.FinishRows(ctx, p.Epoch, p.ID, done); err != nil {
			return err
		}
		p.Observer.Skipped(e.name, len(done))
	}

	for i, t := range lanes {
		if n := len(lists[i]); n > 0 {
			t.lastRead, t.since = lists[i][n-1].N, now
		}
		t.allRead = !more[i]
	}

	e.Lanes.Replay(p.ID, send)
	if p.pace != nil {
		p.pace.AllowN(now, len(send))
	}
	p.measure(send)
	for _, t := range lanes {
		if t.live != t.target { // the target gets no live rows of the group
			t.live.Lanes.ReleaseReplayHold(p.ID, t.LaneKey)
			t.held, t.quiescent, t.waiting = false, false, false
		}
	}

	return nil
}

// measure updates the mean size of a row.
func (p *player) measure(rows []store.ReplayRow) {
	if len(rows) == 0 {
		return
	}
	bytes := int64(0)
	for i := range rows {
		bytes += int64(rows[i].ContentBytes())
	}
	p.meanRowBytes = max(1, (p.meanRowBytes+3*bytes/int64(len(rows)))/4)
}

// partition reads the status of rows and returns the rows to send, with their
// payload, and the rows to finish without. It skips rows that their lanes still deliver, and
// FAILED rows, which are requeued as dead letters. It refuses a row whose payload is lost.
func (p *player) partition(ctx context.Context, rows []store.ReplayRow) (send []store.ReplayRow, done []store.FinishedRow, err error) {
	if len(rows) == 0 {
		return nil, nil, nil
	}

	states, err := p.rowStates(ctx, rows)
	if err != nil {
		return nil, nil, err
	}

	finish := func(row *store.ReplayRow, result store.ReplayResult, reason string) {
		done = append(done, store.FinishedRow{N: row.N, Lane: row.Lane(), ID: row.ID, Result: result, Error: reason})
	}
	for i := range rows {
		row, wants := &rows[i], p.wantsPayload(&rows[i])
		switch {
		case !p.isSent(states[i].State):
			finish(row, store.ReplaySkipped, "")
			continue
		case wants && states[i].State == store.RowAbsent:
			finish(row, store.ReplayRefused, fmt.Sprintf("payload of %d bytes is too large for the relay's tables, and the row was deleted from its table", row.PayloadSize))
			continue
		case wants:
			row.Payload, row.Attributes = states[i].Payload, states[i].Attributes
			if p.missesLeg(row) {
				finish(row, store.ReplaySkipped, "")
				continue
			}
		}
		send = append(send, *row)
	}
	return send, done, nil
}

// rowStates reads the status of rows from the tables.
func (r *jobRun) rowStates(ctx context.Context, rows []store.ReplayRow) ([]store.RowStatus, error) {
	refs := make([]store.ClaimRow, len(rows))
	for i := range rows {
		refs[i] = store.ClaimRow{Ref: rows[i].Ref, Txn: rows[i].Txn, WantPayload: r.wantsPayload(&rows[i])}
	}
	return r.Store.ReadStatuses(ctx, refs)
}

// wantsPayload reports whether the payload of a row is read from its table, because the job
// copied the table, or because the relay's tables could not hold the payload.
func (r *jobRun) wantsPayload(row *store.ReplayRow) bool {
	return r.Source == string(SourceTable) || row.Payload == nil && row.PayloadSize > 0
}

// isSent reports whether the job sends rows with a status.
func (r *jobRun) isSent(state store.RowState) bool {
	return state == store.RowCompleted || state == store.RowAbsent && r.Source == string(SourceLog)
}
