package sluicebox

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/checkpoint"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

// intake takes batches from a source, numbers their rows, enters them in the tracker and
// appends each row to the dispatcher of its outbox.
type intake struct {
	tracker  *checkpoint.Tracker
	epoch    store.Epoch
	captured int64 // rows numbered under this epoch
	routes   map[string]*dispatch.Dispatcher
	buffers  []*bufferState // one per sink
	measured time.Time      // when the current interval of all buffers began
	onRows   func(outbox string, rows int)
	freed    chan struct{}      // signaled when a buffer may have room again
	statuses store.StatusReader // set while the relay catches up

	// unsettledStreak counts rows since the last status read that found a settled row.
	// uncheckedRows is how many of the next rows skip the status read.
	unsettledStreak, uncheckedRows int

	// onMarker, if set before run, is called for each marker once the rows of its batch are
	// in their lanes. It gets the position of that batch and the last assigned seq. By then
	// every row committed before the marker is in a lane, spilled or settled.
	onMarker func(token string, at store.Position, seq store.Seq)

	// spillEnabled, if set before run, allows spilling. It stays off for a source that
	// polls tables, because such a source leaves out rows that do not move.
	spillEnabled bool

	// claimsDetectSettled, if set before run, says that every claim detects a settled row.
	// Catch-up then need not look up every row.
	claimsDetectSettled bool

	// fresh, if set before run, tells which rows may be sent before they are claimed.
	fresh *freshness

	// logOnly, if set before run, are the outboxes whose rows only the log has.
	logOnly map[string]bool

	// fan, if set before any row comes, has the outboxes with routes.
	fan *fanOut

	logPressure, paused atomic.Bool

	// delivers: no full buffer was slow for long. behind: the log is not yet read up to its end at the start.
	delivers, behind atomic.Bool

	single [1]capture.Batch // reused
}

// newIntake returns the intake of a leader. routes maps each outbox to its dispatcher. The
// dispatchers signal freed when a buffer may have room again. observed is called with the
// number of rows read for an outbox.
func newIntake(tracker *checkpoint.Tracker, epoch store.Epoch, routes map[string]*dispatch.Dispatcher, freed chan struct{}, observed func(outbox string, rows int)) *intake {
	f := &intake{tracker: tracker, epoch: epoch, routes: routes, onRows: observed, freed: freed}
	for _, d := range routes {
		if !slices.ContainsFunc(f.buffers, func(t *bufferState) bool { return t.Dispatcher == d }) {
			f.buffers = append(f.buffers, &bufferState{Dispatcher: d})
		}
	}
	return f
}

// roomPollInterval is how often a paused intake looks for rows to spill.
const roomPollInterval = 100 * time.Millisecond

// run takes batches until the context ends or the channel is closed. While no buffer has
// room it takes none, which pauses the source.
func (f *intake) run(ctx context.Context, in <-chan capture.Batch) error {
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
			f.single[0] = b
			err := f.appendBundle(ctx, f.single[:])
			f.single[0] = capture.Batch{} // its rows may be large, and the next batch far away
			if err != nil {
				return err
			}
		}
	}
}

// lookUp reads what the relay's records say about rows that are appended next, if that matters.
func (f *intake) lookUp(ctx context.Context, batches ...[]store.Item) (err error) {
	if f.fan == nil {
		return nil
	}
	f.fan.facts = facts{}
	if f.fan.looksUp() || f.statuses != nil { // a leg of a row above all marks may have ended by its record
		f.fan.facts.records, err = f.fan.lookUp(ctx, batches...)
	}
	return err
}

func (f *intake) waitForRoom(ctx context.Context) error {
	for !f.hasRoom() {
		if f.fresh != nil {
			f.fresh.waits(time.Now())
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-f.freed:
		case <-time.After(roomPollInterval): // a lane may have stopped moving by now
		}
	}
	return nil
}

// placeBacklog places rows that were in the tables before the log began. The checkpoint passes
// the position only after these rows have settled. spilled is the number of further rows
// that were numbered and spilled already. Call placeBacklog before run.
func (f *intake) placeBacklog(ctx context.Context, items []store.Item, spilled int64, position store.Position) (err error) {
	f.captured += spilled
	if f.fan != nil {
		if f.fan.facts.records, err = f.fan.lookUp(ctx, items); err != nil {
			return err
		}
	}
	return f.place(ctx, items, &placement{position: position, seq: f.number(items), unmarked: true})
}

// place puts numbered rows into their lanes, and enters them in the trackers.
func (f *intake) place(ctx context.Context, items []store.Item, at *placement) (err error) {
	if f.fan != nil {
		if items, err = f.fan.place(ctx, items, at, f.onRows); err != nil {
			return err
		}
	}
	t := f.tracker.Begin(at.position, at.seq, len(items))
	return f.split(items, func(d *dispatch.Dispatcher, part []store.Item) { d.AppendFresh(part, t, at.fresh) })
}

