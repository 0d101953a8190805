package dispatch

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/checkpoint"
	"github.com/sluicebox/sluicebox/store"
)

// Feed takes batches from a source, numbers their rows, enters them in the
// tracker and appends each row to the dispatcher of its outbox.
type Feed struct {
	tracker  *checkpoint.Tracker
	epoch    store.Epoch
	captured int64 // rows numbered under this epoch
	routes   map[string]*Dispatcher
	buffers  []*bufferState // of each sink
	onRows   func(outbox string, rows int)
	freed    chan struct{}      // a buffer may have room again
	statuses store.StatusReader // while the relay catches up
	// unsettledStreak counts the rows since the last look that found a settled one, and
	// spared how many of those that follow are taken without a look.
	unsettledStreak, uncheckedRows int

	// OnMarker, if set before Run, is told of each marker once the rows of its batch are
	// in their lanes, with the position of that batch and the last seq given out: all
	// that committed before the marker is in a lane, parked or settled by then.
	OnMarker func(token string, at store.Position, seq store.Seq)
	// SpillEnabled, if set before Run, lets rows be parked. A source that reads tables
	// leaves out instead what does not move.
	SpillEnabled bool
	// ClaimsDetectSettled, if set before Run, says that every claim finds out whether its row
	// is settled: while the relay catches up, rows need not all be looked up.
	ClaimsDetectSettled bool

	logPressure, paused atomic.Bool
}

// NewFeed returns the feed of a leader. routes gives the dispatcher of each
// outbox by name; observed is told how many rows of an outbox came. Call it
// before the dispatchers run.
func NewFeed(tracker *checkpoint.Tracker, epoch store.Epoch, routes map[string]*Dispatcher, observed func(outbox string, rows int)) *Feed {
	f := &Feed{tracker: tracker, epoch: epoch, routes: routes, onRows: observed, freed: make(chan struct{}, 1)}
	for _, d := range routes {
		d.freed = f.freed
		if !slices.ContainsFunc(f.buffers, func(t *bufferState) bool { return t.Dispatcher == d }) {
			f.buffers = append(f.buffers, &bufferState{Dispatcher: d})
		}
	}
	return f
}

// maxBufferFactor is how many times its buffer a sink may hold in rows while it is being
// relieved.
const maxBufferFactor = 2

// SetLogPressure says whether the log that is kept for the relay has reached its bound: then
// the source is not paused any more, and whatever is in the way is parked.
func (f *Feed) SetLogPressure(pressed bool) {
	f.logPressure.Store(pressed)
	notify(f.freed)
}

// Paused reports whether the source is paused for want of room.
func (f *Feed) Paused() bool { return f.paused.Load() }

// hasRoom reports whether more may be read: some buffer has room, and none is over by
// too much. A full buffer is relieved: of lanes that stand still, and beside a sink
// with room, or a log at its bound, of others too. So a sink that is slow or dead
// takes nothing from the others, and one that catches up parks nothing.
func (f *Feed) hasRoom() bool {
	some, over, now := false, false, time.Now()
	for _, t := range f.buffers {
		n := t.measure(now)
		some = some || n > 0
		over = over || n <= -(maxBufferFactor-1)*t.cfg.BufferRows && n+t.inFlightRows() <= -(maxBufferFactor-1)*t.cfg.BufferRows
	}
	pressed := f.SpillEnabled && f.logPressure.Load()
	for _, t := range f.buffers {
		if f.SpillEnabled && t.full {
			t.SpillExcess(pressed || some && t.slow)
		}
	}
	may := (some || pressed) && !over
	f.paused.Store(!may)
	return may
}

// bufferState is what the feed knows of a sink's buffer.
type bufferState struct {
	*Dispatcher
	full     bool
	slow     bool      // it will stay full for long
	since    time.Time // when rows were last counted, zero while there is room
	doneRows int64     // rows that had left by then
}

// A buffer is slow if less than a quarter of it has left after slowBufferAfter: it would
// take more than two seconds to empty.
const slowBufferAfter = 500 * time.Millisecond

