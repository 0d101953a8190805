package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
	"github.com/sluicebox/sluicebox/store/internal/outboxes"
)

const (
	// noWaitPeriod is how long a session's calls wait for no row lock after the last
	// locked row: a session that keeps rows locked, for example in a forgotten
	// transaction, must not stop the other rows. Claims report a locked row as not yet
	// visible.
	noWaitPeriod = 10 * time.Second
	// maxClaimTries limits how often a claim starts over because a row changed under it.
	maxClaimTries = 5
)

// Claim implements store.Claimer. It claims the rows of all outboxes in one transaction,
// and truncates at to the precision of the column.
//
// It locks the rows first, which waits for transactions that are inserting or changing
// them, and then the leader row. An UPDATE alone would skip rows whose insert has not
// committed, so a claim without the locking read counts only if the UPDATE found every
// row.
func (s *Store) Claim(ctx context.Context, epoch store.Epoch, at time.Time, rows []store.ClaimRow) ([]store.ClaimAnswer, error) {
	if len(rows) == 0 {
		return nil, nil
	}
	parts, err := outboxes.Split(s.outboxes, rows)
	if err != nil {
		return nil, fmt.Errorf("claim: %w", err)
	}

	answers := make([]store.ClaimAnswer, len(rows))
	err = s.claims.do(ctx, func(ctx context.Context, c *conn) error {
		call := &claim{Store: s, conn: c, at: at, rows: rows, answers: answers}
		return call.claimUnlocked(ctx, epoch, parts)
	})
	if err != nil {
		return nil, fmt.Errorf("claim: %w", asRefused(err))
	}

	for _, p := range parts {
		p.CopyDuplicates(rows, answers)
	}

	return answers, nil
}

// claimUnlocked claims the rows of tables that no session has locked, and answers
// TableLocked for the rows of the others.
func (c *claim) claimUnlocked(ctx context.Context, epoch store.Epoch, parts []*outboxes.Part) error {
	var locked []*outboxes.Part
	for tries := 0; len(parts) > 0; {
		start := time.Now()
		c.noWait = start.Before(c.claims.noWaitUntil)
		err := c.run(ctx, epoch, parts)
		switch {
		case isLockTimeout(err) && c.noWait: // a table lock: with NOWAIT no row lock returns this error
			return err
		case isLockTimeout(err) && time.Since(start) < minTableWait:
			i, err := c.lockedPart(ctx, parts)
			if err != nil {
				return err
			}
			locked = append(locked, parts[i])
			parts = slices.Concat(parts[:i], parts[i+1:])
			continue
		case isLockTimeout(err):
			c.claims.noWaitUntil = time.Now().Add(noWaitPeriod)
		case err != nil && !errors.Is(err, errRowChanged):
			return err
		case err == nil:
			parts = nil
			continue
		}

		if tries++; tries == maxClaimTries {
			return &store.RefusedError{Err: errors.New("concurrent updates kept changing the rows, or a trigger undid the update; retries exhausted")}
		}
	}

	for _, p := range locked {
		c.tableIsLocked(p)
	}

	return nil
}

// errRowChanged makes a call start over. Either a row that the transaction had locked was
// not written, because the server rolled back more than one statement or a trigger
// prevents the change, or the table was altered since the session looked it up.
var errRowChanged = errors.New("row or its table changed during the call")

// claim is one call of Claim.
type claim struct {
	*Store
	conn      *conn
	at        time.Time
	noWait    bool // wait for no row lock
	partIndex int  // index of the part in progress when parts run step by step; -1 in a script
	rows      []store.ClaimRow
	answers   []store.ClaimAnswer
}

func (c *claim) run(ctx context.Context, epoch store.Epoch, parts []*outboxes.Part) error {
	c.partIndex = -1
	if done, err := c.claimInOneTrip(ctx, epoch, parts); err != nil || done {
		return err
	}

	all := parts
	return c.conn.tx(ctx, func() (err error) {
		clear(c.answers)
		parts := all
		if c.noWait {
			if parts, err = c.lockedTables(ctx, all); err != nil {
				return err
			}
		}

		for c.partIndex = range parts {
			if err := c.answerPart(ctx, parts[c.partIndex]); err != nil {
				return err
			}
		}

		if err := c.checkEpoch(ctx, c.conn, epoch); err != nil {
			return err
		}
		for _, p := range parts { // their tables are locked by now
			if err := c.writeClaims(ctx, c.conn.tables[p.Outbox.Name], p); err != nil {
				return err
			}
		}

		return nil
	})
}

// answerPart locks the rows of one outbox and answers for each. It returns errRowChanged
// if rows seem gone and the table was altered.
func (c *claim) answerPart(ctx context.Context, p *outboxes.Part) error {
	t, err := c.conn.table(ctx, p.Outbox)
	if err != nil {
		return err
	}

	err = c.lockPart(ctx, t, p)
	gone := func(i int) bool { return c.answers[i].Result == store.Gone }
	if err != nil || !slices.ContainsFunc(p.Indexes, gone) {
		return err
	}

	altered, err := c.conn.tableAltered(ctx, p.Outbox)
	if altered {
		return errRowChanged
	}
	return err
}

