package replay

import (
	"context"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// countRows counts the rows that the job would send and skip.
func (r *jobRun) countRows(ctx context.Context) error {
	c := &counter{jobRun: r, began: time.Now(), limit: r.pageSize(r.limits.pageRows)}
	if err := c.countAll(ctx); err != nil {
		return err
	}
	if err := c.countPage(ctx); err != nil {
		return err
	}
	return r.Store.SetRowCounts(ctx, r.Epoch, r.ID, c.total, c.skipped)
}

// counter counts the selected rows of a dry run.
type counter struct {
	*jobRun
	page           []store.ReplayRow
	limit          int       // of rows in the page
	began          time.Time // start of the page
	total, skipped int64
}

// countAll counts all rows of the job.
func (c *counter) countAll(ctx context.Context) error {
	if c.Source == string(SourceTable) {
		_, err := c.eachDelivered(ctx, func(items []store.Item) error {
			c.total += int64(len(items))
			return nil
		})
		return err
	}

	at, err := c.logPosition(ctx)
	if err != nil {
		return err
	}
	return c.readLog(ctx, &at, func(ctx context.Context, b *capture.Batch) error {
		for i := range b.Items {
			for row := range c.rowsOf(&b.Items[i]) {
				if c.matches(row) {
					c.page = append(c.page, store.ReplayRow{Item: *row})
					c.page[len(c.page)-1].Payload = nil
				}
			}
			if len(c.page) < c.limit {
				continue
			}
			if err := c.countPage(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

// countPage reads the status of a page of rows and writes the counts so far.
func (c *counter) countPage(ctx context.Context) error {
	if len(c.page) == 0 {
		return nil
	}

	states, err := c.rowStates(ctx, c.page)
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
	if err := c.Store.SetRowCounts(ctx, c.Epoch, c.ID, c.total, c.skipped); err != nil {
		return err
	}

	err = c.throttle(ctx, c.began)
	c.began, c.limit = time.Now(), c.pageSize(c.limits.pageRows)
	return err
}
