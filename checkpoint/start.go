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
	Open(ctx context.Context, at store.Checkpoint, views store.Viewer) (capture.Opening, error)
}

// Tables is what a start reads.
type Tables interface {
	LoadCheckpoint(ctx context.Context) (store.Checkpoint, error)
	store.Viewer
}

// Begin is where a relay begins.
type Begin struct {
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

// Start opens the source at the saved checkpoint. Where the log begins anew (the
// first start, a lost log) it makes a cut: the unsettled rows of the tables as
// they were at that place are the backlog. A backlog of more than most rows is
// refused, and what was made for the cut is given up, so that no log is held for
// a relay that does not run.
//
// Until the backlog has settled no checkpoint is saved, so a relay that ends
// before starts with a new cut.
func Start(ctx context.Context, src Opener, tables Tables, outboxes []store.Outbox, most int) (Begin, error) {
	at, err := tables.LoadCheckpoint(ctx)
	if err != nil && !errors.Is(err, store.ErrNoCheckpoint) {
		return Begin{}, fmt.Errorf("load the checkpoint: %w", err)
	}
	opening, err := src.Open(ctx, at, tables)
	if err != nil {
		return Begin{}, err
	}
	begin := Begin{
		Frontier: store.Checkpoint{Origin: opening.Origin, Position: opening.From, Seq: at.Seq},
		From:     opening.From,
		Why:      opening.Why,
	}
	if opening.View == nil {
		return begin, nil
	}
	begin.Frontier.Position = ""
	defer opening.View.Close()
	begin.Backlog, err = backlog(ctx, opening.View, outboxes, most)
	if err != nil && opening.Discard != nil {
		err = errors.Join(err, opening.Discard(context.WithoutCancel(ctx)))
	}
	return begin, err
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
