package postgres

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/sluicebox/sluicebox/store"
)

// The statements of this file are those of the hot path. They name rows by an array
// of their ids, not by a join with it, and say how many they wrote, not which, unless
// it was not all: a fifth of the server's time for a row is saved by that (see
// BenchmarkRows).

// idIsText reports whether a row is known by its id as text: there is one of each,
// and what the server returns is the text that the log has.
func (t *table) idIsText() bool {
	id := t.mustColumn(t.Layout.Columns.ID)
	switch id.base {
	case pgtype.TextOID, pgtype.VarcharOID:
		return t.unique && id.collation != ""
	case pgtype.UUIDOID, pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID:
		return t.unique
	}
	return false
}

// countedQuery is what a statement that wrote rows of a CTE says of them: how many, and
// which, if it is another number than was asked for.
func countedQuery(of, ids string) string {
	return "SELECT n, CASE WHEN n <> cardinality(" + ids + ") THEN ids END FROM leader CROSS JOIN (\n" +
		"  SELECT count(*) AS n, array_agg(id::text) AS ids FROM " + of + "\n) c"
}

// claimManyQuery claims what it can of rows without retries, where nobody else's
// claims count and no payload is wanted. It gives one row: how many rows were claimed,
// and the ids, if these were not all. No row at all says that the epoch has passed.
// What became of the others claimQuery tells: it is a statement with many parts, of
// which the server prepares each before it begins.
func claimManyQuery(t *table) *query {
	b := &builder{}
	leader, ids, id := b.leader(), b.ids(t), Ident(t.Layout.Columns.ID)
	return b.query(
		"WITH "+leader+",",
		"claimed AS (",
		"  UPDATE "+TableName(t.Outbox)+" AS o SET "+t.claimAssignments(b),
		"  WHERE o."+id+" = ANY ("+ids+") AND "+t.open(b)+t.unretried()+" AND EXISTS (SELECT FROM leader)",
		"  RETURNING o."+id+" AS id",
		")",
		countedQuery("claimed", ids),
	)
}

// unretried is the condition that a row o has no retries: how many it has is for
// claimQuery to say.
func (t *table) unretried() string {
	if t.Layout.Columns.RetryCount == "" {
		return ""
	}
	return " AND " + t.retryCount() + " = 0"
}

// claimOneQuery is claimManyQuery for one row without retries, which is what a relay
// claims that has little to do: whoever waits for that row waits for this statement.
// It only says how many rows it wrote.
func claimOneQuery(t *table) *query {
	b := &builder{}
	c := &t.Layout.Columns
	return b.query(
		"UPDATE "+TableName(t.Outbox)+" AS o SET "+t.claimAssignments(b),
		"FROM (\n"+b.leaderRow()+"\n) AS l",
		"WHERE o."+Ident(c.ID)+" = "+b.arg("id", t.mustColumn(c.ID).typ)+" AND "+t.open(b)+t.unretried(),
	)
}

// settleManyQuery is settleQuery for rows that are COMPLETED at one time. It gives
// one row: how many rows were written, and their ids, if these were not all. No row
// at all says that the epoch has passed.
func settleManyQuery(t *table) *query {
	b := &builder{}
	leader, ids := b.leader(), b.ids(t)
	name, id := TableName(t.Outbox), Ident(t.Layout.Columns.ID)
	at := func() string { return b.arg("at", "timestamptz") }
	write := "DELETE FROM " + name + " AS o"
	if !t.Layout.DeleteDelivered {
		write = "UPDATE " + name + " AS o SET " + strings.Join(t.outcomeAssignments(b, store.Completed, at), ", ")
	}
	return b.query(
		"WITH "+leader+",",
		"done AS (",
		"  "+write,
		"  WHERE o."+id+" = ANY ("+ids+") AND "+t.open(b)+" AND EXISTS (SELECT FROM leader)",
		"  RETURNING o."+id+" AS id",
		")",
		countedQuery("done", ids),
	)
}

// ids is the parameter of the rows' ids.
func (b *builder) ids(t *table) string {
	return b.arg("ids", t.mustColumn(t.Layout.Columns.ID).typ+"[]")
}

