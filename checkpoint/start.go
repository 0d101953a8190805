package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// Opener finds the place in the log from which a relay goes on; see
// capture.Source.
type Opener interface {
	Open(ctx context.Context, at store.Checkpoint, tables capture.Tables) (capture.OpenResult, error)
}

// StartStore is what a start asks of a store.
type StartStore interface {
	store.Checkpoints
	store.Leadership
	store.SpillStore
	store.Viewer
}

// StartPoint is where a relay begins.
type StartPoint struct {
	// Epoch is that of the leadership that the start took.
	Epoch store.Epoch
	// Watermark is where the watermark stands. Its Position is "" after a cut:
	// nothing may be saved before the backlog has settled.
	Watermark store.Checkpoint
	// From is where to run the source from.
	From store.Position
	// Backlog are rows that are in the tables and not in the log, in the order
	// in which they are to be delivered, before anything that the log brings.
	Backlog []store.Item
	// Spilled is how many rows of a backlog too large for memory were parked, under
	// the first seqs of the epoch.
	Spilled int64
	// SnapshotReason is set when the log begins anew, and says why.
	SnapshotReason string
}

// Start opens the source at the saved checkpoint and takes leadership. Where the
// log begins anew (the first start, a lost log) it makes a cut: the unsettled
// rows of the tables as they were at that place are the backlog, without those
// that are parked. A backlog of more than the bound is parked itself, and of one
// within it a payload above its share of the bytes is left in its table, where the
// claim reads it. Where parking fails, what was made for the cut is given up, so that no log is held for a relay
// that does not run.
//
// A cut forgets the old checkpoint first, and none is saved until the backlog has
// settled or is parked: a relay that ends before starts with a cut again, and finds
// what it had parked. Behind an intact log, what was parked after the checkpoint is
// forgotten: the log brings it again.
//
// Leadership is taken as late as it may be, after the source has found that no
// other relay holds the log.
//
// lost, if not nil, says how the log was found lost while it was read: the
// checkpoint no longer counts, whatever the source finds in its place.
func Start(ctx context.Context, src Opener, tables StartStore, outboxes []store.Outbox, most store.ReadLimit, lost *capture.LostError) (StartPoint, error) {
	at, err := tables.LoadCheckpoint(ctx)
	if err != nil && !errors.Is(err, store.ErrNoCheckpoint) {
		return StartPoint{}, fmt.Errorf("load the checkpoint: %w", err)
	}
	if lost != nil {
		at = store.Checkpoint{Seq: at.Seq}
	}
	leader := &lazyLeader{StartStore: tables, seq: at.Seq}
	opening, err := src.Open(ctx, at, leader)
	if err != nil {
		return StartPoint{}, err
	}
	if opening.View != nil {
		defer opening.View.Close()
	}
	if err := leader.acquire(ctx); err != nil {
		return StartPoint{}, err
	}
	begin := StartPoint{
		Epoch:          leader.epoch,
		Watermark:      store.Checkpoint{Origin: opening.Origin, Position: opening.From, Seq: at.Seq},
		From:           opening.From,
		SnapshotReason: opening.SnapshotReason,
	}
	if opening.View == nil {
		if at.Position != "" && opening.From == at.Position {
			_, err = tables.DeleteSpilledAfter(ctx, begin.Epoch, at.Seq)
		}
		return begin, err
	}
	if lost != nil {
		begin.SnapshotReason = lost.Reason
	}
	begin.Watermark.Position = ""
	b := backlog{view: opening.View, tables: tables, epoch: begin.Epoch, outboxes: outboxes, bound: most}
	err = b.read(ctx)
	if err != nil && opening.Discard != nil {
		err = errors.Join(err, opening.Discard(context.WithoutCancel(ctx)))
	}
	begin.Backlog, begin.Spilled = b.items, b.spilled
	return begin, err
}

// lazyLeader takes leadership when it is first needed.
type lazyLeader struct {
	StartStore
	epoch store.Epoch // 0 until then
	seq   store.Seq
}

func (l *lazyLeader) acquire(ctx context.Context) (err error) {
	if l.epoch != 0 {
		return nil
	}
	if l.epoch, err = l.AcquireLeadership(ctx); err != nil {
		return fmt.Errorf("take leadership: %w", err)
	}
	return nil
}

// ClearCheckpoint implements capture.Tables. The seq stays: parked rows are known by it.
func (l *lazyLeader) ClearCheckpoint(ctx context.Context) error {
	if err := l.acquire(ctx); err != nil {
		return err
	}
	if err := l.SaveCheckpoint(ctx, l.epoch, store.Checkpoint{Seq: l.seq}); err != nil {
		return fmt.Errorf("forget the checkpoint: %w", err)
	}
	return nil
}

// backlogPageRows is how many rows of a backlog are parked in one statement.
const backlogPageRows = 5000

// backlog is the unsettled rows of a view.
type backlog struct {
	view     store.View
	tables   store.Spiller
	epoch    store.Epoch
	outboxes []store.Outbox
	bound    store.ReadLimit

	items   []store.Item
	bytes   int64 // of items
	spilled int64
}

// read takes the rows of all outboxes into memory if they are few, and parks them
// if they are many.
func (b *backlog) read(ctx context.Context) error {
	for i := range b.outboxes {
		name := b.outboxes[i].Name
		items, err := b.view.Unsettled(ctx, b.bound.Remaining(len(b.items), b.bytes).Query(name))
		if err != nil {
			return fmt.Errorf("read the backlog of %s: %w", name, err)
		}
		b.items = append(b.items, items...)
		if b.bytes += store.BytesOf(items); b.bound.Exceeded(len(b.items), b.bytes) {
			b.items = nil
			return b.spill(ctx)
		}
	}
	return nil
}

func (b *backlog) spill(ctx context.Context) error {
	for i := range b.outboxes {
		name := b.outboxes[i].Name
		all := store.UnsettledQuery{Outbox: name, Limit: math.MaxInt32, NoPayload: true, MaxBytes: b.bound.Bytes}
		err := b.view.Pages(ctx, all, backlogPageRows, func(page []store.Item) error {
			for i := range page {
				b.spilled++
				page[i].Seq = store.NewSeq(b.epoch, b.spilled)
			}
			return b.tables.Spill(ctx, b.epoch, page)
		})
		if err != nil {
			return fmt.Errorf("park the backlog of %s: %w", name, err)
		}
	}
	return nil
}
