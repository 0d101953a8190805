package postgres

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
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
		values := c.fenced(c.epoch)
		p.bind(values, c.rows, c.takeover)
		values["at"], values["timeout"] = columns.ClaimTime(&t.Layout, c.at, c.takeover).Truncate(time.Microsecond), c.takeover
		batch.Queue(t.claim[variant].sql, t.claim[variant].args(values)...)
	}

	if skip {
		batch.Queue("COMMIT")
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
func (p *claimPart) bind(values map[string]any, rows []store.ClaimRow, takeover time.Duration) {
	n := len(p.Indexes)
	ids, txns, wants := make([]string, n), make([]int64, n), make([]bool, n)
	owns := make([]pgtype.Timestamptz, n)
	place := map[int]int{}
	for k, i := range p.Indexes {
		row := &rows[i]
		ids[k], txns[k], wants[k] = row.ID, int64(uint32(row.Txn)), row.WantPayload
		owns[k] = timeOrNull(columns.ClaimTime(&p.Outbox.Layout, row.OwnClaimAt, takeover))
		if len(p.Duplicates) > 0 {
			place[i] = k
		}
	}

	for i, j := range p.Duplicates { // a duplicate may request more than the first
		k := place[j]
		wants[k] = wants[k] || rows[i].WantPayload
		if !owns[k].Valid {
			owns[k] = timeOrNull(columns.ClaimTime(&p.Outbox.Layout, rows[i].OwnClaimAt, takeover))
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
		texts   []*string // of the attributes
	)
	into := []any{&ord, &result, &wait, &retry, &payload}
	hasAttributes := len(p.Outbox.Layout.Attributes) > 0
	if hasAttributes {
		into = append(into, &texts)
	}

	now := time.Now()
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
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
		if hasAttributes {
			a.Attributes = readAttributes(&p.Outbox.Layout, texts)
		}
		if wait != nil && a.Result == store.Held {
			// The server returns a duration, because this machine's clock may differ from
			// the server's.
			a.Until = now.Add(time.Duration(*wait * float64(time.Second)))
		}
	}

	return n, skipped, rows.Err()
}

// claimQuery returns the statement that claims rows of a table. It returns one row per
// id: the row's index in the call, a store.ClaimResult, the seconds that a held row stays
// held, the retry count and the payload. No row at all means that the epoch is stale.
//
// All parts of the statement share one snapshot, so the result for a row that was not
// updated was true when the statement looked it up.
//
// With skip, the statement skips rows locked by another session.
func claimQuery(t *table, timeout, skip bool) *query {
	b := &builder{}
	if !t.Layout.WritesClaims() {
		return b.query(
			"WITH "+b.leader()+",", snapshotCTE+",", b.wanted(t, false),
			"SELECT w.ord, "+t.unwritten()+", NULL::float8, coalesce(o.retry, 0), o.payload"+t.ifAttributes(", o.attributes"),
			"FROM leader CROSS JOIN snap CROSS JOIN want w",
			t.lookup(b, "NULL::float8", t.needsRow()),
		)
	}

	free, wait := "true", "NULL::float8"
	if timeout {
		free, wait = t.claimableCondition(b), t.remainingClaimSeconds(b)
	}

	leader, wanted := b.leader(), b.wanted(t, timeout)
	id := Ident(t.Layout.Columns.ID)
	locked, ours := "", ""
	if skip {
		locked = "locked AS MATERIALIZED (\n  SELECT w.ord FROM want w, " + TableName(t.Outbox) + " AS o WHERE o." + id +
			" = w.id AND EXISTS (SELECT FROM leader) FOR NO KEY UPDATE OF o SKIP LOCKED\n),"
		ours = " AND (w.ord IN (SELECT ord FROM locked)) IS TRUE" // a hashed subplan too
	}
	return b.query(
		"WITH "+leader+",", snapshotCTE+",", wanted+",", locked,
		"claimed AS (",
		"  UPDATE "+TableName(t.Outbox)+" AS o SET "+t.claimAssignments(b),
		"  FROM want w",
		"  WHERE o."+id+" = w.id AND "+t.open(b)+" AND "+free,
		"    AND EXISTS (SELECT FROM leader)"+ours,
		"  RETURNING w.ord, "+t.retryCount()+" AS retry, CASE WHEN w.wants THEN "+t.payload()+" END AS payload"+
			t.ifAttributes(", CASE WHEN w.wants THEN "+t.attributes()+" END AS attributes"),
		")",
		fmt.Sprintf("SELECT ord, %d, NULL::float8, retry, payload%s FROM claimed", store.Claimed, t.ifAttributes(", attributes")),
		"UNION ALL",
		"SELECT w.ord, "+t.unclaimed(timeout, skip)+", o.wait, 0, NULL"+t.ifAttributes(", NULL"),
		"FROM leader CROSS JOIN snap CROSS JOIN want w",
		t.lookup(b, wait, "true"),
		// A hashed subplan: linear time, although hash joins are off.
		"WHERE w.ord NOT IN (SELECT ord FROM claimed)",
	)
}

// snapshotCTE is the statement's own snapshot and its xmax, computed once.
const snapshotCTE = `snap AS MATERIALIZED (
  SELECT s, pg_catalog.pg_snapshot_xmax(s)::text::bigint AS xmax FROM pg_catalog.pg_current_snapshot() AS s
)`

// fullXid is the 64-bit number of a wanted row's transaction. The log has its low 32
// bits. The full number lies within 2^31 of the snapshot's xmax, on either side, because
// the log may be ahead of the snapshot. Taking the largest number below xmax instead
// would move a new transaction 2^32 into the past, and its row would count as gone.
const fullXid = `greatest(0, snap.xmax + CASE
    WHEN (w.txn - snap.xmax) & 4294967295 < 2147483648 THEN (w.txn - snap.xmax) & 4294967295
    ELSE ((w.txn - snap.xmax) & 4294967295) - 4294967296 END)`

// visible is true if the transaction of a wanted row is visible.
const visible = `pg_catalog.pg_visible_in_snapshot(
  ` + fullXid + `::text::xid8, snap.s)`

// wanted returns the CTE of the rows to claim.
func (b *builder) wanted(t *table, own bool) string {
	typ := t.MustColumn(t.Layout.Columns.ID).typ
	params := []string{b.arg("ids", typ+"[]"), b.arg("txns", "bigint[]"), b.arg("wants", "boolean[]")}
	columns := "id, txn, wants"
	if own {
		params = append(params, b.arg("owns", "timestamptz[]"))
		columns += ", own"
	}
	return "want AS MATERIALIZED (\n  SELECT * FROM unnest(" + strings.Join(params, ", ") +
		") WITH ORDINALITY AS u(" + columns + ", ord)\n)"
}

func (t *table) claimAssignments(b *builder) string {
	return columns.SetList(columns.Claim(&t.Layout), ident, func(a columns.Assignment) string {
		if a.Value == columns.Time || a.Value == columns.LeaseEnd { // the call binds the one that the layout keeps
			return b.arg("at", "timestamptz")
		}
		return t.bindStatus(b, columns.Stored(&t.Layout, store.Processing))
	})
}

// claimableCondition is the condition that no other program's claim holds an unsettled
// row o. A claim without a time holds nothing, because it would never expire.
func (t *table) claimableCondition(b *builder) string {
	c := &t.Layout.Columns
	claimed := "o." + Ident(c.Claimed)
	// The relay's own claim time is compared after the column's rounding. Times are
	// compared as timestamptz: on a local clock one hour occurs twice a year.
	over := "statement_timestamp()"
	if !t.Layout.Lease {
		over += " - " + b.arg("timeout", "interval")
	}
	cond := fmt.Sprintf("%s IS NULL OR %s::timestamptz <= %s OR %s = w.own::%s",
		claimed, claimed, over, claimed, t.MustColumn(c.Claimed).full)
	return "(" + t.state(b).Pending() + " OR " + cond + ") IS TRUE"
}

// remainingClaimSeconds is the number of seconds for which another program's claim still
// holds a row o, NULL if none does.
func (t *table) remainingClaimSeconds(b *builder) string {
	end := "o." + Ident(t.Layout.Columns.Claimed) + "::timestamptz"
	if !t.Layout.Lease {
		end += " + " + b.arg("timeout", "interval")
	}
	return fmt.Sprintf("CASE WHEN NOT (%s) THEN extract(epoch FROM %s - statement_timestamp())::float8 END", t.claimableCondition(b), end)
}

// ifAttributes returns a part of a statement if the layout has attributes.
func (t *table) ifAttributes(part string) string {
	if len(t.Layout.Attributes) == 0 {
		return ""
	}
	return part
}

func (t *table) retryCount() string {
	if t.Layout.Columns.RetryCount == "" {
		return "0::bigint"
	}
	return "coalesce(o." + Ident(t.Layout.Columns.RetryCount) + ", 0)::bigint"
}

// lookup joins each wanted row as the snapshot shows it. OFFSET 0 keeps it a lookup by id
// per row: pulled up, it could become another kind of join.
func (t *table) lookup(b *builder, wait, when string) string {
	retry, payload, attributes := "NULL::bigint", "NULL", ""
	if !t.Layout.WritesClaims() {
		wanted := "CASE WHEN w.wants AND " + t.open(b) + " THEN "
		payload = wanted + t.payload() + " END"
		attributes = t.ifAttributes(", " + wanted + t.attributes() + " END AS attributes")
		if t.Layout.State != store.StateNone {
			retry = t.retryCount()
		}
	}
	return "LEFT JOIN LATERAL (\n  SELECT true AS found, " + t.open(b) + " AS open, " + wait + " AS wait, " +
		retry + " AS retry, " + payload + " AS payload" + attributes + "\n" +
		"  FROM " + TableName(t.Outbox) + " AS o WHERE o." + Ident(t.Layout.Columns.ID) + " = w.id AND " + when +
		" OFFSET 0\n) o ON true"
}

// absentResult is the result for a row that the snapshot does not show. Txn 0 means that
// the source read the row from the table itself.
func absentResult() string {
	return fmt.Sprintf("CASE WHEN w.txn = 0 THEN %d WHEN %s THEN %d ELSE %d END",
		store.Gone, visible, store.Gone, store.NotYetVisible)
}

// skippedRow is the result of a statement with skip for a locked row.
const skippedRow = 0

// unclaimed is the result for a row that the statement did not update.
func (t *table) unclaimed(timeout, skip bool) string {
	held, left := "", int(store.NotYetVisible)
	if skip {
		left = skippedRow
	}
	if timeout {
		held = fmt.Sprintf(" WHEN o.wait IS NOT NULL THEN %d", store.Held)
	}
	// Open and free when the statement began, but not updated: another session changed or
	// deleted it meanwhile. A new statement sees the change.
	return fmt.Sprintf("CASE WHEN o.found IS NULL THEN %s WHEN NOT o.open THEN %d%s ELSE %d END",
		absentResult(), store.AlreadySettled, held, left)
}

// needsRow is the condition under which a claim without a write reads the row:
//
//   - Only the log has a state: only if the payload is wanted.
//   - Claims not written: also for a row read from the table, because it may have been
//     settled since. A row from the log needs no read.
//   - Otherwise always.
func (t *table) needsRow() string {
	switch {
	case t.Layout.LogOnly():
		return "w.wants"
	case t.Layout.Unclaimed:
		return "(w.wants OR w.txn = 0)"
	}
	return "true"
}

// unwritten is the result for a row where claims write nothing.
func (t *table) unwritten() string {
	return fmt.Sprintf("CASE WHEN NOT (%s) THEN %d WHEN o.found IS NULL THEN %s WHEN NOT o.open THEN %d ELSE %d END",
		t.needsRow(), store.Claimed, absentResult(), store.AlreadySettled, store.Claimed)
}
