package ledger

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// strayRecords is how many records of a kind are read to find the names of stray legs, and how
// many FAILED rows of such a leg are counted. The
// records of a leg are spread evenly over the keys, and a leg that runs has a mark too.
const strayRecords = 10_000

// StrayLegs returns the legs that the relay's tables know and the configuration does not name,
// by name. It needs no leader.
func (l *Ledger) StrayLegs(ctx context.Context) ([]store.StrayLeg, error) {
	found := map[string]*store.StrayLeg{}
	err := l.records.View(ctx, func(ctx context.Context, r Reader) error {
		clear(found)
		return l.readStrays(ctx, r, found)
	})
	if err == nil {
		err = l.spill.View(ctx, func(ctx context.Context, r Reader) error {
			for name, s := range found {
				s.Spilled = 0
				if err := r.Lanes(ctx, SpilledQueue, name, func(lane store.SpilledLane) { s.Spilled += lane.Rows }); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("look for legs that are not configured: %w", err)
	}
	var strays []store.StrayLeg
	for _, s := range found {
		if s.Marked || s.Spilled+s.Failed+s.Holds > 0 {
			strays = append(strays, *s)
		}
	}
	slices.SortFunc(strays, func(a, b store.StrayLeg) int { return cmp.Compare(a.Leg(), b.Leg()) })
	return strays, nil
}

// readStrays finds the names of stray legs, and counts their records.
func (l *Ledger) readStrays(ctx context.Context, r Reader, found map[string]*store.StrayLeg) error {
	stray := func(name string) *store.StrayLeg {
		if found[name] == nil && l.isStray(name) {
			outbox, route := store.SplitLegName(name)
			found[name] = &store.StrayLeg{Outbox: outbox, Route: route}
		}
		return found[name]
	}
	for _, of := range l.legs {
		stray(of.outbox)
	}
	cp, err := get[checkpoint](ctx, r.Get, RelayKind, checkpointKey)
	if err != nil {
		return err
	}
	if cp != nil {
		for _, m := range cp.Legs {
			if s := stray(string(m.Leg)); s != nil {
				s.Marked = true
			}
		}
	}
	err = r.List(ctx, holdKind, "", 0, func(rec Record) error {
		var h hold
		if err := decode(holdKind, rec.Key, rec.Body, &h); err != nil {
			return err
		}
		if s := stray(string(h.Outbox)); s != nil {
			s.Holds++
		}
		return nil
	})
	for _, outbox := range l.outboxes.Names() { // an outbox may have lost its last route
		if err != nil {
			break
		}
		err = r.List(ctx, legKind, failedPrefix(outbox), strayRecords, func(rec Record) error {
			var row legRow
			if err := decode(legKind, rec.Key, rec.Body, &row); err != nil {
				return err
			}
			for _, route := range row.Matched {
				stray(store.LegName(string(row.Outbox), route))
			}
			return nil
		})
	}
	if err == nil {
		err = eachFailedOutbox(ctx, r, func(outbox string) { stray(outbox) })
	}
	for name, s := range found {
		if err != nil {
			break
		}
		s.Failed, err = countFailed(ctx, r, name, strayRecords)
	}
	return err
}

// countFailed counts the records of FAILED rows of an outbox, up to limit.
func countFailed(ctx context.Context, r Reader, outbox string, limit int) (n int, err error) {
	err = r.List(ctx, failedKind, failedPrefix(outbox), limit, func(rec Record) error {
		row := &failedRow{}
		if err := decode(failedKind, rec.Key, rec.Body, row); err != nil {
			return err
		}
		if string(row.Outbox) == outbox { // two names may share a prefix
			n++
		}
		return nil
	})
	return n, err
}

// eachFailedOutbox passes the names under which FAILED rows are recorded, most of them repeatedly.
func eachFailedOutbox(ctx context.Context, r Reader, take func(outbox string)) error {
	return r.List(ctx, failedKind, "", strayRecords, func(rec Record) error {
		var row failedRow
		if err := decode(failedKind, rec.Key, rec.Body, &row); err != nil {
			return err
		}
		take(string(row.Outbox))
		return nil
	})
}

// isStray reports whether a name is that of a leg of a configured outbox, and no leg of the
// configuration.
func (l *Ledger) isStray(name string) bool {
	for _, of := range l.legs {
		if of.outbox == name {
			return true // it has routes now
		}
	}
	outbox, route := store.SplitLegName(name)
	return route != "" && l.outboxes.Lookup(name) == nil && l.outboxes.Lookup(outbox) != nil
}

// movedRows is how many rows a transaction moves.
const movedRows = 100

// legMove renames a leg, or drops it.
type legMove struct {
	Store
	epoch    store.Epoch
	from, to string // names of legs; to is "" for a drop
}

// RenameLeg gives a leg a new name: its spilled and FAILED rows, the records of its rows, its
// holds and its mark. from is "" for the only leg of an outbox that had no routes. No relay may
// deliver meanwhile. To repeat the call after an error is safe.
func (s Store) RenameLeg(ctx context.Context, epoch store.Epoch, outbox, from, to string) error {
	m := &legMove{s, epoch, store.LegName(outbox, from), store.LegName(outbox, to)}
	if err := m.allowed(); err != nil {
		return err
	}
	if s.outboxes.Lookup(m.to) == nil {
		return fmt.Errorf("rename leg %s: the configuration has no leg %s", m.from, m.to)
	}
	err := m.moveQueue(ctx, SpilledQueue, func(ctx context.Context, tx Tx, items []store.Item) error {
		if from == "" {
			return m.addRows(ctx, tx, items, to)
		}
		return nil
	})
	if err == nil {
		err = m.changeRows(ctx, outbox, from, func(r *legRow) { r.rename(from, to) })
	}
	if err == nil {
		err = m.moveQueue(ctx, failedQueue, func(context.Context, Tx, []store.Item) error { return nil })
	}
	for _, step := range []func(context.Context) error{m.moveFailed, m.moveHolds, m.moveMark} {
		if err == nil {
			err = step(ctx)
		}
	}
	return wrap(err, "rename leg %s to %s", m.from, m.to)
}

// DropLeg deletes a leg: what waits for it is not delivered to it. Rows that no other leg holds
// become COMPLETED, or FAILED if a required leg failed or none delivered them; it returns how
// many. No relay may deliver meanwhile. To repeat the call after an error is safe.
func (s Store) DropLeg(ctx context.Context, epoch store.Epoch, outbox, route string) (settled int, err error) {
	m := &legMove{Store: s, epoch: epoch, from: store.LegName(outbox, route)}
	if err := m.allowed(); err != nil {
		return 0, err
	}
	err = m.changeRows(ctx, outbox, route, func(r *legRow) { r.remove(route) })
	for _, queue := range []string{SpilledQueue, failedQueue} {
		if err == nil {
			err = m.clear(ctx, queue)
		}
	}
	for _, step := range []func(context.Context) error{m.moveFailed, m.moveHolds} {
		if err == nil {
			err = step(ctx)
		}
	}
	if err == nil && route != "" {
		settled, err = m.settleEnded(ctx, outbox, route)
	}
	if err == nil {
		err = m.moveMark(ctx) // last: the leg is stray until then
	}
	return settled, wrap(err, "drop leg %s", m.from)
}

func (m *legMove) allowed() error {
	if !m.isStray(m.from) {
		return &store.SetupError{
			Problem: fmt.Sprintf("leg %s is configured, or its outbox is not", m.from),
			Remedy:  "remove or rename the route in the configuration first",
		}
	}
	return nil
}

// moveQueue moves the rows of a queue. Each transaction also runs with for the moved rows.
func (m *legMove) moveQueue(ctx context.Context, queue string, with func(context.Context, Tx, []store.Item) error) error {
	var lanes []store.LaneHash
	err := m.spill.View(ctx, func(ctx context.Context, r Reader) error {
		lanes = nil
		return r.Lanes(ctx, queue, m.from, func(lane store.SpilledLane) { lanes = append(lanes, lane.Hash) })
	})
	if err != nil {
		return err
	}
	for some := range slices.Chunk(lanes, movedRows) {
		from := make([]store.SpilledRange, len(some))
		for i, lane := range some {
			from[i] = store.SpilledRange{Outbox: m.from, Lane: lane}
		}
		for n := 1; n > 0; {
			err := m.spill.Update(ctx, m.epoch, Full, func(ctx context.Context, tx Tx) error {
				found, err := tx.Range(ctx, queue, from, max(1, movedRows/len(some)))
				if err != nil {
					return err
				}
				items := slices.Concat(found...)
				if n = len(items); n == 0 {
					return nil
				}
				return m.moveItems(ctx, tx, queue, items, with)
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *legMove) moveItems(ctx context.Context, tx Tx, queue string, items []store.Item, with func(context.Context, Tx, []store.Item) error) error {
	slices.SortFunc(items, func(a, b store.Item) int { return cmp.Compare(a.Seq, b.Seq) }) // the order of locks
	old := make([]Ref, len(items))
	for i := range items {
		old[i] = Ref{Ref: items[i].Ref, N: int64(items[i].Seq)}
		items[i].Outbox = m.to
	}
	if _, err := tx.Dequeue(ctx, queue, old, nil); err != nil {
		return err
	}
	if _, err := tx.Enqueue(ctx, queue, items); err != nil {
		return err
	}
	return with(ctx, tx, items)
}

// clear deletes the rows of a queue.
func (m *legMove) clear(ctx context.Context, queue string) error {
	for n := 1; n > 0; {
		err := m.spill.Update(ctx, m.epoch, Full, func(ctx context.Context, tx Tx) (err error) {
			n, _, err = tx.Clear(ctx, Scan{Queue: queue, Outboxes: []string{m.from}, Limit: m.batchRows})
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// addRows adds the records of spilled rows whose only leg is a route.
func (m *legMove) addRows(ctx context.Context, tx Tx, items []store.Item, route string) error {
	records := map[string]*legRow{}
	for i := range items {
		outbox, _ := store.SplitLegName(m.to)
		row := store.Ref{Outbox: outbox, ID: items[i].ID}
		records[legKey(row)] = recordOfLegs(&store.LegRow{Ref: row, Matched: []string{route}, Spilled: []string{route}})
	}
	return m.legKeys.put(ctx, tx, records)
}

// changeRows changes the records of the rows that a route matched.
func (m *legMove) changeRows(ctx context.Context, outbox, route string, change func(*legRow)) error {
	var keys []string
	err := m.EachLegRow(ctx, outbox, func(r *store.LegRow) {
		if slices.Contains(r.Matched, route) {
			keys = append(keys, legKey(r.Ref))
		}
	})
	if err != nil {
		return err
	}
	for some := range slices.Chunk(distinct(keys), movedRows) {
		err := m.records.Update(ctx, m.epoch, Full, func(ctx context.Context, tx Tx) error {
			records, err := getAll[legRow](ctx, tx.Lock, legKind, some)
			if err != nil {
				return err
			}
			for _, r := range records {
				change(r)
			}
			return m.legKeys.put(ctx, tx, records)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// routes are all lists of names of routes.
func (r *legRow) routes() []*[]string {
	return []*[]string{&r.Matched, &r.Done, &r.Failed, &r.Spilled, &r.Again, &r.Gone}
}

// rename gives a route another name.
func (r *legRow) rename(from, to string) {
	for _, list := range r.routes() {
		if slices.Contains(*list, from) {
			*list = append(without(without(*list, from), to), to)
		}
	}
	if retry, has := r.Retries[from]; has {
		delete(r.Retries, from)
		r.Retries[to] = retry
	}
}

// remove removes a route.
func (r *legRow) remove(route string) {
	for _, list := range r.routes() {
		*list = without(*list, route)
	}
	delete(r.Retries, route)
}

// moveFailed moves the records of FAILED rows, or deletes them.
func (m *legMove) moveFailed(ctx context.Context) error {
	var rows []*failedRow
	err := m.records.View(ctx, func(ctx context.Context, r Reader) error {
		rows = nil
		return eachFailed(ctx, r, m.from, func(_ string, row *failedRow) { rows = append(rows, row) })
	})
	if err != nil {
		return err
	}
	for some := range slices.Chunk(rows, movedRows) {
		err := m.records.Update(ctx, m.epoch, Full, func(ctx context.Context, tx Tx) error {
			old, moved := make([]string, len(some)), map[string]*failedRow{}
			for i, row := range some {
				old[i] = failedKey(row.ref())
				copied := *row
				copied.Outbox = text(m.to)
				moved[failedKey(copied.ref())] = &copied
			}
			if err := tx.Delete(ctx, failedKind, distinct(old)...); err != nil || m.to == "" {
				return err
			}
			return putAll(ctx, tx, failedKind, moved)
		})
		if err != nil {
			return err
		}
	}
	m.failed.forget(0)
	return nil
}

// moveHolds moves the holds of the leg, or deletes them.
func (m *legMove) moveHolds(ctx context.Context) error {
	holds := map[string]*hold{}
	err := m.records.View(ctx, func(ctx context.Context, r Reader) error {
		clear(holds)
		return r.List(ctx, holdKind, hashKey(m.from)[:17]+".", 0, func(rec Record) error {
			h := &hold{}
			err := decode(holdKind, rec.Key, rec.Body, h)
			if string(h.Outbox) == m.from { // two names may share a prefix
				holds[rec.Key] = h
			}
			return err
		})
	})
	if err != nil {
		return err
	}
	for some := range slices.Chunk(slices.Sorted(maps.Keys(holds)), movedRows) {
		err := m.records.Update(ctx, m.epoch, Full, func(ctx context.Context, tx Tx) error {
			b, err := lockBlocks(ctx, tx, nil, some)
			if err != nil {
				return err
			}
			for _, key := range some {
				h := b.holds[key]
				if h == nil {
					continue
				}
				b.release(key)
				moved, err := h.value()
				if err != nil {
					return err
				}
				switch moved.Lane.Outbox = m.to; {
				case m.to == "":
				case moved.Kind == store.Blocked:
					b.block(&moved)
				default:
					b.holds[holdKey(moved.Lane, moved.Kind)] = recordOfHold(&moved)
				}
			}
			return b.write(ctx, tx)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// moveMark moves the leg's mark, or deletes it. A leg that takes over another and has a mark itself must
// keep neither: each may have passed rows that the other has not had.
func (m *legMove) moveMark(ctx context.Context) error {
	return m.records.Update(ctx, m.epoch, Full, func(ctx context.Context, tx Tx) error {
		rec, err := get[checkpoint](ctx, tx.Lock, RelayKind, checkpointKey)
		if err != nil || rec == nil {
			return err
		}
		cp := rec.value()
		mark, marked := cp.Legs[m.from]
		if !marked {
			return nil
		}
		_, both := cp.Legs[m.to]
		switch delete(cp.Legs, m.from); {
		case both:
			delete(cp.Legs, m.to) // it starts at the checkpoint, which is behind neither mark
		case m.to != "":
			cp.Legs[m.to] = mark
		}
		return put(ctx, tx, RelayKind, checkpointKey, recordOf(cp))
	})
}

// settleEnded settles the rows of which no leg is left to end, and deletes their records.
func (m *legMove) settleEnded(ctx context.Context, outbox, dropped string) (settled int, err error) {
	box, err := m.outboxes.Find(outbox)
	if err != nil {
		return 0, err
	}
	ended := map[string]*store.LegRow{}
	err = m.EachLegRow(ctx, outbox, func(r *store.LegRow) {
		if len(r.Missing())+len(r.Spilled) == 0 {
			ended[legKey(r.Ref)] = r
		}
	})
	if err != nil {
		return 0, err
	}
	now := time.Now()
	for keys := range slices.Chunk(slices.Sorted(maps.Keys(ended)), movedRows) {
		outcomes := make([]store.Outcome, len(keys))
		for i, key := range keys {
			outcomes[i] = endedOutcome(box, ended[key], dropped)
			outcomes[i].At = now
		}
		results, err := m.Settle(ctx, m.epoch, outcomes)
		if err != nil {
			return settled, err
		}
		if slices.ContainsFunc(results, store.SettleResult.NeedsRetry) {
			return settled, fmt.Errorf("settle rows of outbox %s: rows or table locked by another session; end it and repeat the command", outbox)
		}
		over := slices.DeleteFunc(keys, func(key string) bool { return len(ended[key].Failed) > 0 }) // a requeue needs those
		err = m.records.Update(ctx, m.epoch, Full, func(ctx context.Context, tx Tx) error { return tx.Delete(ctx, legKind, over...) })
		if err != nil {
			return settled, err
		}
		for _, result := range results {
			if result == store.Written {
				settled++
			}
		}
	}
	return settled, nil
}

// endedOutcome returns the outcome of a row all of whose legs have ended.
func endedOutcome(box *store.Outbox, r *store.LegRow, dropped string) store.Outcome {
	rule, failed := box.LegRule(), box.RouteSet(r.Failed)
	matched := box.RouteSet(r.Matched) &^ box.RouteSet(r.Discarded)
	o := store.Outcome{Ref: r.Ref, Status: rule.Verdict(matched, box.RouteSet(r.Done), failed)}
	switch {
	case o.Status == store.Failed:
		legs, _ := rule.Needed(matched)
		for i := range (legs & failed).All() {
			route := box.Routes[i].Name
			o.Error, o.RetryCount = "route "+route+": "+cmp.Or(r.Retries[route].Error, "FAILED"), r.Retries[route].Count
			break
		}
	case o.Status == 0 && len(r.Done) > 0:
		o.Status = store.Completed // by a leg that is not configured either
	case o.Status == 0:
		o.Status, o.Error = store.Failed, fmt.Sprintf("route %s was dropped before it delivered the row", dropped)
	}
	return o
}
