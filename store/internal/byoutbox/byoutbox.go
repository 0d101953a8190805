// Package byoutbox sorts the rows of a call by their outboxes.
package byoutbox

import (
	"bytes"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/outboxes"
)

// Part is what a call asks of one outbox. Places are those in the call.
type Part struct {
	Outbox     *store.Outbox
	Indexes    []int          // of each id, in the order of the call
	FirstIndex map[string]int // of each id
	Duplicates map[int]int    // of ids that the call has twice, to the first
}

// Split sorts a call. Parts come in the order of their first rows.
func Split(set *outboxes.Set, rows []store.ClaimRow) ([]*Part, error) {
	var parts []*Part
	byName := map[string]*Part{}
	var p *Part
	for i := range rows {
		ref := rows[i].Ref
		if p == nil || p.Outbox.Name != ref.Outbox { // most are of one
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

// CopyDuplicates answers for ids that came twice. What is gone of one transaction may
// yet come of another.
func (p *Part) CopyDuplicates(rows []store.ClaimRow, answers []store.ClaimAnswer) {
	for i, j := range p.Duplicates {
		answers[i] = answers[j]
		if answers[i].Result == store.Gone && rows[i].Txn != rows[j].Txn {
			answers[i].Result = store.NotYetVisible
		}
		if answers[j].Payload != nil {
			answers[i].Payload = append([]byte{}, answers[j].Payload...)
		}
	}
}

// Unanswered returns the part without the rows that are answered for.
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

// MarkAbsent answers for all rows of an outbox that keeps no state, and reports whether it
// is one.
func (p *Part) MarkAbsent(states []store.RowStatus) bool {
	if p.Outbox.Layout.State != store.StateNone {
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

// WantsPayload reports whether the payload of an id is wanted, at its first place or another.
func (p *Part) WantsPayload(rows []store.ClaimRow, i int) bool {
	wants := rows[i].WantPayload
	for k, j := range p.Duplicates {
		wants = wants || j == i && rows[k].WantPayload
	}
	return wants
}

// CopyDuplicateStatuses answers for ids that came twice, as CopyDuplicates does.
func (p *Part) CopyDuplicateStatuses(rows []store.ClaimRow, states []store.RowStatus) {
	for i, j := range p.Duplicates {
		states[i] = states[j]
		if states[i].State == store.RowAbsent && rows[i].Txn != rows[j].Txn {
			states[i].State = store.RowUnsettled
		}
		states[i].Payload = bytes.Clone(states[j].Payload)
	}
}