// appendBatch appends a batch. end is the position behind its transaction, "" if it is not known.
func (f *intake) appendBatch(ctx context.Context, b *capture.Batch, end store.Position) error {
	at := &placement{position: b.Position, end: end, seq: f.number(b.Items), fresh: f.freshUntil(b)}
	if err := f.place(ctx, b.Items, at); err != nil {
		return err
	}
	for _, token := range b.Marks {
		if f.fresh != nil {
			f.fresh.onMarker(token, b.Marked)
		}
		if f.onMarker != nil {
			f.onMarker(token, b.Position, at.seq)
		}
	}
	return nil
}

// freshUntil returns until when the rows of a batch may be sent before they are claimed; zero if
// never. While the relay catches up, they may be settled already.
func (f *intake) freshUntil(b *capture.Batch) time.Time {
	if f.fresh == nil || f.statuses != nil {
		return time.Time{}
	}
	return f.fresh.freshUntil(b, time.Now())
}

// connected records that the source has connected.
func (f *intake) connected() {
	if f.fresh != nil {
		f.fresh.connected()
	}
}

// Held implements sweptLanes.
func (f *intake) Held(outbox string) []string {
	if b := f.fan.box(outbox); b != nil {
		return b.held()
	}
	return f.routes[outbox].Held(outbox)
}

// LegRows implements sweptLanes.
func (f *intake) LegRows(ctx context.Context, items []store.Item) (map[store.Ref]*store.LegRow, error) {
	if f.fan == nil {
		return nil, nil
	}
	return f.fan.lookUp(ctx, items)
}

// TrackSettled implements sweptLanes.
func (f *intake) TrackSettled(on bool) {
	for _, d := range f.routes {
		d.TrackSettled(on)
	}
}

// InsertFound implements sweptLanes. The rows have no ticket: if the process dies,
// the next sweep finds them again.
func (f *intake) InsertFound(ctx context.Context, items []store.Item, records map[store.Ref]*store.LegRow) (placed int) {
	for len(items) > 0 {
		n := sameOutbox(items)
		if b := f.fan.box(items[0].Outbox); b != nil {
			placed += f.fan.insertFound(ctx, b, items[:n], records)
		} else {
			placed += f.routes[items[0].Outbox].InsertFound(items[:n])
		}
		items = items[n:]
	}
	return placed
}

// number assigns each row its seq and returns the last one.
func (f *intake) number(items []store.Item) store.Seq {
	for i := range items {
		f.captured++
		items[i].Seq = store.NewSeq(f.epoch, f.captured)
	}
	return store.NewSeq(f.epoch, f.captured)
}

// split passes on consecutive rows of the same outbox, in order.
func (f *intake) split(items []store.Item, hand func(*dispatch.Dispatcher, []store.Item)) error {
	for len(items) > 0 {
		outbox, n := items[0].Outbox, sameOutbox(items)
		d, ok := f.routes[outbox]
		if !ok {
			return fmt.Errorf("route row %s of outbox %s: no sink", items[0].ID, outbox)
		}
		f.onRows(outbox, n)
		hand(d, items[:n])
		items = items[n:]
	}
	return nil
}

// sameOutbox returns how many leading rows belong to the same outbox.
func sameOutbox(items []store.Item) int {
	n := 1
	for n < len(items) && items[n].Outbox == items[0].Outbox {
		n++
	}
	return n
}

// Limits of one status read.
const (
	statusBatchRows  = 2000
	statusBatchBytes = 8 << 20

	// maxUncheckedRows limits the rows that skip the status read.
	maxUncheckedRows = 50_000
)

// beginCatchUp makes run drop rows from the log that are already settled, until endCatchUp.
// Call it before run.
//
// After a start, most rows behind the checkpoint may be settled. Claims would detect them
// too, but rows behind a lane that does not move are not claimed.
func (f *intake) beginCatchUp(statuses store.StatusReader) {
	f.statuses = statuses
	f.behind.Store(true)
}

// endCatchUp ends the catch-up: the log has been read up to its end at the start of the
// relay. Call it only from onMarker.
func (f *intake) endCatchUp() {
	f.statuses = nil
	f.behind.Store(false)
}

