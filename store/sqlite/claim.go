package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
)

// claimTimeout is the time a claim waits for the write lock.
const claimTimeout = 250 * time.Millisecond

// Claim implements store.Claimer. It claims all rows of a call in one transaction, and
// truncates at to milliseconds. If another connection holds the write lock for longer than
// claimTimeout, the answer for every row is NotYetVisible.
func (s *Store) Claim(ctx context.Context, epoch store.Epoch, at time.Time, rows []store.ClaimRow) ([]store.ClaimAnswer, error) {
	if len(rows) == 0 {
		return nil, nil
	}
	for i := range rows {
		if _, err := s.outbox(rows[i].Outbox); err != nil {
			return nil, fmt.Errorf("claim: %w", err)
		}
	}

	answers := make([]store.ClaimAnswer, len(rows))
	c := claims{Store: s, at: at.Truncate(time.Millisecond)}
	err := s.writer.do(ctx, func(ctx context.Context) error {
		err := s.writer.runAsLeader(ctx, epoch, Normal, claimTimeout, func(ctx context.Context) (err error) {
			c.now = time.Now()
			for i := range rows {
				if answers[i], err = c.claim(ctx, &rows[i]); err != nil {
					return err
				}
			}
			return nil
		})
		if !IsLocked(err) {
			return err
		}
		for i := range answers {
			answers[i] = store.ClaimAnswer{Result: store.NotYetVisible}
		}
		return s.writer.checkEpoch(ctx, epoch)
	})
	if err != nil {
		return nil, fmt.Errorf("claim: %w", asRefused(err))
	}
	return answers, nil
}

// claims is the state of one call of Claim, in its transaction.
type claims struct {
	*Store
	at, now time.Time
}

func (c *claims) claim(ctx context.Context, row *store.ClaimRow) (store.ClaimAnswer, error) {
	t, err := c.writer.table(ctx, c.outboxes.Lookup(row.Outbox))
	if err != nil {
		return store.ClaimAnswer{}, err
	}
	if t.claim == nil {
		t.claim, t.readRow = claimQuery(t), readRowQuery(t)
	}
	if t.Layout.State == store.StateNone && !row.WantPayload {
		return store.ClaimAnswer{Result: store.Claimed, Unwritten: true}, nil // the captured row is sufficient
	}
	v := &values{wants: row.WantPayload, at: c.at}
	for _, v.key = range t.keys(row.ID) {
		answer, err := c.claimKey(ctx, t, row, v)
		if err != nil || answer.Result != store.Gone {
			return answer, err
		}
	}
	return store.ClaimAnswer{Result: store.Gone}, nil
}

// claimKey claims the row with the id v.key.
func (c *claims) claimKey(ctx context.Context, t *table, row *store.ClaimRow, v *values) (store.ClaimAnswer, error) {
	if c.takeover == 0 && t.Layout.WritesClaims() {
		// Most rows are not held: one statement claims them.
		if answer, err := c.update(ctx, t, v); err != nil || answer.Result == store.Claimed {
			return answer, err
		}
	}

	answer := store.ClaimAnswer{Result: store.Gone}
	err := c.writer.conn.Query(ctx, t.readRow.sql, t.readRow.args(v), func(found []driver.Value) error {
		switch held := c.heldUntil(found[2], found[3], row); {
		case found[0] != int64(1):
			answer.Result = store.AlreadySettled
		case !held.IsZero():
			answer.Result, answer.Until = store.Held, held
		default:
			answer = claimedAnswer(found[1], found[4])
			answer.Unwritten = !t.Layout.WritesClaims()
		}
		return StopIteration()
	})
	if err == nil && answer.Result == store.Claimed && t.Layout.WritesClaims() {
		if answer, err = c.update(ctx, t, v); err == nil && answer.Result != store.Claimed {
			err = unchangedError(row.Ref)
		}
	}
	return answer, err
}