// measure returns how many rows fit in.
func (t *bufferState) measure(now time.Time) (room int) {
	room, gone, suspect := t.bufferLevel()
	t.full = room <= 0
	switch {
	case room > t.cfg.BufferRows/4:
		t.since, t.slow = time.Time{}, false
	case !t.full:
	case suspect:
		t.slow = true
	case t.since.IsZero():
		t.since, t.doneRows = now, gone
	case now.Sub(t.since) >= slowBufferAfter:
		t.slow = gone-t.doneRows < int64(t.cfg.BufferRows/4)
		t.since, t.doneRows = now, gone
	}
	return room
}

// roomPollInterval is how often a paused source looks for rows to park.
const roomPollInterval = 100 * time.Millisecond

// Run takes batches until the context ends or the channel is closed. While there
// is no room it takes none, which pauses the source.
func (f *Feed) Run(ctx context.Context, in <-chan capture.Batch) error {
	for _, t := range f.buffers {
		t.enableSpill(f.SpillEnabled)
	}
	if f.statuses != nil {
		if err := f.catchUp(ctx, in); err != nil {
			return err
		}
	}
	for {
		if err := f.waitForRoom(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case b, open := <-in:
			if !open {
				return nil
			}
			if err := f.appendBatch(&b); err != nil {
				return err
			}
		}
	}
}

func (f *Feed) waitForRoom(ctx context.Context) error {
	for !f.hasRoom() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-f.freed:
		case <-time.After(roomPollInterval): // a lane may stand still by now
		}
	}
	return nil
}

// Backlog places rows that were in the tables before the log began. The
// checkpoint passes the position only when they have settled. Of these rows parked
// were numbered and parked already. Call it before Run.
func (f *Feed) Backlog(items []store.Item, parked int64, position store.Position) error {
	f.captured += parked
	t := f.tracker.Begin(position, f.number(items), len(items))
	return f.split(items, func(d *Dispatcher, part []store.Item) { d.Append(part, t) })
}

func (f *Feed) appendBatch(b *capture.Batch) error {
	seq := f.number(b.Items)
	t := f.tracker.Begin(b.Position, seq, len(b.Items))
	if err := f.split(b.Items, func(d *Dispatcher, part []store.Item) { d.Append(part, t) }); err != nil {
		return err
	}
	for _, token := range b.Marks {
		if f.OnMarker != nil {
			f.OnMarker(token, b.Position, seq)
		}
	}
	return nil
}

// Held implements checkpoint.Lanes.
func (f *Feed) Held(outbox string) []string { return f.routes[outbox].Held(outbox) }

// TrackSettled implements checkpoint.Lanes.
func (f *Feed) TrackSettled(on bool) {
	for _, d := range f.routes {
		d.TrackSettled(on)
	}
}

// InsertFound implements checkpoint.Lanes. Nobody waits for these rows: what is lost
// with the process is found again.
func (f *Feed) InsertFound(items []store.Item) (placed int) {
	for len(items) > 0 {
		n := sameOutbox(items)
		placed += f.routes[items[0].Outbox].InsertFound(items[:n])
		items = items[n:]
	}
	return placed
}

// number gives each row its seq and returns the last one given out.
func (f *Feed) number(items []store.Item) store.Seq {
	for i := range items {
		f.captured++
		items[i].Seq = store.NewSeq(f.epoch, f.captured)
	}
	return store.NewSeq(f.epoch, f.captured)
}

// split hands on runs of rows that go to one outbox, in order.
func (f *Feed) split(items []store.Item, hand func(*Dispatcher, []store.Item)) error {
	for len(items) > 0 {
		outbox, n := items[0].Outbox, sameOutbox(items)
		d, ok := f.routes[outbox]
		if !ok {
			return fmt.Errorf("row %s of outbox %s has no sink", items[0].ID, outbox)
		}
		f.onRows(outbox, n)
		hand(d, items[:n])
		items = items[n:]
	}
	return nil
}

// sameOutbox returns how many of the first rows go to one outbox.
func sameOutbox(items []store.Item) int {
	n := 1
	for n < len(items) && items[n].Outbox == items[0].Outbox {
		n++
	}
	return n
}
