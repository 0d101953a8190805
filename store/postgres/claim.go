package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/outboxes"
)

// Claim implements store.Claimer. It claims the rows of all outboxes in one round trip
// and one transaction. The time at is truncated to microseconds.
func (s *Store) Claim(ctx context.Context, epoch store.Epoch, at time.Time, rows []store.ClaimRow) ([]store.ClaimAnswer, error) {
	if len(rows) == 0 {
		return nil, nil
	}

	parts, err := s.claimParts(rows)
	if err != nil {
		return nil, fmt.Errorf("claim: %w", err)
	}

	answers := make([]store.ClaimAnswer, len(rows))
	err = s.claims.do(ctx, func(ctx context.Context, sess *session) error {
		call := &claim{s, sess, epoch, at, rows, answers}
		if time.Now().Before(sess.skipLocked) {
			return call.claimSkippingLocked(ctx, parts)
		}
		left, err := s.claimMany(ctx, sess, epoch, at, rows, parts, answers)
		if err == nil && len(left) > 0 {
			err = call.run(ctx, left, false)
		}
		if !IsLockTimeout(err) {
			return err
		}
		sess.skipLocked = time.Now().Add(skipLockedPeriod)
		clear(answers)
		return call.claimSkippingLocked(ctx, parts)
	})
	if err != nil {
		return nil, fmt.Errorf("claim: %w", asRefused(err))
	}

	for _, p := range parts {
		p.CopyDuplicates(rows, answers)
	}

	return answers, nil
}

// claim is one call of Claim.
type claim struct {
	*Store
	sess    *session
	epoch   store.Epoch
	at      time.Time
	rows    []store.ClaimRow
	answers []store.ClaimAnswer
}

// claimSkippingLocked claims the rows that are not locked.
func (c *claim) claimSkippingLocked(ctx context.Context, parts []*claimPart) error {
	boxes := make([]*store.Outbox, len(parts))
	for i, p := range parts {
		boxes[i] = p.Outbox
	}

	return c.skipLockedTx(ctx, c.sess.conn, c.epoch, false, boxes, func(locked map[string]bool) error {
		var free []*claimPart
		for _, p := range parts {
			if !locked[p.Outbox.Name] {
				free = append(free, p)
				continue
			}
			for _, i := range p.Indexes {
				c.answers[i] = store.ClaimAnswer{Result: store.TableLocked}
			}
		}
		return c.run(ctx, free, true)
	})
}

// run sends the statements of a call. With skip they run in the transaction that
// skipLockedTx has begun.
func (c *claim) run(ctx context.Context, parts []*claimPart, skip bool) error {
	batch, variant := &pgx.Batch{}, 0
	if skip {
		variant = 1
	}

	for _, p := range parts {
		t, err := c.sess.table(ctx, p.Outbox)
		if err != nil {
			return err
		}
		if t.claim[variant] == nil {
			t.claim[variant] = claimQuery(t, c.takeover > 0, skip)
		}
		values := c.fenced(c.epoch, t.values(c.name))
		p.bind(values, c.rows)
		values["at"], values["timeout"] = c.at.Truncate(time.Microsecond), c.takeover
		batch.Queue(t.claim[variant].sql, t.claim[variant].args(values)...)
	}

	if skip {
		commit(batch)
	}

	skipped, err := readClaims(c.sess.conn.SendBatch(ctx, batch), parts, c.answers)
	if skipped {
		c.sess.skipLocked = time.Now().Add(skipLockedPeriod)
	}
	return err
}

// claimPart is the rows of one outbox in a call.
type claimPart struct{ *outboxes.Part }

// claimParts groups the rows of a call by outbox.
func (s *Store) claimParts(rows []store.ClaimRow) ([]*claimPart, error) {
	sorted, err := outboxes.Split(s.outboxes, rows)
	parts := make([]*claimPart, len(sorted))
	for i, p := range sorted {
		parts[i] = &claimPart{p}
	}
	return parts, err
}

// bind sets the parameters that differ from row to row.
func (p *claimPart) bind(values map[string]any, rows []store.ClaimRow) {
	n := len(p.Indexes)
	ids, txns, wants := make([]string, n), make([]int64, n), make([]bool, n)
	owns := make([]pgtype.Timestamptz, n)
	place := map[int]int{}
	for k, i := range p.Indexes {
		row := &rows[i]
		ids[k], txns[k], wants[k] = row.ID, int64(uint32(row.Txn)), row.WantPayload
		owns[k] = timeOrNull(row.OwnClaimAt)
		if len(p.Duplicates) > 0 {
			place[i] = k
		}
	}

	for i, j := range p.Duplicates { // a duplicate may request more than the first
		k := place[j]
		wants[k] = wants[k] || rows[i].WantPayload
		if !owns[k].Valid {
			owns[k] = timeOrNull(rows[i].OwnClaimAt)
		}
	}

	values["ids"], values["txns"], values["wants"], values["owns"] = arrayLiteral(ids), txns, wants, owns
}

// readClaims reads the results of a batch, one statement per part. skipped reports
// whether a locked row was skipped.
func readClaims(results pgx.BatchResults, parts []*claimPart, answers []store.ClaimAnswer) (skipped bool, err error) {
	defer readRest(results, &err)
	for _, p := range parts {
		result, err := results.Query()
		if err != nil {
			return skipped, err
		}
		n, locked, err := p.read(result, answers)
		if err != nil {
			return skipped, err
		}
		if skipped = skipped || locked; n == 0 {
			return skipped, store.ErrNotLeader
		}
		for _, i := range p.Indexes {
			if answers[i].Result == 0 {
				return skipped, fmt.Errorf("outbox %s: no result for row %d of the call", p.Outbox.Name, i)
			}
		}
	}

	return skipped, nil
}

// read reads the results for one outbox and counts them. skipped reports whether a locked
// row was skipped.
func (p *claimPart) read(rows pgx.Rows, answers []store.ClaimAnswer) (n int, skipped bool, err error) {
	defer rows.Close()
	var (
		ord     int64
		result  int32
		wait    *float64
		retry   int64
		payload []byte
	)

	now := time.Now()
	for rows.Next() {
		if err := rows.Scan(&ord, &result, &wait, &retry, &payload); err != nil {
			return n, skipped, err
		}
		releaseMessage(rows)
		n++
		if result == skippedRow {
			skipped, result = true, int32(store.NotYetVisible)
		}
		a := &answers[p.Indexes[ord-1]]
		if a.Result == store.Claimed {
			continue // no unique id: one of the rows with this id is claimed
		}
		*a = store.ClaimAnswer{
			Result: store.ClaimResult(result), RetryCount: int(retry), Payload: payload,
			Unwritten: !p.Outbox.Layout.WritesClaims(),
		}
		if wait != nil && a.Result == store.Held {
			// The server returns a duration, because this machine's clock may differ from
			// the server's.
			a.Until = now.Add(time.Duration(*wait * float64(time.Second)))
		}
	}

	return n, skipped, rows.Err()
}
