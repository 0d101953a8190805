package audit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/verify"
	"github.com/sluicebox/sluicebox/store"
)

// pageSize is the number of rows that are in memory with their content.
const pageSize = 500

// truth reads the rows of an outbox into a checker.
type truth struct {
	tables Tables
	box    *Outbox
	window Window
	sums   bool
	// excused are the lanes whose rows wait for a reason that the relay's records have, and retried
	// the ids of rows with failed attempts, whose lanes are excused with them.
	excused map[store.LaneKey]bool
	retried map[string]bool

	take  func(verify.Row)
	owed  func(id string) bool // whether a row that is not settled has been so for the settle time
	order int64
	at    time.Time // of the last row with order
}

// excuse notes why rows of the outbox wait.
func (t *truth) excuse(holds []store.Hold, attempts []store.FailedAttempts) {
	t.excused, t.retried = map[store.LaneKey]bool{}, map[string]bool{}
	for i := range holds {
		if k := holds[i].Lane; k.Outbox == t.box.leg() {
			t.excused[k] = true
		}
	}
	for i := range attempts {
		if attempts[i].Outbox == t.box.leg() {
			t.retried[attempts[i].ID] = true
		}
	}
}

// read reads the rows. note says which rows of the outbox cannot be read, "" if all can.
func (t *truth) read(ctx context.Context) (note string, err error) {
	view, err := t.tables.View(ctx, "")
	if err != nil {
		return "", err
	}
	defer view.Close()
	if note, err = t.readDelivered(ctx, view); err != nil {
		return "", err
	}
	if err := t.readUnsettled(ctx, view); err != nil {
		return "", fmt.Errorf("read rows of %s: %w", t.box.Name, err)
	}
	for _, name := range slices.Compact([]string{t.box.Name, t.box.leg()}) { // after the view: a FAILED row is not COMPLETED in it
		err := t.tables.EachFailed(ctx, store.DeadLetterFilter{Outbox: name}, func(d *store.DeadLetter) {
			t.take(verify.Row{ID: d.ID, State: verify.Failed})
		})
		if err != nil {
			return "", err
		}
	}
	return note, nil
}

func (t *truth) readDelivered(ctx context.Context, view store.View) (note string, err error) {
	q := store.DeliveredQuery{Outbox: t.box.Name, Since: t.window.Since, Until: t.window.Until}
	undated, err := view.Delivered(ctx, q, pageSize, func(items []store.Item) error {
		rows := make([]verify.Row, len(items))
		for i := range items {
			it := &items[i]
			rows[i] = verify.Row{ID: it.ID, Lane: t.lane(it), State: verify.Completed, Order: t.next(it.Committed)}
		}
		return t.add(ctx, items, rows)
	})
	var setup *store.SetupError
	switch {
	case errors.As(err, &setup) && t.box.Layout.DeleteDelivered:
		return fmt.Sprintf("outbox %s deletes delivered rows: only rows that are left, and copies, are checked", t.box.Name), nil
	case setup != nil:
		return "", &store.SetupError{Problem: setup.Problem, Remedy: "verify needs a table that keeps the state of its rows, and an insert time first in order-by"}
	case err != nil:
		return "", err
	case undated > 0:
		note = fmt.Sprintf("outbox %s: %d delivered rows have no insert time and are not checked", t.box.Name, undated)
	}
	return note, nil
}

// next returns the order of a row behind the last. Rows of one time have an order only if order-by
// has a second column: the table forgets the order of insertion when a row is updated.
func (t *truth) next(at time.Time) int64 {
	switch same := at.Equal(t.at); {
	case same && len(t.box.Layout.OrderBy) > 1:
		t.order++
	case !same:
		t.at, t.order = at, max(t.order+1, at.UnixNano())
	}
	return t.order
}

func (t *truth) lane(it *store.Item) string {
	if !it.Group.Valid && t.box.Unordered {
		return ""
	}
	return it.Lane().String()
}

