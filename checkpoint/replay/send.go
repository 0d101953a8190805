package replay

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

// exit is a sink, with bounds of what a job may have in its memory at once.
type exit struct {
	Sink
	name  string
	batch int // rows of a request
	rows  int
	lanes int
	bytes int64
	turns int // lanes that have theirs
	// hungry are those with nothing in memory, when last looked. Their live rows stand,
	// so there are no more than there is room for rows.
	hungry int

	total  dispatch.Load
	byLane map[store.LaneKey]int
}

// mostInMemory is the most rows of a job that are in memory for one sink: those that a
// crash may send twice.
const mostInMemory = 1000

// newExit bounds what a job has in memory: as much as the fourth part of a sink's senders
// takes in two requests each, or a row for each sender if that is more.
func newExit(name string, s Sink) *exit {
	c := &s.Config
	share := max(1, c.MaxConcurrentGroups/4)
	rows := max(1, min(mostInMemory, c.BufferRows/4, max(c.MaxConcurrentGroups, 2*share*c.APIBatchSize)))
	return &exit{Sink: s, name: name, batch: c.APIBatchSize, rows: rows, lanes: rows, bytes: max(1, c.BufferBytes/8)}
}

func (e *exit) look(job string) { e.total, e.byLane, _ = e.Lanes.ReplayLoad(job) }

// open reports whether there is room for enough lanes to look for them.
func (p *player) open(e *exit) bool {
	lanes := p.pageOf(e.lanes)
	return lanes-e.turns >= max(1, lanes/4)
}

// send hands over rows of lanes that stand still, and reports whether there were any.
// next is after which time there may be more.
func (p *player) send(ctx context.Context, now time.Time) (sent bool, next time.Duration, err error) {
	next = lookEvery
	for _, e := range p.exits {
		ready, room := p.ready(e), p.roomOf(e)
		if len(ready) == 0 || room <= 0 {
			continue
		}
		rows, due := p.pace.room(now, p.pageOf(room))
		if rows == 0 {
			next = min(next, max(time.Millisecond, due.Sub(now)))
			continue
		}
		if err := p.sendPage(ctx, e, ready[:min(len(ready), rows)], rows, now); err != nil {
			return sent, next, err
		}
		sent = true
	}
	return sent, next, nil
}

// roomOf returns how many more rows may go to a sink now, as far as its memory and the
// job's rate go.
func (p *player) roomOf(e *exit) int {
	room := e.rows - e.total.Rows
	if e.total.Rows > 0 {
		room = min(room, int((e.bytes-e.total.Bytes)/p.mean))
	}
	if p.pace.burst > 0 {
		room = min(room, p.pace.burst)
	}
	return max(0, room)
}

// ready returns the lanes of a sink that want rows, those that came first before others.
func (p *player) ready(e *exit) (list []*turn) {
	for key, t := range p.turns {
		if t.to == e && t.held && t.still && !t.whole && e.byLane[key] < e.batch && !p.paused[key] {
			list = append(list, t)
		}
	}
	slices.SortFunc(list, func(a, b *turn) int { return cmp.Compare(a.First, b.First) })
	return list
}

// sendPage reads at most so many rows of lanes, asks the tables what became of them, and
// hands over those that are to be sent.
func (p *player) sendPage(ctx context.Context, e *exit, lanes []*turn, most int, now time.Time) error {
	each := max(1, min(most/len(lanes), 2*e.batch, int(e.bytes/p.mean)/len(lanes)))
	from := make([]store.ReplayFrom, len(lanes))
	for i, t := range lanes {
		from[i] = store.ReplayFrom{Outbox: t.Outbox, Lane: t.Hash, After: t.read}
	}
	lists, err := p.Store.ReplayRows(ctx, p.ID, from, each+1) // one more tells that there are more
	if err != nil {
		return err
	}
	more := make([]bool, len(lanes))
	for i, list := range lists {
		more[i] = len(list) > each
		lists[i] = list[:min(len(list), each)]
	}
	rows := slices.Concat(lists...)
	send, skip, err := p.split(ctx, rows)
	if err != nil {
		return err
	}
	if len(skip) > 0 {
		if err := p.Store.DoneRows(ctx, p.Epoch, p.ID, skip); err != nil {
			return err
		}
		p.Observer.Skipped(e.name, len(skip))
	}
	for i, t := range lanes {
		if n := len(lists[i]); n > 0 {
			t.read, t.since = lists[i][n-1].N, now
		}
		t.whole = !more[i]
	}
	e.Lanes.Replay(p.ID, send)
	p.pace.take(now, len(send))
	p.measure(send)
	for _, t := range lanes {
		if t.home != t.to { // its receiver gets no live rows of the group
			t.home.Lanes.LetGo(p.ID, t.LaneKey)
			t.held, t.still = false, false
		}
	}
	return nil
}

// measure keeps the mean size of a row.
func (p *player) measure(rows []store.ReplayRow) {
	if len(rows) == 0 {
		return
	}
	bytes := int64(0)
	for i := range rows {
		bytes += int64(len(rows[i].Payload))
	}
	p.mean = max(1, (p.mean+3*bytes/int64(len(rows)))/4)
}

// split asks the tables for the state of rows, and tells those that are to be sent, with
// their payload, from those that are not. A row that is still to come comes by itself;
// one that FAILED is for the dead letters.
func (p *player) split(ctx context.Context, rows []store.ReplayRow) (send []store.ReplayRow, skip []store.ReplayDone, err error) {
	if len(rows) == 0 {
		return nil, nil, nil
	}
	states, err := p.states(ctx, rows)
	if err != nil {
		return nil, nil, err
	}
	for i := range rows {
		row := &rows[i]
		if !p.isSent(states[i].State) {
			skip = append(skip, store.ReplayDone{N: row.N, Lane: row.Lane(), ID: row.ID, Result: store.ReplaySkipped})
			continue
		}
		if p.Source == string(SourceTable) {
			row.Payload = states[i].Payload
		}
		send = append(send, *row)
	}
	return send, skip, nil
}

// states asks the tables what became of rows.
func (r *run) states(ctx context.Context, rows []store.ReplayRow) ([]store.StateOf, error) {
	ask := make([]store.ClaimRow, len(rows))
	for i := range rows {
		ask[i] = store.ClaimRow{Ref: rows[i].Ref, Txn: rows[i].Txn, WantPayload: r.Source == string(SourceTable)}
	}
	return r.Store.States(ctx, ask)
}

// isSent reports whether rows of a state are sent.
func (r *run) isSent(state store.RowState) bool {
	return state == store.RowCompleted || state == store.RowAbsent && r.Source == string(SourceLog)
}
