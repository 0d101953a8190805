package mysql

import (
	"context"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// settlePart is a set of outcomes that share their values, each id once, so that one
// statement can write them.
type settlePart struct {
	settleKey
	table *table
	keyBatch
}

type settleKey struct {
	round  int // an id's second outcome is written in the second round, and so on
	outbox string
	status store.Status
	when   time.Time
	// Written with every status except COMPLETED.
	retries int
	error   string
	reason  store.Reason
}

// parts groups the call's outcomes. Rounds keep the order of several outcomes for one id;
// the parts are in the order of their rounds.
func (c *settling) parts(ctx context.Context) ([]*settlePart, error) {
	var rounds [][]*settlePart
	byKey := map[settleKey]*settlePart{}
	count := make(map[store.Ref]int, len(c.outcomes))
	for i := range c.outcomes {
		o := &c.outcomes[i]
		t, err := c.conn.table(ctx, c.outboxes.Lookup(o.Outbox))
		if err != nil {
			return nil, err
		}

		k := settleKey{round: count[o.Ref], outbox: o.Outbox, status: o.Status, when: o.At}
		count[o.Ref]++
		if o.Status != store.Completed {
			k.retries, k.error, k.reason = o.RetryCount, o.Error, o.Reason
		}

		p := byKey[k]
		if p == nil {
			p = &settlePart{settleKey: k, table: t}
			byKey[k] = p
			if k.round == len(rounds) {
				rounds = append(rounds, nil)
			}
			rounds[k.round] = append(rounds[k.round], p)
		}

		key, valid := t.id().key(o.ID)
		if !valid {
			key = nil // no row has this id
		}
		p.add(i, key)
	}

	var parts []*settlePart
	for _, round := range rounds {
		parts = append(parts, round...)
	}

	return parts, nil
}
