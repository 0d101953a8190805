package checkpoint

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// Opener finds the place in the log from which a relay goes on; see
// capture.Source.
type Opener interface {
	Open(ctx context.Context, at store.Checkpoint, tables capture.Tables) (capture.Opening, error)
}

// Tables is what a start asks of a store.
type Tables interface {
	store.Checkpoints
	store.Leadership
	store.Viewer
}

// Begin is where a relay begins.
type Begin struct {
	// Epoch is that of the leadership that the start took.
	Epoch store.Epoch
	// Frontier is where the watermark stands. Its Position is "" after a cut:
	// nothing may be saved before the backlog has settled.
	Frontier store.Checkpoint
	// From is where to run the source from.
	From store.Position
	// Backlog are rows that are in the tables and not in the log, in the order
	// in which they are to be delivered, before anything that the log brings.
	Backlog []store.Item
	// Why is set when the log begins anew, and says why.
	Why string
}

// Start opens the source at the saved checkpoint and takes leadership. Where the
// log begins anew (the first start, a lost log) it makes a cut: the unsettled
// rows of the tables as they were at that place are the backlog. A backlog of
// more than most rows is refused, and what was made for the cut is given up, so
// that no log is held for a relay that does not run.
//
// A cut forgets the old checkpoint first, and none is saved until the backlog has
// settled: a relay that ends before starts with a cut again.
//
// Leadership is taken as late as it may be, after the source has found that no
// other relay holds the log.
//
// lost, if not nil, says how the log was found lost while it was read: the
// checkpoint no longer counts, whatever the source finds in its place.
func Start(ctx context.Context, src Opener, tables Tables, outboxes []store.Outbox, most int, lost *capture.LostError) (Begin, error) {
	at, err := tables.LoadCheckpoint(ctx)
	if err != nil && !errors.Is(err, store.ErrNoCheckpoint) {
		return Begin{}, fmt.Errorf("load the checkpoint: %w", err)
	}
	if lost != nil {
		at = store.Checkpoint{Seq: at.Seq}
	}
	leader := &leader{Tables: tables, seq: at.Seq}
	opening, err := src.Open(ctx, at, leader)
	if err != nil {
		return Begin{}, err
	}
	if opening.View != nil {
		defer opening.View.Close()
	}
	if err := leader.lead(ctx); err != nil {
		return Begin{}, err
	}
	begin := Begin{
		Epoch:    leader.epoch,
		Frontier: store.Checkpoint{Origin: opening.Origin, Position: opening.From, Seq: at.Seq},
		From:     opening.From,
		Why:      opening.Why,
	}
	if opening.View == nil {
		return begin, nil
	}
	if lost != nil {
		begin.Why = lost.Reason
	}
	begin.Frontier.Position = ""
	begin.Backlog, err = backlog(ctx, opening.View, outboxes, most)
	if err != nil && opening.Discard != nil {
		err = errors.Join(err, opening.Discard(context.WithoutCancel(ctx)))
	}
	return begin, err
}

// leader takes leadership when it is first needed.
type leader struct {
	Tables
	epoch store.Epoch // 0 until then
	seq   store.Seq
}

func (l *leader) lead(ctx context.Context) (err error) {
	if l.epoch != 0 {
		return nil
	}
	if l.epoch, err = l.Lead(ctx); err != nil {
		return fmt.Errorf("take leadership: %w", err)
	}
	return nil
}

// Forget implements capture.Tables. The seq stays: parked rows are known by it.
func (l *leader) Forget(ctx context.Context) error {
	if err := l.lead(ctx); err != nil {
		return err
	}
	if err := l.SaveCheckpoint(ctx, l.epoch, store.Checkpoint{Seq: l.seq}); err != nil {
		return fmt.Errorf("forget the checkpoint: %w", err)
	}
	return nil
}

// backlog reads the unsettled rows of all outboxes, at most most of them.
func backlog(ctx context.Context, view store.View, outboxes []store.Outbox, most int) ([]store.Item, error) {
	var all []store.Item
	for i := range outboxes {
		items, err := view.Unsettled(ctx, store.Unsettled{Outbox: outboxes[i].Name, Limit: most - len(all) + 1})
		if err != nil {
			return nil, fmt.Errorf("read the backlog of %s: %w", outboxes[i].Name, err)
		}
		all = append(all, items...)
		if len(all) > most {
			return nil, &store.SetupError{
				Problem: fmt.Sprintf("the outboxes hold more than %d unsettled rows from before the log begins (counted up to %s), and the buffer takes no more", most, outboxes[i].Name),
				Remedy:  "set dispatch.global-buffer-size above their number for this start, or settle old rows that nobody waits for",
			}
		}
	}
	return all, nil
}
