package mysql

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/outboxes"
)

// lookupFirstPeriod is how long claims use the locking read first after an unread claim
// met a row that is not fresh, because more such rows usually follow.
const lookupFirstPeriod = 100 * time.Millisecond

// claimInOneTrip claims in one round trip and reports whether it did. The answers are
// those of the step-by-step claim, which also handles rows that seem gone.
func (c *claim) claimInOneTrip(ctx context.Context, epoch store.Epoch, parts []*outboxes.Part) (bool, error) {
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
			_ = c.conn.rollback(ctx) // ends the read transaction of the lookup
			return false, err
		}

		if !t.Layout.WritesClaims() {
			return false, nil
		}
		plain, full := c.partition(t, p)
		for _, batch := range []struct {
			*keyBatch
			payload bool
		}{{plain, false}, {full, true}} {
			_ = batch.chunks(func(chunk *keyBatch) error { // never fails
				for _, i := range chunk.at {
					c.answers[i].Result = store.Gone
				}
				s.query(t.lockText(&s.statement, chunk.keys, batch.payload, false), func(rows *sql.Rows) error { return c.read(rows, t, p) })
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

// claimUnread claims rows without the locking read and reports whether it did. It applies
// to rows that the binlog describes fully: each exists, is unsettled and was never tried.
// If the UPDATE does not find all of them, for example because an insert has not
// committed, it rolls back.
func (c *claim) claimUnread(ctx context.Context, epoch store.Epoch, parts []*outboxes.Part) (bool, error) {
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
			_ = c.conn.rollback(ctx) // ends the read transaction of the lookup
			return false, err
		}

		plain, _ := c.partition(t, p)
		if !t.Layout.WritesClaims() || !t.single || len(plain.at) < len(p.Indexes) {
			return false, nil // otherwise two rows with one id could make up for a missing row
		}

		_ = plain.chunks(func(chunk *keyBatch) error { // never fails
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

// fitsPacket reports whether the claim's ids, repeated up to three times in a script, fit
// into a packet.
func (c *claim) fitsPacket() bool {
	const times, each = 3, 64
	size := 0
	for i := range c.rows {
		size += times * (len(c.rows[i].ID) + each)
	}
	return size < c.conn.maxScriptBytes()
}