// lockPart locks the rows of one outbox that need a lookup, and answers for each.
func (c *claim) lockPart(ctx context.Context, t *table, p *outboxes.Part) error {
	plain, full := c.partition(t, p)
	if err := c.lockRows(ctx, t, p, plain, false); err != nil {
		return err
	}
	return c.lockRows(ctx, t, p, full, true)
}

// partition returns the rows of one outbox that need a lookup, without and with a
// payload, and answers for all others.
func (c *claim) partition(t *table, p *outboxes.Part) (plain, full *keyBatch) {
	plain, full = &keyBatch{}, &keyBatch{}
	wantsPayload := make(map[int]bool, len(p.Duplicates)) // of two requests for one id, only one may want the payload
	for i, j := range p.Duplicates {
		wantsPayload[j] = wantsPayload[j] || c.rows[i].WantPayload
	}

	id := t.id()
	for _, i := range p.Indexes {
		row := &c.rows[i]
		wantPayload := row.WantPayload || wantsPayload[i]
		key, valid := id.key(row.ID)
		switch {
		case !t.needsLookup(wantPayload, row.Txn):
			c.answers[i] = store.ClaimAnswer{Result: store.Claimed, Unwritten: true} // the binlog row is sufficient
		case !valid:
			c.answers[i].Result = store.Gone
		case wantPayload:
			full.add(i, key)
		default:
			plain.add(i, key)
		}
	}

	return plain, full
}

// needsLookup reports whether a claim must read the row. Where claims are not written, a
// row of the binlog needs no read; a row that was read from the table does, because it
// may have been settled since.
func (t *table) needsLookup(wantPayload bool, txn store.Txn) bool {
	switch {
	case t.Layout.LogOnly():
		return wantPayload
	case t.Layout.Unclaimed:
		return wantPayload || txn == 0
	}
	return true
}

// keyBatch is a set of rows to look up: their indexes in the call, and their keys.
type keyBatch struct {
	at   []int
	keys []any
}

func (b *keyBatch) add(at int, key any) {
	b.at, b.keys = append(b.at, at), append(b.keys, key)
}

// chunks calls each with at most maxKeys rows at a time.
func (b *keyBatch) chunks(each func(*keyBatch) error) error { return b.chunksOf(maxKeys, each) }

func (b *keyBatch) chunksOf(size int, each func(*keyBatch) error) error {
	for from := 0; from < len(b.at); from += size {
		to := min(from+size, len(b.at))
		if err := each(&keyBatch{b.at[from:to], b.keys[from:to]}); err != nil {
			return err
		}
	}
	return nil
}

// lockRows locks rows and answers for each. With noWait set, a statement that meets a
// lock is split until the locked row is alone.
func (c *claim) lockRows(ctx context.Context, t *table, p *outboxes.Part, batch *keyBatch, payload bool) error {
	return batch.chunks(func(chunk *keyBatch) error {
		return c.lockChunk(ctx, t, p, chunk, payload)
	})
}

func (c *claim) lockChunk(ctx context.Context, t *table, p *outboxes.Part, chunk *keyBatch, payload bool) error {
	for _, i := range chunk.at {
		c.answers[i].Result = store.Gone
	}

	s := &statement{}
	row := t.newLockedRow()
	text := row.lockText(s, chunk.keys, payload, c.takeover != 0)
	if c.noWait {
		text += " NOWAIT"
	}

	err := c.conn.query(ctx, text, s.args, func(rows *sql.Rows) error { return c.read(rows, row, p) })
	switch {
	case !c.noWait || !isLockTimeout(err):
		return err
	case len(chunk.at) == 1:
		c.claims.noWaitUntil = time.Now().Add(noWaitPeriod)
		c.answers[chunk.at[0]] = store.ClaimAnswer{Result: store.NotYetVisible}
		return nil
	}

	half := len(chunk.at) / 2
	if err := c.lockChunk(ctx, t, p, &keyBatch{chunk.at[:half], chunk.keys[:half]}, payload); err != nil {
		return err
	}
	return c.lockChunk(ctx, t, p, &keyBatch{chunk.at[half:], chunk.keys[half:]}, payload)
}

// lockedRow reads the rows that a claim locks: whether the row is unsettled, whether it is
// pending, the time in its claim column, and by how many microseconds that is in the past.
type lockedRow struct {
	*rowReader
	open, pending bool
	claimed       sql.NullString
	age           sql.NullInt64
}

func (t *table) newLockedRow() *lockedRow { return &lockedRow{rowReader: t.newRowReader()} }

