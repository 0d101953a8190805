package outboxes

import (
	"bytes"
	"slices"

	"github.com/sluicebox/sluicebox/store"
)

// Part is the rows of a call that belong to one outbox. Indexes are positions in the call.
type Part struct {
	Outbox     *store.Outbox
	Indexes    []int          // of each distinct id, in call order
	FirstIndex map[string]int // by id
	Duplicates map[int]int    // index of a repeated id → its first index
}

// Split groups the rows of a call by outbox. Parts are ordered by their first rows.
func Split(set *Set, rows []store.ClaimRow) ([]*Part, error) {
	var parts []*Part
	byName := map[string]*Part{}
	var p *Part
	for i := range rows {
		ref := rows[i].Ref
		if p == nil || p.Outbox.Name != ref.Outbox { // most calls have one outbox
			p = byName[ref.Outbox]
		}

		if p == nil {
			o, err := set.Find(ref.Outbox)
			if err != nil {
				return nil, err
			}
			p = &Part{Outbox: o, FirstIndex: make(map[string]int, len(rows)), Duplicates: map[int]int{}}
			byName[ref.Outbox] = p
			parts = append(parts, p)
		}

		if j, twice := p.FirstIndex[ref.ID]; twice {
			p.Duplicates[i] = j
			continue
		}

		p.FirstIndex[ref.ID] = i
		p.Indexes = append(p.Indexes, i)
	}

	return parts, nil
}

// CopyDuplicates copies the answers of first occurrences to repeated ids. A Gone answer
// becomes NotYetVisible if the Txn differs, because the other transaction may still become
// visible.
func (p *Part) CopyDuplicates(rows []store.ClaimRow, answers []store.ClaimAnswer) {
	for i, j := range p.Duplicates {
		answers[i] = answers[j]
		if answers[i].Result == store.Gone && rows[i].Txn != rows[j].Txn {
			answers[i].Result = store.NotYetVisible
		}
		if answers[j].Payload != nil {
			answers[i].Payload, answers[i].Attributes = bytes.Clone(answers[j].Payload), slices.Clone(answers[j].Attributes)
		}
	}
}

// Unanswered returns the part without its answered rows.
func (p *Part) Unanswered(answers []store.ClaimAnswer) *Part {
	left := &Part{Outbox: p.Outbox, FirstIndex: p.FirstIndex, Duplicates: map[int]int{}}
	for _, i := range p.Indexes {
		if answers[i].Result == 0 {
			left.Indexes = append(left.Indexes, i)
		}
	}
	for i, j := range p.Duplicates {
		if answers[j].Result == 0 {
			left.Duplicates[i] = j
		}
	}
	return left
}

// MarkAbsent marks all rows of an outbox as RowAbsent if only the log knows them. Otherwise it
// reports false and does nothing.
func (p *Part) MarkAbsent(states []store.RowStatus) bool {
	if !p.Outbox.Layout.LogOnly() {
		return false
	}
	for _, i := range p.Indexes {
		states[i] = store.RowStatus{State: store.RowAbsent}
	}
	for i := range p.Duplicates {
		states[i] = store.RowStatus{State: store.RowAbsent}
	}
	return true
}

// WantsPayload reports whether the payload of the id at index i is requested, there or at a
// repetition.
func (p *Part) WantsPayload(rows []store.ClaimRow, i int) bool {
	wants := rows[i].WantPayload
	for k, j := range p.Duplicates {
		wants = wants || j == i && rows[k].WantPayload
	}
	return wants
}

// CopyDuplicateStatuses copies the statuses of first occurrences to repeated ids, as
// CopyDuplicates does.
func (p *Part) CopyDuplicateStatuses(rows []store.ClaimRow, states []store.RowStatus) {
	for i, j := range p.Duplicates {
		states[i] = states[j]
		if states[i].State == store.RowAbsent && rows[i].Txn != rows[j].Txn {
			states[i].State = store.RowUnsettled
		}
		states[i].Payload, states[i].Attributes = bytes.Clone(states[j].Payload), slices.Clone(states[j].Attributes)
	}
}

// OtherState is the state of a row that a value of another program settles: the layout gives
// it no meaning, so the row is neither claimed nor replayed.
const OtherState store.RowState = 255

// Statuses returns states as a replay sees them, to which a row of OtherState is unsettled.
func Statuses(states []store.RowStatus) []store.RowStatus {
	for i := range states {
		if states[i].State == OtherState {
			states[i].State = store.RowUnsettled
		}
	}
	return states
}

// Settled reports which rows are settled or gone. A table without states has none.
func Settled(set *Set, rows []store.ClaimRow, states []store.RowStatus) []bool {
	settled := make([]bool, len(rows))
	for i := range rows {
		settled[i] = states[i].State != store.RowUnsettled && !set.Lookup(rows[i].Outbox).Layout.LogOnly()
	}
	return settled
}