// unchangedError reports a row that a statement did not change although it matches. A
// trigger on the table ignores the update.
func unchangedError(ref store.Ref) error {
	return &store.RefusedError{Err: fmt.Errorf("row %q of outbox %s: update had no effect; check triggers on the table", ref.ID, ref.Outbox)}
}

// update updates the row with the id v.key.
func (c *claims) update(ctx context.Context, t *table, v *values) (answer store.ClaimAnswer, err error) {
	err = c.writer.conn.Query(ctx, t.claim.sql, t.claim.args(v), func(row []driver.Value) error {
		answer = claimedAnswer(row[0], row[1]) // a table without a unique id: one of its rows
		return nil
	})
	return answer, err
}

func claimedAnswer(retries, payload driver.Value) store.ClaimAnswer {
	n, _ := retries.(int64)
	return store.ClaimAnswer{Result: store.Claimed, RetryCount: int(n), Payload: bytesOf(payload)}
}

// heldUntil returns the end of another processor's claim on a row, zero if there is none. A
// claim without a time holds nothing, because it would never end.
func (c *claims) heldUntil(pending, claimedAt driver.Value, row *store.ClaimRow) time.Time {
	at, ok := readTime(claimedAt)
	if c.takeover == 0 || pending == int64(1) || !ok || at.Equal(row.OwnClaimAt.Truncate(time.Millisecond)) {
		return time.Time{}
	}
	if until := at.Add(c.takeover); until.After(c.now) {
		return until
	}
	return time.Time{}
}

// claimQuery builds the statement that claims a row and returns its retry count and payload.
// It is nil if a claim writes nothing.
func claimQuery(t *table) *query {
	if !t.Layout.WritesClaims() {
		return nil
	}
	b := &builder{}
	var set []string
	for _, a := range columns.Claim(&t.Layout) {
		if a.Value == columns.Status {
			set = append(set, Ident(a.Column)+" = "+b.status(&t.Layout, store.Processing))
			continue
		}
		claimed := t.mustColumn(a.Column)
		set = append(set, Ident(a.Column)+" = "+b.arg(func(v *values) any { return timeValue(claimed, v.at) }))
	}
	sql := "UPDATE " + TableName(t.Outbox) + " SET " + strings.Join(set, ", ") +
		"\nWHERE " + Ident(t.Layout.Columns.ID) + " = " + b.key() + " AND " + t.unsettled(b) +
		"\nRETURNING " + t.retryCount() + ", " + t.wanted(b)
	return &query{sql, b.params}
}

// readRowQuery builds the statement that reads a row. Its columns: whether the row is
// unsettled, its retry count, whether it is pending, the time of its claim, its payload.
func readRowQuery(t *table) *query {
	b := &builder{}
	c := &t.Layout.Columns
	open := t.unsettled(b)
	pending, claimed := "0", "NULL"
	if t.Layout.State == store.StateWords || t.Layout.State == store.StateNumbers {
		pending = Ident(c.Status) + " = " + b.status(&t.Layout, store.Pending)
	}
	if c.Claimed != "" && t.Layout.State != store.StateNone {
		claimed = "+" + Ident(c.Claimed) // the plus prevents the driver from parsing it as a time
	}
	sql := "SELECT (" + open + ") IS TRUE AS open, " + t.retryCount() + ", (" + pending + ") IS TRUE, " + claimed + ", " + t.wanted(b) +
		"\nFROM " + TableName(t.Outbox) + " WHERE " + Ident(c.ID) + " = " + b.key() +
		"\nORDER BY open DESC LIMIT 1"
	return &query{sql, b.params}
}

func (t *table) wanted(b *builder) string {
	return "CASE WHEN " + b.arg(func(v *values) any { return v.wants }) + " THEN " + PayloadOf(Ident(t.Layout.Columns.Payload)) + " END"
}

// bytesOf returns the bytes of a payload, nil for NULL.
func bytesOf(v driver.Value) []byte {
	switch x := v.(type) {
	case []byte:
		return x
	case string:
		return append(make([]byte, 0, len(x)), x...)
	}
	return nil
}
