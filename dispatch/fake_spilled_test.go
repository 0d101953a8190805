package dispatch

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/sluicebox/sluicebox/store"
)

// spilledTable is the spilled rows of a store.
type spilledTable struct {
	guard         sync.Mutex
	items         []store.Item    // by seq
	statements    int             // Spill calls
	refusedSpills map[string]bool // ids that it refuses, with all rows of the call
	keepsContent  bool            // only the log has the rows
}

func (p *spilledTable) Spill(_ context.Context, _ store.Epoch, items []store.Item) error {
	p.guard.Lock()
	defer p.guard.Unlock()
	p.statements++
	for _, it := range items {
		if p.refusedSpills[it.ID] {
			return &store.RefusedError{Err: errors.New("no row for this table: " + it.ID)}
		}
	}
	for _, it := range items {
		if it.Seq == 0 {
			panic("a row without a seq is spilled: " + it.ID)
		}
		at, found := slices.BinarySearchFunc(p.items, it, bySeq)
		if !found {
			if !p.keepsContent {
				it.Payload = nil
			}
			p.items = slices.Insert(p.items, at, it)
		}
	}
	return nil
}

// spilled returns the number of spilled rows, and of the calls that spilled them.
func (p *spilledTable) spilled() (rows, statements int) {
	p.guard.Lock()
	defer p.guard.Unlock()
	return len(p.items), p.statements
}

func bySeq(a, b store.Item) int { return cmp.Compare(a.Seq, b.Seq) }

func (p *spilledTable) DeleteSpilled(_ context.Context, _ store.Epoch, rows []store.SpilledRef) error {
	p.delete(rows...)
	return nil
}

func (p *spilledTable) delete(rows ...store.SpilledRef) {
	p.guard.Lock()
	defer p.guard.Unlock()
	if len(rows) == 0 {
		return
	}
	gone := make(map[store.SpilledRef]bool, len(rows))
	for _, ref := range rows {
		gone[ref] = true
	}
	p.items = slices.DeleteFunc(p.items, func(it store.Item) bool {
		return gone[store.SpilledRef{Ref: it.Ref, Seq: it.Seq}]
	})
}

func (p *spilledTable) ReadSpilled(_ context.Context, from []store.SpilledRange, each int) ([][]store.Item, error) {
	p.guard.Lock()
	defer p.guard.Unlock()
	answers := make([][]store.Item, len(from))
	hashes := map[store.LaneKey]store.LaneHash{}
	for k := range p.items {
		it := &p.items[k]
		hash, known := hashes[it.Lane()]
		if !known {
			hash = hashOf(it)
			hashes[it.Lane()] = hash
		}
		for i, f := range from {
			if it.Outbox == f.Outbox && hash == f.Lane && it.Seq > f.After && len(answers[i]) < each {
				answers[i] = append(answers[i], *it)
			}
		}
	}
	return answers, nil
}

func hashOf(it *store.Item) store.LaneHash {
	key := it.Lane()
	return key.Hash()
}

// lanes returns the lanes that a store reports at a start.
func (p *spilledTable) lanes() (lanes []store.SpilledLane) {
	p.guard.Lock()
	defer p.guard.Unlock()
	for i := range p.items {
		it := &p.items[i]
		at := slices.IndexFunc(lanes, func(l store.SpilledLane) bool { return l.Outbox == it.Outbox && l.Hash == hashOf(it) })
		if at < 0 {
			at = len(lanes)
			lanes = append(lanes, store.SpilledLane{Outbox: it.Outbox, Kind: it.Kind, Hash: hashOf(it)})
		}
		lanes[at].Rows++
	}
	return lanes
}

// deleteAfter deletes spilled rows with a higher seq.
func (p *spilledTable) deleteAfter(after store.Seq) {
	p.guard.Lock()
	defer p.guard.Unlock()
	p.items = slices.DeleteFunc(p.items, func(it store.Item) bool { return it.Seq > after })
}

func (p *spilledTable) has(id string) bool {
	p.guard.Lock()
	defer p.guard.Unlock()
	return slices.ContainsFunc(p.items, func(it store.Item) bool { return it.ID == id })
}