// lockText returns the statement that locks rows. It reads the times if held is set, and the
// content if payload is set.
func (r *lockedRow) lockText(s *statement, keys []any, payload, held bool) string {
	t := r.table
	c := &t.Layout.Columns
	r.add(t.open(s)+" IS TRUE", &r.open)
	r.add(t.retryCount(), &r.retries)
	r.add(t.state(s).Pending()+" IS TRUE", &r.pending)
	if held && c.Claimed != "" && t.Layout.State != store.StateNone {
		claimed := "o." + Ident(c.Claimed)
		r.add(claimed, &r.claimed)
		r.add("TIMESTAMPDIFF(MICROSECOND, "+claimed+", UTC_TIMESTAMP(6))", &r.age)
	}
	if payload {
		r.addContent(nil)
	}
	return "SELECT " + r.list() + "\nFROM " + t.from() + "\nWHERE " + t.idIn(s, keys) + "\nFOR UPDATE"
}

// read answers for one row. It ignores a row that is not in the call: a collation may
// match it to another row's key.
func (c *claim) read(rows *sql.Rows, row *lockedRow, p *outboxes.Part) error {
	if err := row.scan(rows); err != nil {
		return err
	}
	i, requested := p.FirstIndex[row.id.String]
	if !requested || c.answers[i].Result == store.Claimed { // without a unique id, one claimable row is enough
		return nil
	}

	a := &c.answers[i]
	until := c.heldUntil(row, p, i)
	switch {
	case !row.open:
		a.Result = store.AlreadySettled
	case !until.IsZero():
		a.Result, a.Until = store.Held, until
	default:
		*a = store.ClaimAnswer{Result: store.Claimed, RetryCount: row.retries, Unwritten: !row.table.Layout.WritesClaims()}
		if row.readsContent {
			a.Payload, a.Attributes = row.content()
		}
	}

	return nil
}

// heldUntil returns when another processor's claim of a row expires; zero if none holds
// it. A claim without a time holds nothing, because nobody could say when it expires. The
// server measures the time, since its clock may differ from the relay's.
func (c *claim) heldUntil(row *lockedRow, p *outboxes.Part, i int) time.Time {
	if c.takeover == 0 || row.pending || !row.claimed.Valid || !row.age.Valid {
		return time.Time{}
	}
	at, ok := readTime(row.claimed.String)
	remaining := -time.Duration(row.age.Int64) * time.Microsecond
	if !row.table.Layout.Lease {
		remaining += c.takeover
	}
	if !ok || remaining <= 0 || c.isOwnClaim(row.table, p, i, at) {
		return time.Time{}
	}
	return time.Now().Add(remaining)
}

// isOwnClaim reports whether the leader itself wrote the time at.
func (c *claim) isOwnClaim(t *table, p *outboxes.Part, i int, at time.Time) bool {
	col := t.MustColumn(t.Layout.Columns.Claimed)
	same := func(i int) bool {
		own := columns.ClaimTime(&t.Layout, c.rows[i].OwnClaimAt, c.takeover)
		return !own.IsZero() && col.truncateTime(own).Equal(at)
	}

	if same(i) {
		return true
	}
	for other, first := range p.Duplicates {
		if first == i && same(other) {
			return true
		}
	}

	return false
}

// writeClaims writes the claims of one outbox.
func (c *claim) writeClaims(ctx context.Context, t *table, p *outboxes.Part) error {
	if !t.Layout.WritesClaims() {
		return nil
	}
	var batch keyBatch
	id := t.id()
	for _, i := range p.Indexes {
		if c.answers[i].Result == store.Claimed {
			key, _ := id.key(c.rows[i].ID) // it found the row, so it is valid
			batch.add(i, key)
		}
	}

	return batch.chunks(func(chunk *keyBatch) error {
		s := &statement{}
		n, err := c.conn.exec(ctx, c.claimText(s, t, chunk.keys, true), s.args...)
		if err == nil && n < int64(len(chunk.at)) {
			return errRowChanged
		}
		return err
	})
}

// claimText returns the statement that writes claims. seen means that the transaction has
// locked rows with exactly these ids.
func (c *claim) claimText(s *statement, t *table, keys []any, seen bool) string {
	text := "UPDATE " + t.from() + " SET " + t.assign(s, columns.Claim(&t.Layout), func(col column, a columns.Assignment) any {
		if a.Value == columns.Status {
			return t.status(store.Processing)
		}
		return col.time(columns.ClaimTime(&t.Layout, c.at, c.takeover))
	}) + "\nWHERE "
	if seen {
		text += t.lockedIDIn(s, keys)
	} else {
		text += t.idExactlyIn(s, keys)
	}
	return text + " AND " + t.open(s)
}

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
				row := t.newLockedRow()
				s.query(row.lockText(&s.statement, chunk.keys, batch.payload, false), func(rows *sql.Rows) error { return c.read(rows, row, p) })
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
	if time.Now().Before(c.claims.lookupFirstUntil) || slices.ContainsFunc(c.rows, tried) {
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
		c.claims.lookupFirstUntil = time.Now().Add(lookupFirstPeriod)
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