// claimMany claims what it can in one statement for each outbox, and returns what has
// yet to be claimed.
func (s *Store) claimMany(ctx context.Context, sess *session, epoch store.Epoch, at time.Time,
	rows []store.ClaimRow, parts []*claimPart, answers []store.ClaimAnswer,
) (left []*claimPart, err error) {
	if len(parts) == 1 && len(parts[0].Indexes) == 1 {
		return s.claimOne(ctx, sess, epoch, at, rows, parts, answers)
	}
	batch := &pgx.Batch{}
	var sent []*claimPart
	for _, p := range parts {
		t, err := sess.table(ctx, p.Outbox)
		if err != nil {
			return nil, err
		}
		if s.takeover > 0 || !p.canClaimMany(t, rows) {
			left = append(left, p)
			continue
		}
		if t.claimMany == nil {
			t.claimMany = claimManyQuery(t)
		}
		values := s.fenced(epoch, t.values(s.name))
		ids := make([]string, len(p.Indexes))
		for k, i := range p.Indexes {
			ids[k] = rows[i].ID
		}
		values["ids"], values["at"] = arrayLiteral(ids), at.Truncate(time.Microsecond)
		batch.Queue(t.claimMany.sql, t.claimMany.args(values)...)
		sent = append(sent, p)
	}
	if len(sent) == 0 {
		return left, nil
	}
	results := sess.conn.SendBatch(ctx, batch)
	defer readRest(results, &err)
	for _, p := range sent {
		more, err := p.readMany(results.QueryRow(), answers)
		if err != nil {
			return nil, err
		}
		if more != nil {
			left = append(left, more)
		}
	}
	return left, nil
}

// claimOne claims the one row of a call, or returns that it has yet to be claimed.
func (s *Store) claimOne(ctx context.Context, sess *session, epoch store.Epoch, at time.Time,
	rows []store.ClaimRow, parts []*claimPart, answers []store.ClaimAnswer,
) (left []*claimPart, err error) {
	p := parts[0]
	t, err := sess.table(ctx, p.Outbox)
	if err != nil || s.takeover > 0 || !p.canClaimMany(t, rows) {
		return parts, err
	}
	if t.claimOne == nil {
		t.claimOne = claimOneQuery(t)
	}
	values := s.fenced(epoch, t.values(s.name))
	values["id"], values["at"] = rows[p.Indexes[0]].ID, at.Truncate(time.Microsecond)
	written, err := sess.conn.Exec(ctx, t.claimOne.sql, t.claimOne.args(values)...)
	if err != nil || written.RowsAffected() != 1 {
		return parts, err
	}
	answers[p.Indexes[0]].Result = store.Claimed
	return nil, nil
}

// canClaimMany reports whether claimManyQuery will do for the part.
func (p *claimPart) canClaimMany(t *table, rows []store.ClaimRow) bool {
	if !t.Layout.WritesClaims() || !t.idIsText() {
		return false
	}
	for _, i := range p.Indexes {
		if rows[i].WantPayload {
			return false
		}
	}
	for i := range p.Duplicates {
		if rows[i].WantPayload {
			return false
		}
	}
	return true
}

// readMany reads the answer of claimManyQuery, and returns what it does not answer
// for: rows that were not claimed, or whatever the server calls otherwise than the
// log.
func (p *claimPart) readMany(row pgx.Row, answers []store.ClaimAnswer) (left *claimPart, err error) {
	var n int
	var ids []string
	switch err := row.Scan(&n, &ids); {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, store.ErrNotLeader
	case err != nil:
		return nil, err
	case n == len(p.Indexes):
		for _, i := range p.Indexes {
			answers[i].Result = store.Claimed
		}
		return nil, nil
	}
	for _, id := range ids {
		if i, known := p.FirstIndex[id]; known {
			answers[i].Result = store.Claimed
		}
	}
	return &claimPart{p.Unanswered(answers)}, nil
}

// queueMany adds the part's settleManyQuery to a batch.
func (p *settlePart) queueMany(batch *pgx.Batch, values map[string]any, outcomes []store.Outcome) {
	t := p.table
	if t.completeMany == nil {
		t.completeMany = settleManyQuery(t)
	}
	ids := make([]string, len(p.at))
	for k, i := range p.at {
		ids[k] = outcomes[i].ID
	}
	values["ids"], values["at"] = arrayLiteral(ids), p.when
	batch.Queue(t.completeMany.sql, t.completeMany.args(values)...)
}

// readMany reads the answer of settleManyQuery, and counts what was written. A row
// that the server calls otherwise than the log counts as missed: it is looked up.
func (p *settlePart) readMany(row pgx.Row, outcomes []store.Outcome, results []store.SettleResult) (fenced bool, n int, err error) {
	var ids []string
	switch err := row.Scan(&n, &ids); {
	case errors.Is(err, pgx.ErrNoRows):
		return true, 0, nil
	case err != nil:
		return false, 0, err
	case n == len(p.at):
		for _, i := range p.at {
			results[i] = store.Written
		}
		return false, n, nil
	}
	byID := make(map[string]int, len(p.at))
	for _, i := range p.at {
		byID[outcomes[i].ID] = i
	}
	n = 0
	for _, id := range ids {
		if i, known := byID[id]; known && results[i] != store.Written {
			results[i] = store.Written
			n++
		}
	}
	return false, n, nil
}
