package replay

import (
	"cmp"
	"context"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// count counts the rows that the job would send, and those that it would pass over.
func (r *run) count(ctx context.Context) error {
	c := &counter{run: r, began: time.Now(), limit: r.pageOf(cmp.Or(r.pageRows, pageRows))}
	if err := c.read(ctx); err != nil {
		return err
	}
	if err := c.ask(ctx); err != nil {
		return err
	}
	return r.Store.CountRows(ctx, r.Epoch, r.ID, c.total, c.skipped)
}

// counter counts rows that are chosen.
type counter struct {
	*run
	page           []store.ReplayRow
	limit          int       // of its rows
	began          time.Time // of the page
	total, skipped int64
}

// read reads all that is the job's.
func (c *counter) read(ctx context.Context) error {
	if c.Source == string(SourceTable) {
		_, err := c.delivered(ctx, func(items []store.Item) error {
			c.total += int64(len(items))
			return nil
		})
		return err
	}
	at, err := c.place(ctx)
	if err != nil {
		return err
	}
	return c.readLog(ctx, &at, func(ctx context.Context, b *capture.Batch) error {
		for i := range b.Items {
			it := b.Items[i]
			if !c.wants(&it) {
				continue
			}
			it.Payload = nil
			if c.page = append(c.page, store.ReplayRow{Item: it}); len(c.page) < c.limit {
				continue
			}
			if err := c.ask(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

// ask asks the tables what became of a page of rows, and tells how many there are so
// far.
func (c *counter) ask(ctx context.Context) error {
	if len(c.page) == 0 {
		return nil
	}
	states, err := c.states(ctx, c.page)
	if err != nil {
		return err
	}
	for i := range states {
		c.total++
		if !c.isSent(states[i].State) {
			c.skipped++
		}
	}
	c.page = c.page[:0]
	if err := c.Store.CountRows(ctx, c.Epoch, c.ID, c.total, c.skipped); err != nil {
		return err
	}
	err = c.makeWay(ctx, c.began)
	c.began, c.limit = time.Now(), c.pageOf(cmp.Or(c.pageRows, pageRows))
	return err
}
