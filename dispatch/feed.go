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
	freed    chan struct{} // a buffer may have room again
	look     store.Looker  // while the relay catches up

	// Marked, if set before Run, is told of each marker at its place among the
	// rows.
	Marked func(token string)
}

// NewFeed returns the feed of a leader. routes gives the dispatcher of each
// outbox by name; observed is told how many rows of an outbox came. Call it
// before the dispatchers run.
func NewFeed(tracker *checkpoint.Tracker, epoch store.Epoch, routes map[string]*Dispatcher, observed func(outbox string, rows int)) *Feed {
	f := &Feed{tracker: tracker, epoch: epoch, routes: routes, observed: observed, freed: make(chan struct{}, 1)}
	for _, d := range routes {
		d.freed = f.freed
	}
	return f
}

// overflow is how many times its buffer a sink may hold in rows while another
// sink has room: a receiver that hangs takes nothing from the others. Payloads
// are not kept past the buffer's bytes.
const overflow = 10

// room reports whether more may be read: some buffer has room, and none is over
// by too much.
func (f *Feed) room() bool {
	some := false
	for _, d := range f.routes {
		n := d.Room()
		some = some || n > 0
		if n <= -(overflow-1)*d.cfg.BufferRows {
			return false
		}
	}
	return some
}

// Run takes batches until the context ends or the channel is closed. While there
// is no room it takes none, which pauses the source.
func (f *Feed) Run(ctx context.Context, in <-chan capture.Batch) error {
	if f.look != nil {
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
			if err := f.take(&b); err != nil {
				return err
			}
		}
	}
}

func (f *Feed) waitForRoom(ctx context.Context) error {
	for !f.room() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-f.freed:
		}
	}
	return nil
}

// Backlog places rows that were in the tables before the log began. The
// checkpoint passes the position only when they have settled.
func (f *Feed) Backlog(items []store.Item, position store.Position) error {
	t := f.tracker.Begin(position, f.number(items), len(items))
	// One run of each outbox: a second would go in front of the first.
	slices.SortStableFunc(items, func(a, b store.Item) int { return strings.Compare(a.Outbox, b.Outbox) })
	return f.split(items, func(d *Dispatcher, part []store.Item) { d.Prepend(part, t) })
}

func (f *Feed) take(b *capture.Batch) error {
	t := f.tracker.Begin(b.Position, f.number(b.Items), len(b.Items))
	if err := f.split(b.Items, func(d *Dispatcher, part []store.Item) { d.Append(part, t) }); err != nil {
		return err
	}
	for _, token := range b.Marks {
		if f.Marked != nil {
			f.Marked(token)
		}
	}
	return nil
}

// Held implements checkpoint.Lanes.
func (f *Feed) Held(outbox string) []string { return f.routes[outbox].Held(outbox) }

// Watch implements checkpoint.Lanes.
func (f *Feed) Watch(on bool) {
	for _, d := range f.routes {
		d.Watch(on)
	}
}

// Found implements checkpoint.Lanes. Nobody waits for these rows: what is lost
// with the process is found again.
func (f *Feed) Found(items []store.Item) (placed int) {
	for len(items) > 0 {
		n := sameOutbox(items)
		placed += f.routes[items[0].Outbox].Found(items[:n])
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
		f.observed(outbox, n)
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
