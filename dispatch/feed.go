package dispatch

import (
	"context"
	"fmt"
	"slices"
	"strings"

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
	observed func(outbox string, rows int)
}

// NewFeed returns the feed of a leader. routes gives the dispatcher of each
// outbox by name; observed is told how many rows of an outbox came.
func NewFeed(tracker *checkpoint.Tracker, epoch store.Epoch, routes map[string]*Dispatcher, observed func(outbox string, rows int)) *Feed {
	return &Feed{tracker: tracker, epoch: epoch, routes: routes, observed: observed}
}

// Run takes batches until the context ends or the channel is closed. While a
// buffer is full it takes none, which pauses the source.
func (f *Feed) Run(ctx context.Context, in <-chan capture.Batch) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case b, open := <-in:
			if !open {
				return nil
			}
			if err := f.take(ctx, &b); err != nil {
				return err
			}
		}
	}
}

// Backlog places rows that were in the tables before the log began. The
// checkpoint passes the position only when they have settled.
func (f *Feed) Backlog(items []store.Item, position store.Position) error {
	t := f.tracker.Begin(position, f.number(items), len(items))
	// One run of each outbox: a second would go in front of the first.
	slices.SortStableFunc(items, func(a, b store.Item) int { return strings.Compare(a.Outbox, b.Outbox) })
	return f.split(items, func(d *Dispatcher, part []store.Item) error {
		d.Prepend(part, t)
		return nil
	})
}

func (f *Feed) take(ctx context.Context, b *capture.Batch) error {
	t := f.tracker.Begin(b.Position, f.number(b.Items), len(b.Items))
	return f.split(b.Items, func(d *Dispatcher, part []store.Item) error {
		return d.Append(ctx, part, t)
	})
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
func (f *Feed) split(items []store.Item, hand func(*Dispatcher, []store.Item) error) error {
	for len(items) > 0 {
		outbox, n := items[0].Outbox, 1
		for n < len(items) && items[n].Outbox == outbox {
			n++
		}
		d, ok := f.routes[outbox]
		if !ok {
			return fmt.Errorf("row %s of outbox %s has no sink", items[0].ID, outbox)
		}
		f.observed(outbox, n)
		if err := hand(d, items[:n]); err != nil {
			return err
		}
		items = items[n:]
	}
	return nil
}
