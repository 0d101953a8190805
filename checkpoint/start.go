package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// Opener finds the position in the log at which a relay continues; see
// capture.Source.
type Opener interface {
	Open(ctx context.Context, at store.Checkpoint, tables capture.Tables) (capture.OpenResult, error)
}

// StartStore is the part of a store that a start needs.
type StartStore interface {
	store.Checkpoints
	store.Leadership
	store.SpillStore
	store.Viewer
}

// StartPoint is the state from which a relay starts.
type StartPoint struct {
	// Epoch is the epoch of the leadership that the start acquired.
	Epoch store.Epoch

	// Watermark is the initial watermark. Its Position is "" after a snapshot,
	// because nothing may be saved before the backlog has settled.
	Watermark store.Checkpoint

	// From is the position to run the source from.
	From store.Position

	// Backlog has the rows that are in the tables but not in the log, in the order of
	// delivery. They come before all rows of the log.
	Backlog []store.Item

	// Spilled is the number of rows that the start spilled: first those that only the log
	// before the snapshot has, then those of a backlog that is too large for memory. They
	// have the first seqs of the epoch.
	Spilled int64

	// Kept are the outboxes without a state of which a snapshot leaves out no row; see
	// capture.OpenResult.
	Kept []string

	// SnapshotReason is the reason for a snapshot, "" if there was none.
	SnapshotReason string

	// Saved is the checkpoint that a snapshot has saved. It holds until the backlog is settled
	// or spilled.
	Saved store.Checkpoint
}

// IsFirst reports whether this is the first start that reads the log under this name:
// no row was captured before, and no earlier start has added the holds of blocked
// groups.
func (b *StartPoint) IsFirst() bool { return b.SnapshotReason != "" && b.Watermark.Seq == 0 }

// Start opens the source at the saved checkpoint and acquires leadership. It acquires
// it as late as possible, after the source has verified that no other relay holds the
// log.
//
// If the checkpoint is missing or the log is lost, Start takes a snapshot: its
// backlog is the unsettled rows of the tables at the new position, without the
// spilled rows.
//
//   - A backlog larger than bound is spilled itself.
//   - In a smaller one, a payload above its share of the bytes stays in its table,
//     and the claim reads it.
//   - If reading or spilling it fails, Start discards the resources of the snapshot,
//     so that the database retains no log for a relay that does not run.
//
// A snapshot first clears the saved checkpoint. No new checkpoint is saved until the
// backlog is settled or spilled. A relay that crashes in between takes another
// snapshot, and finds the rows that it had spilled. A source may keep rows that no table
// has: they are spilled before the backlog, and the checkpoint says up to where they are. Such
// a source also saves the position of a new log, because the next start must read it from there.
// The last leader may save a checkpoint until its leadership ends. Start begins again with that one:
// behind an older one it would delete spilled rows that the newer one says are there.
//
// With an intact log, Start deletes the rows that were spilled after the checkpoint,
// because the log brings them again: for a leg, those after its own mark. A leg without a saved
// mark starts at the checkpoint. After a snapshot no mark holds.
//
// lost, if not nil, reports that the log was found lost while it was read. The saved
// checkpoint is then invalid, whatever position the source finds, unless the log is still
// readable.
func Start(ctx context.Context, src Opener, tables StartStore, outboxes []store.Outbox, bound store.ReadLimit, lost *capture.LostError) (StartPoint, error) {
	at, err := loadCheckpoint(ctx, tables)
	if err != nil {
		return StartPoint{}, err
	}
	saved := at
	leader := &lazyLeader{StartStore: tables, seq: at.Seq, legs: at.Legs, first: at.IsZero()}
	if lost != nil && !lost.Readable {
		at = store.Checkpoint{Seq: at.Seq}
	}

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
	if changed, err := leader.changed(ctx, saved); changed || err != nil {
		if err != nil {
			return StartPoint{}, err
		}
		return Start(ctx, src, tables, outboxes, bound, lost) // no other leader saves one from now on
	}

	point := StartPoint{
		Epoch:          leader.epoch,
		Watermark:      store.Checkpoint{Origin: opening.Origin, Position: opening.From, Seq: at.Seq},
		From:           opening.From,
		SnapshotReason: opening.SnapshotReason,
		Kept:           opening.Kept,
		Saved:          leader.saved,
	}

	if opening.View == nil && at.Position != "" && opening.From == at.Position {
		point.Watermark.Legs = marks(outboxes, at)
		_, err = tables.DeleteSpilledAfter(ctx, point.Epoch, point.Watermark)
		return point, err
	}
	point.Watermark.Legs = marks(outboxes, store.Checkpoint{Seq: at.Seq}) // no saved mark holds
	if opening.View == nil {
		return point, err
	}

	if lost != nil {
		point.SnapshotReason = lost.Reason
	}

	point.Watermark.Position = ""
	b := backlog{view: opening.View, tables: tables, epoch: point.Epoch, outboxes: outboxes, bound: bound, spilled: leader.kept}
	err = b.read(ctx)
	if err != nil && opening.Discard != nil {
		err = errors.Join(err, opening.Discard(context.WithoutCancel(ctx)))
	}

	point.Backlog, point.Spilled = b.items, b.spilled
	return point, err
}

