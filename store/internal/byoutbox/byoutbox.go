// Package byoutbox sorts the rows of a call by their outboxes.
package byoutbox

import (
	"bytes"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/outboxes"
)

// Part is what a call asks of one outbox. Places are those in the call.
type Part struct {
	Outbox *store.Outbox
	At     []int          // of each id, in the order of the call
	First  map[string]int // of each id
	Repeat map[int]int    // of ids that the call has twice, to the first
}

// Sort sorts a call. Parts come in the order of their first rows.
func Sort(set *outboxes.Set, rows []store.ClaimRow) ([]*Part, error) {
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
			p = &Part{Outbox: o, First: make(map[string]int, len(rows)), Repeat: map[int]int{}}
			byName[ref.Outbox] = p
			parts = append(parts, p)
		}
		if j, twice := p.First[ref.ID]; twice {
			p.Repeat[i] = j
			continue
		}
		p.First[ref.ID] = i
		p.At = append(p.At, i)
	}
	return parts, nil
}

// CopyRepeated answers for ids that came twice. What is gone of one transaction may
// yet come of another.
func (p *Part) CopyRepeated(rows []store.ClaimRow, answers []store.ClaimAnswer) {
	for i, j := range p.Repeat {
		answers[i] = answers[j]
		if answers[i].Result == store.Gone && rows[i].Txn != rows[j].Txn {
			answers[i].Result = store.NotYetVisible
		}
		if answers[j].Payload != nil {
			answers[i].Payload = append([]byte{}, answers[j].Payload...)
		}
	}
}

// Without returns the part without the rows that are answered for.
func (p *Part) Without(answers []store.ClaimAnswer) *Part {
	left := &Part{Outbox: p.Outbox, First: p.First, Repeat: map[int]int{}}
	for _, i := range p.At {
		if answers[i].Result == 0 {
			left.At = append(left.At, i)
		}
	}
	for i, j := range p.Repeat {
		if answers[j].Result == 0 {
			left.Repeat[i] = j
		}
	}
	return left
}

// Absent answers for all rows of an outbox that keeps no state, and reports whether it
// is one.
func (p *Part) Absent(states []store.StateOf) bool {
	if p.Outbox.Layout.State != store.StateNone {
		return false
	}
	for _, i := range p.At {
		states[i] = store.StateOf{State: store.RowAbsent}
	}
	for i := range p.Repeat {
		states[i] = store.StateOf{State: store.RowAbsent}
	}
	return true
}

// Wants reports whether the payload of an id is wanted, at its first place or another.
func (p *Part) Wants(rows []store.ClaimRow, i int) bool {
	wants := rows[i].WantPayload
	for k, j := range p.Repeat {
		wants = wants || j == i && rows[k].WantPayload
	}
	return wants
}

// CopyStates answers for ids that came twice, as CopyRepeated does.
func (p *Part) CopyStates(rows []store.ClaimRow, states []store.StateOf) {
	for i, j := range p.Repeat {
		states[i] = states[j]
		if states[i].State == store.RowAbsent && rows[i].Txn != rows[j].Txn {
			states[i].State = store.RowOpen
		}
		states[i].Payload = bytes.Clone(states[j].Payload)
	}
}
