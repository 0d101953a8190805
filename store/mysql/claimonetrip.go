package mysql

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/byoutbox"
)

// lookupFirstPeriod is how long claims look at their rows first after one that did not, and
// met a row that is not fresh: there are more of them then, as a rule.
const lookupFirstPeriod = 100 * time.Millisecond

// claimInOneTrip claims in one round trip, and reports whether it did. It answers as the way
// step by step does; rows that seem gone are left to that.
func (c *claim) claimInOneTrip(ctx context.Context, epoch store.Epoch, parts []*byoutbox.Part) (bool, error) {
	if c.noWait || c.takeover != 0 || !c.fitsPacket() {
		return false, nil
	}
	if done, err := c.claimUnread(ctx, epoch, parts); err != nil || done {
		return done, err
	}
	clear(c.answers)
	s := newScript()
	var updates []func()
	for i, p := range parts {
		s.markPart(i, len(parts))
		t, err := c.conn.table(ctx, p.Outbox)
		if err != nil {
			_ = c.conn.rollback(ctx) // of what was read for it
			return false, err
		}
		if !t.Layout.WritesClaims() {
			return false, nil
		}
		plain, full := c.partition(t, p)
		for _, of := range []struct {
			*keyBatch
			payload bool
		}{{plain, false}, {full, true}} {
			_ = of.chunks(func(chunk *keyBatch) error { // which fails nowhere
				for _, i := range chunk.at {
					c.answers[i].Result = store.Gone
				}
				s.query(t.lockText(&s.statement, chunk.keys, of.payload, false), func(rows *sql.Rows) error { return c.read(rows, t, p) })
				updates = append(updates, func() { s.add(c.claimText(&s.statement, t, chunk.keys, false)) })
				return nil
			})
		}
	}
	if len(updates) == 0 {
		return false, nil
	}
	s.fence(c.Store, epoch)
	for _, update := range updates {
		update()
	}
	done, err := c.conn.run(ctx, s)
	if err != nil || !done {
		return false, err
	}
	for i := range c.answers {
		if c.answers[i].Result == store.Gone {
			return false, nil
		}
	}
	return true, nil
}

// claimUnread claims rows without a look at them, and reports whether it did: rows of which
// the log is all that is to be known, since each of them is there, unsettled and was
// never tried. Else it takes everything back. An update passes over a row whose insert
// has not ended, and so does not find all of them either.
func (c *claim) claimUnread(ctx context.Context, epoch store.Epoch, parts []*byoutbox.Part) (bool, error) {
	tried := func(r store.ClaimRow) bool { return r.WantPayload || !r.OwnClaimAt.IsZero() }
	if time.Now().Before(c.lookupFirstUntil) || slices.ContainsFunc(c.rows, tried) {
		return false, nil
	}
	clear(c.answers)
	s := newScript()
	for i, p := range parts {
		s.markPart(i, len(parts))
		t, err := c.conn.table(ctx, p.Outbox)
		if err != nil {
			_ = c.conn.rollback(ctx) // of what was read for it
			return false, err
		}
		plain, _ := c.partition(t, p)
		if !t.Layout.WritesClaims() || !t.single || len(plain.at) < len(p.Indexes) {
			return false, nil // or two rows of one id would stand for one that is gone
		}
		_ = plain.chunks(func(chunk *keyBatch) error { // which fails nowhere
			s.write(len(chunk.at), func() string {
				return c.claimText(&s.statement, t, chunk.keys, false) + " AND " + t.retryCount() + " = 0"
			})
			for _, i := range chunk.at {
				c.answers[i] = store.ClaimAnswer{Result: store.Claimed}
			}
			return nil
		})
	}
	s.fence(c.Store, epoch)
	done, err := c.conn.run(ctx, s)
	if err == nil && !done {
		c.lookupFirstUntil = time.Now().Add(lookupFirstPeriod)
	}
	return done, err
}

// fitsPacket reports whether a claim's ids, some times in a statement, fit into a packet.
func (c *claim) fitsPacket() bool {
	const times, each = 3, 64
	size := 0
	for i := range c.rows {
		size += times * (len(c.rows[i].ID) + each)
	}
	return size < c.conn.maxScriptBytes()
}