// lazyLeader acquires leadership when it is first needed.
type lazyLeader struct {
	StartStore
	epoch store.Epoch              // 0 until then
	seq   store.Seq                // of the checkpoint, then of the last row kept
	legs  map[string]store.LegMark // of the checkpoint
	first bool                     // there was no checkpoint

	saved            store.Checkpoint
	cleared, keeping bool
	kept             int64
}

func (l *lazyLeader) acquire(ctx context.Context) (err error) {
	if l.epoch != 0 {
		return nil
	}
	if l.epoch, err = l.AcquireLeadership(ctx); err != nil {
		return fmt.Errorf("acquire leadership: %w", err)
	}
	return nil
}

// changed reports whether the saved checkpoint is another than the loaded one, although this start has
// changed none.
func (l *lazyLeader) changed(ctx context.Context, loaded store.Checkpoint) (bool, error) {
	if l.cleared || l.keeping {
		return false, nil
	}
	now, err := loadCheckpoint(ctx, l)
	return !now.Equal(loaded), err
}

// loadCheckpoint loads the saved checkpoint; zero if there is none.
func loadCheckpoint(ctx context.Context, tables store.Checkpoints) (store.Checkpoint, error) {
	at, err := tables.LoadCheckpoint(ctx)
	if err != nil && !errors.Is(err, store.ErrNoCheckpoint) {
		return at, fmt.Errorf("load checkpoint: %w", err)
	}
	return at, nil
}

// ClearCheckpoint implements capture.Tables. It keeps the seq, which identifies
// spilled rows.
func (l *lazyLeader) ClearCheckpoint(ctx context.Context) error {
	if err := l.acquire(ctx); err != nil {
		return err
	}
	if err := l.save(ctx, store.Checkpoint{Seq: l.seq}); err != nil {
		return fmt.Errorf("clear checkpoint: %w", err)
	}
	l.cleared = true
	return nil
}

func (l *lazyLeader) save(ctx context.Context, cp store.Checkpoint) error {
	l.saved = cp
	return l.SaveCheckpoint(ctx, l.epoch, cp)
}

// Keep implements capture.Tables. It spills the rows. The first call deletes the rows spilled
// after the checkpoint, also those that an unfinished start kept. After ClearCheckpoint it
// deletes none, and the checkpoint's seq is behind all of them: no log brings them again. The
// first checkpoint has no seq, so that the next start is a first one too; see IsFirst.
func (l *lazyLeader) Keep(ctx context.Context, at store.Checkpoint, items []store.Item) error {
	if err := l.acquire(ctx); err != nil {
		return err
	}
	switch {
	case l.keeping:
	case !l.cleared:
		if _, err := l.DeleteSpilledAfter(ctx, l.epoch, store.Checkpoint{Seq: l.seq, Legs: l.legs}); err != nil {
			return err
		}
	case !l.first:
		l.seq = store.NewSeq(l.epoch, 0)
	}
	l.keeping = true
	for i := range items {
		l.kept++
		items[i].Seq = store.NewSeq(l.epoch, l.kept)
	}
	if len(items) > 0 {
		if err := l.Spill(ctx, l.epoch, items); err != nil {
			return fmt.Errorf("keep rows of the log: %w", err)
		}
		l.seq = items[len(items)-1].Seq
	}
	if at.Position == "" {
		return nil
	}
	at.Seq = l.seq
	if err := l.save(ctx, at); err != nil {
		return fmt.Errorf("save checkpoint of kept rows: %w", err)
	}
	return nil
}

// backlogPageRows is the number of backlog rows that one statement spills.
const backlogPageRows = 5000

// backlog reads the unsettled rows of a view.
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

// read loads the rows of all outboxes into memory if they are within the bound, and
// spills them otherwise.
func (b *backlog) read(ctx context.Context) error {
	for i := range b.outboxes {
		name := b.outboxes[i].Name
		items, err := b.view.Unsettled(ctx, b.bound.Remaining(len(b.items), b.bytes).Query(&b.outboxes[i]))
		if err != nil {
			return fmt.Errorf("read backlog of %s: %w", name, err)
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
		// A leg keeps the content of its rows, because its outbox may lose them before it has sent them.
		all := store.UnsettledQuery{Outbox: name, Limit: math.MaxInt32, NoPayload: len(b.outboxes[i].Routes) == 0, MaxBytes: b.bound.Bytes}
		err := b.view.Pages(ctx, all, backlogPageRows, func(page []store.Item) error {
			for i := range page {
				b.spilled++
				page[i].Seq = store.NewSeq(b.epoch, b.spilled)
			}
			return b.tables.Spill(ctx, b.epoch, page)
		})
		if err != nil {
			return fmt.Errorf("spill backlog of %s: %w", name, err)
		}
	}
	return nil
}