// catchUp takes batches like run, without settled rows.
func (f *intake) catchUp(ctx context.Context, in <-chan capture.Batch) error {
	bundles, stop, left := make(chan []capture.Batch), make(chan struct{}), make(chan []capture.Batch, 1)
	go func() { left <- coalesce(in, bundles, stop) }()
	var err error
	for err == nil && f.statuses != nil {
		if err = f.waitForRoom(ctx); err != nil {
			break
		}
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case b, open := <-bundles:
			if !open { // the source has ended
				return f.appendBundle(ctx, <-left)
			}
			err = f.appendBundle(ctx, b)
		}
	}

	close(stop)
	if rest := <-left; err == nil {
		err = f.appendBundle(ctx, rest)
	}
	return err
}

// appendBundle appends batches, without the rows that are settled while the relay catches up.
func (f *intake) appendBundle(ctx context.Context, batches []capture.Batch) error {
	if f.fan != nil {
		batches = f.fan.whole(batches)
		items := make([][]store.Item, len(batches))
		for i := range batches {
			items[i] = batches[i].Items
		}
		if err := f.lookUp(ctx, items...); err != nil {
			return err
		}
	}
	if f.statuses != nil {
		batches = f.dropSettled(ctx, batches)
	}
	for i := range batches {
		if err := f.appendBatch(ctx, &batches[i], endOf(batches[i:])); err != nil {
			return err
		}
	}
	return nil
}

// endOf returns the position behind the transaction of the first batch, "" if it is not among them.
func endOf(batches []capture.Batch) store.Position {
	for i := range batches {
		if batches[i].Position != "" {
			return batches[i].Position
		}
	}
	return ""
}

// coalesce merges batches while the receiver of out is busy, up to the limits of a status
// read. It returns the batches it holds when stop or in is closed. If in is closed, it
// closes out.
func coalesce(in <-chan capture.Batch, out chan<- []capture.Batch, stop <-chan struct{}) []capture.Batch {
	var held []capture.Batch
	rows, bytes := 0, 0
	for {
		from, to := in, out
		if rows >= statusBatchRows || bytes >= statusBatchBytes || len(held) >= statusBatchRows { // some batches have no rows
			from = nil
		}
		if len(held) == 0 {
			to = nil
		}
		select {
		case b, open := <-from:
			if !open {
				close(out)
				return held
			}
			held = append(held, b)
			rows += len(b.Items)
			for i := range b.Items {
				bytes += b.Items[i].Bytes()
			}
		case to <- held:
			held, rows, bytes = nil, 0, 0
		case <-stop:
			return held
		}
	}
}

// dropSettled removes settled rows from batches. It skips some status reads, because
// settled rows stand mostly at the start of the repeated log. The rest lie further back in
// the lanes of a receiver that accepted nothing. So the longer the streak of unsettled
// rows, the more rows skip the status read.
func (f *intake) dropSettled(ctx context.Context, batches []capture.Batch) []capture.Batch {
	n := 0
	for i := range batches {
		n += len(batches[i].Items)
	}
	if n <= f.uncheckedRows {
		f.uncheckedRows -= n
		return batches
	}
	kept, settled := f.filterSettled(ctx, batches)
	f.unsettledStreak += n
	if settled {
		f.unsettledStreak = 0
	}
	if f.uncheckedRows = 0; f.claimsDetectSettled {
		f.uncheckedRows = min(f.unsettledStreak, maxUncheckedRows)
		f.unsettledStreak += f.uncheckedRows
	}
	return kept
}

// filterSettled removes settled rows from batches and reports whether there were any. Rows of
// outboxes with routes stay, because a leg may still have to send them; see fanOut.noteSettled. If
// the store does not answer, the claims must detect them. It drops the payloads then,
// because even a claim that writes nothing checks a row whose payload it reads.
func (f *intake) filterSettled(ctx context.Context, batches []capture.Batch) (kept []capture.Batch, some bool) {
	var rows []store.ClaimRow
	for i := range batches {
		for k := range batches[i].Items {
			it := &batches[i].Items[k]
			rows = append(rows, store.ClaimRow{Ref: it.Ref, Txn: it.Txn})
		}
	}

	if len(rows) == 0 {
		return batches, false
	}
	settled, err := f.statuses.ReadSettled(ctx, rows)
	if err != nil {
		for i := range batches {
			for k := range batches[i].Items {
				if it := &batches[i].Items[k]; !f.logOnly[it.Outbox] && f.fan.box(it.Outbox) == nil {
					it.Payload = nil
				}
			}
		}
		return batches, true
	}

	at := 0
	for i := range batches {
		kept := batches[i].Items[:0]
		for k := range batches[i].Items {
			some = some || settled[at]
			if !settled[at] || f.fan.noteSettled(&batches[i].Items[k]) {
				kept = append(kept, batches[i].Items[k])
			}
			at++
		}
		clear(batches[i].Items[len(kept):])
		batches[i].Items = kept
	}

	return batches, some
}
