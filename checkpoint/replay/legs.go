package replay

import (
	"iter"
	"slices"

	"github.com/sluicebox/sluicebox/store"
)

// legNames are the legs of the outboxes with routes.
type legNames struct {
	of     map[string][]string // by outbox
	outbox map[string]string   // by leg
}

func newLegNames(outboxes []store.Outbox) legNames {
	n := legNames{of: map[string][]string{}, outbox: map[string]string{}}
	for i := range outboxes {
		for _, leg := range outboxes[i].Legs() {
			n.of[outboxes[i].Name] = append(n.of[outboxes[i].Name], leg.Name)
			n.outbox[leg.Name] = outboxes[i].Name
		}
	}
	return n
}

// rowsOf iterates over the rows that a job sends of a row of the log: the row itself, or if its
// outbox has routes a row for each leg that gets it. Of a row without its content that is each
// leg; see missesLeg.
func (r *jobRun) rowsOf(it *store.Item) iter.Seq[*store.Item] {
	return func(yield func(*store.Item) bool) {
		legs := r.legs.of[it.Outbox]
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
	legs := r.legs.of[items[0].Outbox]
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
	outbox, is := r.legs.outbox[row.Outbox]
	if !is {
		return false
	}
	it := row.Item
	it.Outbox = outbox
	return !slices.Contains(r.Legs(&it), row.Outbox)
}
