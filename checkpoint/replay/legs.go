package replay

import (
	"iter"
	"slices"

	"github.com/sluicebox/sluicebox/store"
)

// rowsOf iterates over the rows that a job sends of a row of the log: the row itself, or if its
// outbox has routes a row for each leg that gets it. Of a row without its content that is each
// leg; see missesLeg.
func (r *jobRun) rowsOf(it *store.Item) iter.Seq[*store.Item] {
	return func(yield func(*store.Item) bool) {
		legs := r.legsOf(it.Outbox)
		if legs == nil {
			yield(it)
			return
		}
		if it.Payload != nil || it.PayloadSize == 0 {
			legs = r.Legs(it)
		}
		for _, leg := range legs {
			row := *it
			if row.Outbox = leg; !yield(&row) {
				return
			}
		}
	}
}

// tableRows is rowsOf for rows of a table, which come without the attributes that decide on their
// legs. It returns a row for each selected leg; see missesLeg.
func (r *jobRun) tableRows(items []store.Item) []store.Item {
	if len(items) == 0 {
		return nil
	}
	legs := r.legsOf(items[0].Outbox)
	if legs == nil {
		return items
	}
	var rows []store.Item
	for i := range items {
		for _, leg := range legs {
			row := items[i]
			row.Outbox = leg
			rows = append(rows, row)
		}
	}
	return rows
}

// missesLeg reports whether a row of a leg, whose attributes were read only now, does not go to it.
func (r *jobRun) missesLeg(row *store.ReplayRow) bool {
	for i := range r.Outboxes {
		o := &r.Outboxes[i]
		for _, leg := range o.Legs() {
			if leg.Name == row.Outbox {
				it := row.Item
				it.Outbox = o.Name
				return !slices.Contains(r.Legs(&it), row.Outbox)
			}
		}
	}
	return false
}

// legsOf returns the names of an outbox's legs; nil if it has no routes.
func (r *jobRun) legsOf(outbox string) (names []string) {
	for i := range r.Outboxes {
		if r.Outboxes[i].Name == outbox {
			for _, route := range r.Outboxes[i].Routes {
				names = append(names, store.LegName(outbox, route.Name))
			}
		}
	}
	return names
}
