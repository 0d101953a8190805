package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"strconv"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
)

const (
	// claimTimeout is the time a claim waits for the write lock.
	claimTimeout = 250 * time.Millisecond
	// maxReturned is the largest payload in bytes that the claiming statement returns.
	// RETURNING copies its rows into a temporary table, in memory: a large payload cost five
	// times its size there, and costs twice its size in a SELECT of its own.
	maxReturned = 256 << 10
)

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
		t.claim, t.readRow, t.readPayload = claimQuery(t), readRowQuery(t), readPayloadQuery(t)
	}
	if t.Layout.LogOnly() && !row.WantPayload {
		return store.ClaimAnswer{Result: store.Claimed, Unwritten: true}, nil // the captured row is sufficient
	}
	v := &values{wants: row.WantPayload, at: columns.ClaimTime(&t.Layout, c.at, c.takeover)}
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
	writes := t.Layout.WritesClaims()
	if c.takeover == 0 && writes {
		// Most rows are not held: one statement claims them.
		if answer, err := c.update(ctx, t, v); err != nil || answer.Result == store.Claimed {
			return answer, err
		}
	}

	answer := store.ClaimAnswer{Result: store.Gone}
	err := c.writer.conn.Query(ctx, t.readRow.sql, t.readRow.args(v), func(found []driver.Value) error {
		retries, _ := found[1].(int64)
		switch held := c.heldUntil(t, found[2], found[3], row); {
		case found[0] != int64(1):
			answer.Result = store.AlreadySettled
		case !held.IsZero():
			answer.Result, answer.Until = store.Held, held
		default:
			answer = store.ClaimAnswer{Result: store.Claimed, RetryCount: int(retries), Unwritten: !writes}
		}
		return StopIteration()
	})
	if err != nil || answer.Result != store.Claimed {
		return answer, err
	}
	if !writes {
		return answer, c.readPayload(ctx, t, v, &answer)
	}
	if answer, err = c.update(ctx, t, v); err == nil && answer.Result != store.Claimed {
		err = unchangedError(row.Ref)
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
		retries, _ := row[0].(int64)
		// A table without a unique id: one of its rows.
		answer = store.ClaimAnswer{Result: store.Claimed, RetryCount: int(retries), Payload: BytesOf(row[1])}
		answer.Attributes, err = ReadAttributes(&t.Layout, row[2])
		return err
	})
	if err == nil && answer.Result == store.Claimed && answer.Payload == nil {
		err = c.readPayload(ctx, t, v, &answer)
	}
	return answer, err
}

// readPayload adds the content to the answer of a row that was claimed, if it is wanted.
func (c *claims) readPayload(ctx context.Context, t *table, v *values, answer *store.ClaimAnswer) error {
	if !v.wants {
		return nil
	}
	return c.writer.conn.Query(ctx, t.readPayload.sql, t.readPayload.args(v), func(row []driver.Value) (err error) {
		answer.Payload = BytesOf(row[0])
		if answer.Attributes, err = ReadAttributes(&t.Layout, row[1]); err != nil {
			return err
		}
		return StopIteration()
	})
}

// heldUntil returns the end of another processor's claim on a row, zero if there is none. A
// claim without a time holds nothing, because it would never end.
func (c *claims) heldUntil(t *table, pending, claimedAt driver.Value, row *store.ClaimRow) time.Time {
	at, ok := readTime(claimedAt)
	own := columns.ClaimTime(&t.Layout, row.OwnClaimAt, c.takeover)
	if c.takeover == 0 || pending == int64(1) || !ok || at.Equal(own.Truncate(time.Millisecond)) {
		return time.Time{}
	}
	until := at
	if !t.Layout.Lease {
		until = at.Add(c.takeover)
	}
	if until.After(c.now) {
		return until
	}
	return time.Time{}
}

// claimQuery builds the statement that claims a row and returns its retry count and, if it
// is wanted and small, its payload with the attributes. It is nil if a claim writes nothing.
func claimQuery(t *table) *query {
	if !t.Layout.WritesClaims() {
		return nil
	}
	b := &builder{}
	set := columns.SetList(columns.Claim(&t.Layout), Ident, func(a columns.Assignment) string {
		if a.Value == columns.Status {
			return b.bind(columns.Stored(&t.Layout, store.Processing))
		}
		claimed := t.MustColumn(a.Column)
		return b.arg(func(v *values) any { return timeValue(claimed, v.at) })
	})
	sql := "UPDATE " + TableName(t.Outbox) + " SET " + set +
		"\nWHERE " + Ident(t.Layout.Columns.ID) + " = " + b.key() + " AND " + t.state(b).Unsettled() +
		"\nRETURNING " + t.retryCount()
	for _, content := range []string{t.payload(), t.attributes()} {
		sql += ", CASE WHEN " + b.arg(func(v *values) any { return v.wants }) + " AND " + t.payloadSize() + " <= " + strconv.Itoa(maxReturned) +
			" THEN " + content + " END"
	}
	return &query{sql, b.params}
}

// readRowQuery builds the statement that reads a row. Its columns: whether the row is
// unsettled, its retry count, whether it is pending, the time of its claim.
func readRowQuery(t *table) *query {
	b := &builder{}
	c := &t.Layout.Columns
	claimed := "NULL"
	if c.Claimed != "" && t.Layout.State != store.StateNone {
		claimed = "+" + Ident(c.Claimed) // the plus prevents the driver from parsing it as a time
	}
	sql := "SELECT " + t.state(b).Unsettled() + " IS TRUE AS open, " + t.retryCount() + ", " + t.state(b).Pending() + " IS TRUE, " + claimed +
		"\nFROM " + TableName(t.Outbox) + " WHERE " + Ident(c.ID) + " = " + b.key() +
		"\nORDER BY open DESC LIMIT 1"
	return &query{sql, b.params}
}

// readPayloadQuery builds the statement that reads the payload and attributes of a row, like readRowQuery.
func readPayloadQuery(t *table) *query {
	b := &builder{}
	sql := "SELECT " + t.payload() + ", " + t.attributes() + " FROM " + TableName(t.Outbox) +
		" WHERE " + Ident(t.Layout.Columns.ID) + " = " + b.key() +
		"\nORDER BY " + t.state(b).Unsettled() + " IS TRUE DESC LIMIT 1"
	return &query{sql, b.params}
}
