package replay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// copyTable copies the keys of delivered rows from the tables in one pass. Their
// payloads are read when they are sent.
func (r *jobRun) copyTable(ctx context.Context) error {
	undated, err := r.eachDelivered(ctx, func(items []store.Item) error { return r.copyItems(ctx, items) })
	if err != nil {
		return err
	}
	if r.Undated = undated; undated > 0 {
		if err := r.writeJob(ctx, r.Job); err != nil {
			return err
		}
	}

	r.Cursor = store.ReplayCursor{Position: tableCopied}
	return r.Store.CopyRows(ctx, r.Epoch, r.ID, nil, r.Cursor)
}

// copyItems copies rows in pages, with pauses for live rows.
func (r *jobRun) copyItems(ctx context.Context, items []store.Item) error {
	for len(items) > 0 {
		began, n := time.Now(), r.pageSize(len(items))
		page := make([]store.ReplayRow, n)
		for i := range page {
			page[i] = store.ReplayRow{N: r.Total + int64(i) + 1, Item: items[i]}
		}
		if err := r.Store.CopyRows(ctx, r.Epoch, r.ID, page, r.Cursor); err != nil {
			return err
		}
		r.Total += int64(n)
		items = items[n:]
		if err := r.throttle(ctx, began); err != nil {
			return err
		}
	}
	return nil
}

// eachDelivered calls take for pages of the job's delivered rows in the tables,
// without payload. undated is the number of other rows that the job may select but
// that have no time.
func (r *jobRun) eachDelivered(ctx context.Context, take func([]store.Item) error) (undated int, err error) {
	since, err := r.tableSince(ctx)
	if err != nil {
		return 0, err
	}

	view, err := r.Store.View(ctx, "")
	if err != nil {
		return 0, fmt.Errorf("read delivered rows: %w", err)
	}
	defer view.Close()
	for _, o := range r.selectedOutboxes() {
		q := store.DeliveredQuery{Outbox: o.Name, Since: since.Truncate(time.Second), Until: r.spec.Until, IDs: r.spec.IDs, Kinds: r.spec.Kinds, Groups: r.spec.groups()}
		n, err := view.Delivered(ctx, q, r.limits.pageRows, func(items []store.Item) error {
			items = r.tableRows(items)
			var page []store.Item
			for i := range items {
				if !isBefore(items[i].Committed, since) && r.spec.Match(&items[i]) {
					page = append(page, items[i])
				}
			}
			if len(page) == 0 {
				return nil
			}
			return take(page)
		})
		undated += n
		var setup *store.SetupError
		if errors.As(err, &setup) {
			return undated, refusef("%v", err)
		}
		if err != nil {
			return undated, fmt.Errorf("read delivered rows: %w", err)
		}
	}

	return undated, nil
}

// groups returns the selected groups, none for all.
func (s *Spec) groups() (list []store.Group) {
	for _, name := range s.Groups {
		list = append(list, store.GroupOf(name))
	}
	if s.NoGroup {
		list = append(list, store.Group{})
	}
	return list
}
