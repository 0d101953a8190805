package mongo

import "github.com/sluicebox/sluicebox/store"

// settlePart is the outcomes of one outbox, status and round; each id occurs once.
type settlePart struct {
	settleKey
	at []int // indexes in the call
}

type settleKey struct {
	round  int // the second outcome of an id is written in the second round, and so on
	outbox string
	status store.Status
}

// parts groups the outcomes of a call. Rounds keep the order of several outcomes of one id;
// parts are returned in the order of their rounds.
func (c *settling) parts() []*settlePart {
	var rounds [][]*settlePart
	byKey := map[settleKey]*settlePart{}
	count := make(map[store.Ref]int, len(c.outcomes))
	for i := range c.outcomes {
		o := &c.outcomes[i]
		k := settleKey{round: count[o.Ref], outbox: o.Outbox, status: o.Status}
		count[o.Ref]++
		p := byKey[k]
		if p == nil {
			p = &settlePart{settleKey: k}
			byKey[k] = p
			if k.round == len(rounds) {
				rounds = append(rounds, nil)
			}
			rounds[k.round] = append(rounds[k.round], p)
		}
		p.at = append(p.at, i)
	}
	var parts []*settlePart
	for _, round := range rounds {
		parts = append(parts, round...)
	}
	return parts
}

// groupUpdates groups the outcomes of a part by identical update: COMPLETED outcomes with
// the same time.
func (c *settling) groupUpdates(p *settlePart, indexes []int) [][]int {
	if p.status != store.Completed {
		each := make([][]int, len(indexes))
		for k := range indexes {
			each[k] = indexes[k : k+1]
		}
		return each
	}
	var sorted [][]int
	byTime := map[int64]int{}
	for _, i := range indexes {
		at := c.outcomes[i].At.UnixMilli()
		k, known := byTime[at]
		if !known {
			k = len(sorted)
			byTime[at] = k
			sorted = append(sorted, nil)
		}
		sorted[k] = append(sorted[k], i)
	}
	return sorted
}