// readUnsettled reads the rows that are neither settled nor spilled. They have no order yet.
func (t *truth) readUnsettled(ctx context.Context, view store.View) error {
	if !t.box.Layout.ShowsUnsettled() {
		return nil
	}
	var aged []store.Item
	q := store.UnsettledQuery{Outbox: t.box.Name, Limit: maxUnsettled, NoPayload: true}
	err := view.Pages(ctx, q, pageSize, func(items []store.Item) error {
		rows := make([]verify.Row, len(items))
		for i := range items {
			it := &items[i]
			if it.RetryCount > 0 || t.retried[it.ID] {
				t.excused[t.laneOf(it)] = true
			}
			if t.owed(it.ID) {
				aged = append(aged, *it)
			}
			rows[i] = verify.Row{ID: it.ID, State: verify.Waiting}
		}
		return t.add(ctx, items, rows)
	})
	if err != nil || t.excused[store.PauseOfOutbox(t.box.leg())] {
		return err
	}
	aged = slices.DeleteFunc(aged, func(it store.Item) bool { return t.excused[t.laneOf(&it)] })
	for page := range slices.Chunk(aged, pageSize) {
		rows := make([]verify.Row, len(page))
		for i := range page {
			rows[i] = verify.Row{ID: page[i].ID, State: verify.Owed}
		}
		if err := t.add(ctx, page, rows); err != nil {
			return err
		}
	}
	return nil
}

// laneOf returns the lane of a row as the relay's records name it.
func (t *truth) laneOf(it *store.Item) store.LaneKey {
	k := it.Lane()
	k.Outbox = t.box.leg()
	return k
}

// maxUnsettled ends the read of a table that grows faster than it is read.
const maxUnsettled = 10_000_000

// add passes rows on, with their sums and without those that do not take the route.
func (t *truth) add(ctx context.Context, items []store.Item, rows []verify.Row) error {
	var content []store.RowStatus
	if t.sums || t.box.Router != nil {
		asked := make([]store.ClaimRow, len(items))
		for i := range items {
			asked[i] = store.ClaimRow{Ref: items[i].Ref, WantPayload: true}
		}
		var err error
		if content, err = t.tables.ReadStatuses(ctx, asked); err != nil {
			return err
		}
	}
	var legs []*store.LegRow
	if t.box.Router != nil {
		refs := make([]store.Ref, len(items))
		for i := range items {
			refs[i] = items[i].Ref
		}
		var err error
		if legs, err = t.tables.LegRows(ctx, refs); err != nil {
			return err
		}
	}
	for i := range rows {
		if t.sums && content[i].Payload != nil {
			sum := sha256.Sum256(content[i].Payload)
			rows[i].Sum = hex.EncodeToString(sum[:])
		}
		if t.box.Router != nil && !t.onRoute(&items[i], &content[i], legs[i], &rows[i]) {
			continue
		}
		t.take(rows[i])
	}
	return nil
}

// onRoute reports whether a row takes the route, and sets its state to that on the route.
func (t *truth) onRoute(it *store.Item, content *store.RowStatus, rec *store.LegRow, row *verify.Row) bool {
	if rec != nil {
		switch name := t.box.Route; {
		case !slices.Contains(rec.Matched, name):
			return false
		case slices.Contains(rec.Failed, name), slices.Contains(rec.Discarded, name):
			row.State = verify.Failed
		case slices.Contains(rec.Done, name):
			row.State = verify.Completed
		default:
			row.State = verify.Waiting
		}
		return true
	}
	switch content.State {
	case store.RowCompleted:
		it.Attributes = content.Attributes
	case store.RowUnsettled: // it has its attributes; see store.Outbox.KeepsAttributes
	default:
		return false
	}
	at := slices.IndexFunc(t.box.Routes, func(r store.Route) bool { return r.Name == t.box.Route })
	return t.box.Router.Match(it).Has(at)
}
