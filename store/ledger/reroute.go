package ledger

import (
	"context"

	"github.com/sluicebox/sluicebox/store"
)

// Reroute gives spilled rows of a leg to other legs of its outbox, durably and in transactions of a
// bounded size. routes returns the names of the routes for a row, none to leave it where it is. It
// returns the number of rows that it moved. It is for a start, before any lane has rows.
//
// again reports whether the source brings a row with this seq to a route again. That route gets no copy,
// because the row would come before earlier ones of its group, which are not spilled. A row that other
// legs had is copied nevertheless, because they may have settled it.
func (l *Ledger) Reroute(ctx context.Context, epoch store.Epoch, leg string, routes func(*store.Item) []string, again func(route string, seq store.Seq) bool) (total int, err error) {
	total, err = l.eachSpilled(ctx, epoch, leg, func(ctx context.Context, tx Tx, items []store.Item) (int, error) {
		return l.reroute(ctx, tx, items, routes, again)
	})
	return total, wrap(err, "route spilled rows of %s", leg)
}

// reroute moves spilled rows of one leg.
func (l *Ledger) reroute(ctx context.Context, tx Tx, items []store.Item, routes func(*store.Item) []string, again func(route string, seq store.Seq) bool) (int, error) {
	if len(items) == 0 {
		return 0, nil
	}
	keys, records, whole, err := l.readSpilled(ctx, tx, items)
	if err != nil {
		return 0, err
	}
	var copies []store.Item
	var left []Ref
	moved, gone := map[string]*legRow{}, map[string]bool{}
	for i := range items {
		if len(whole[i]) == 0 {
			continue
		}
		it, of := whole[i][0], l.legs[items[i].Outbox]
		names := routes(&it)
		if len(names) == 0 {
			continue
		}
		rec := records[keys[i]]
		if rec == nil {
			rec = &legRow{Outbox: text(of.outbox), ID: text(it.ID)}
		}
		others := without(rec.Matched, of.route)
		rec.Matched, rec.Spilled, rec.Again = union(others, names), without(rec.Spilled, of.route), without(rec.Again, of.route)
		delete(rec.Retries, of.route)
		left = append(left, refOf(store.SpilledRef{Ref: it.Ref, Seq: it.Seq}))
		for _, name := range names {
			if len(others) == 0 && again(name, it.Seq) {
				continue
			}
			rec.Spilled = union(rec.Spilled, []string{name})
			it.Outbox, it.RetryCount = store.LegName(of.outbox, name), 0
			copies = append(copies, it)
		}
		if gone[keys[i]] = rec.isOver(); !gone[keys[i]] {
			moved[keys[i]] = rec
		}
	}
	if len(left) == 0 {
		return 0, nil
	}
	if _, err := tx.Dequeue(ctx, SpilledQueue, left, nil); err != nil {
		return 0, err
	}
	if _, err := tx.Enqueue(ctx, SpilledQueue, copies); err != nil {
		return 0, err
	}
	return len(left), l.legKeys.write(ctx, tx, moved, gone)
}

// union returns the names of both lists, each once.
func union(a, b []string) []string {
	for _, name := range b {
		a = append(without(a, name), name)
	}
	return a
}
