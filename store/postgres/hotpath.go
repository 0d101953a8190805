package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/sluicebox/sluicebox/store"
)

// The statements of this file are the hot path. They select rows by an array of ids, not
// by a join with it. They return the number of rows written, and the ids only if some are
// missing. That saves a fifth of the server's time per row (see BenchmarkRows).

// idIsText reports whether the text of an id identifies a row: ids are unique, and the
// server returns the same text as the log.
func (t *table) idIsText() bool {
	id := t.MustColumn(t.Layout.Columns.ID)
	switch id.base {
	case pgtype.TextOID, pgtype.VarcharOID:
		return t.unique && id.collation != ""
	case pgtype.UUIDOID, pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID:
		return t.unique
	}
	return false
}

// fenced makes a counted statement return no row if the epoch is stale.
const fenced = "leader CROSS JOIN "

// countedQuery returns the final SELECT over the rows of a CTE: their number, and their ids if the number differs
// from the number requested. beside is what else it joins.
func countedQuery(beside, of, ids string) string {
	return "SELECT n, CASE WHEN n <> cardinality(" + ids + ") THEN ids END FROM " + beside + "(\n" +
		"  SELECT count(*) AS n, array_agg(id::text) AS ids FROM " + of + "\n) c"
}

// claimManyQuery returns the statement that claims rows without retries, where takeover
// timeouts are off and no payload is wanted. It returns one row: the number of rows
// claimed, and their ids if some are missing. No row at all means that the epoch is
// stale.
//
// claimQuery then classifies the missing rows. It is not used first because it has many
// parts, and the server prepares every part before it starts.
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
		countedQuery(fenced, "claimed", ids),
	)
}

// unretried is the condition that a row o has no retries. claimQuery reads the count of
// the others.
func (t *table) unretried() string {
	if t.Layout.Columns.RetryCount == "" {
		return ""
	}
	return " AND " + t.retryCount() + " = 0"
}

// untriedQuery returns the statement that finds rows to deliver without retries: their number, and their ids
// if some are missing.
func untriedQuery(t *table) *query {
	b := &builder{}
	ids, id := b.ids(t), Ident(t.Layout.Columns.ID)
	return b.query(
		"WITH found AS (",
		"  SELECT o."+id+" AS id FROM "+TableName(t.Outbox)+" AS o",
		"  WHERE o."+id+" = ANY ("+ids+") AND "+t.open(b)+t.unretried(),
		")",
		countedQuery("", "found", ids),
	)
}

// claimOneQuery is claimManyQuery for one row without retries. An idle relay claims
// single rows, and this statement is part of their latency. It returns only the number of
// rows written.
func claimOneQuery(t *table) *query {
	b := &builder{}
	c := &t.Layout.Columns
	return b.query(
		"UPDATE "+TableName(t.Outbox)+" AS o SET "+t.claimAssignments(b),
		"FROM (\n"+b.leaderRow()+"\n) AS l",
		"WHERE o."+Ident(c.ID)+" = "+b.arg("id", t.MustColumn(c.ID).typ)+" AND "+t.open(b)+t.unretried(),
	)
}

// settleManyQuery is settleQuery for rows COMPLETED at the same time. It returns one row:
// the number of rows written, and their ids if some are missing. No row at all means that
// the epoch is stale.
func settleManyQuery(t *table) *query {
	b := &builder{}
	leader, ids := b.leader(), b.ids(t)
	name, id := TableName(t.Outbox), Ident(t.Layout.Columns.ID)
	at := func() string { return b.arg("at", "timestamptz") }
	receipt := func(i int) string {
		return "(" + t.receiptsArg(b, i) + ")[array_position(" + b.arg("id texts", "text[]") + ", o." + id + "::text)]"
	}
	write := "DELETE FROM " + name + " AS o"
	if !t.Layout.DeleteDelivered {
		write = "UPDATE " + name + " AS o SET " + t.outcomeAssignments(b, store.Completed, at, receipt)
	}
	return b.query(
		"WITH "+leader+",",
		"done AS (",
		"  "+write,
		"  WHERE o."+id+" = ANY ("+ids+") AND "+t.open(b)+" AND EXISTS (SELECT FROM leader)",
		"  RETURNING o."+id+" AS id",
		")",
		countedQuery(fenced, "done", ids),
	)
}

// ids returns the parameter for the rows' ids.
func (b *builder) ids(t *table) string {
	return b.arg("ids", t.MustColumn(t.Layout.Columns.ID).typ+"[]")
}

// claimMany claims as many rows as it can with one statement per outbox, and returns the
// rows still to claim.
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
		values := s.fenced(epoch)
		values["ids"], values["at"] = p.idsLiteral(rows), at.Truncate(time.Microsecond)
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

// ReadUntried implements store.UntriedReader. While the session skips locks nothing is known.
func (s *Store) ReadUntried(ctx context.Context, rows []store.ClaimRow) ([]bool, error) {
	parts, err := s.claimParts(rows)
	if err != nil {
		return nil, fmt.Errorf("read untried rows: %w", err)
	}
	untried := make([]bool, len(rows))
	err = s.claims.do(ctx, func(ctx context.Context, sess *session) error {
		if time.Now().Before(sess.skipLocked) {
			return nil
		}
		err := sess.readUntried(ctx, parts, rows, untried)
		if IsLockTimeout(err) {
			clear(untried)
			return nil
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read untried rows: %w", Explain(err))
	}
	return untried, nil
}

// readUntried marks the rows that were not tried, with one statement per outbox in one round trip.
func (s *session) readUntried(ctx context.Context, parts []*claimPart, rows []store.ClaimRow, untried []bool) (err error) {
	batch := &pgx.Batch{}
	var sent []*claimPart
	for _, p := range parts {
		t, err := s.table(ctx, p.Outbox)
		if err != nil {
			return err
		}
		if !t.Layout.WritesClaims() || !t.idIsText() {
			continue
		}
		if t.untried == nil {
			t.untried = untriedQuery(t)
		}
		batch.Queue(t.untried.sql, t.untried.args(map[string]any{"ids": p.idsLiteral(rows)})...)
		sent = append(sent, p)
	}
	if len(sent) == 0 {
		return nil
	}
	results := s.conn.SendBatch(ctx, batch)
	defer readRest(results, &err)
	for _, p := range sent {
		var n int
		var ids []string
		if err := results.QueryRow().Scan(&n, &ids); err != nil {
			return err
		}
		p.eachCounted(n, ids, func(i int) { untried[i] = true })
	}
	return nil
}

// eachCounted calls do for the rows of a result of countedQuery.
func (p *claimPart) eachCounted(n int, ids []string, do func(i int)) {
	if n == len(p.Indexes) {
		for _, i := range p.Indexes {
			do(i)
		}
		return
	}
	for _, id := range ids {
		if i, known := p.FirstIndex[id]; known {
			do(i)
		}
	}
}

// idsLiteral is the array of the part's ids.
func (p *claimPart) idsLiteral(rows []store.ClaimRow) string {
	ids := make([]string, len(p.Indexes))
	for k, i := range p.Indexes {
		ids[k] = rows[i].ID
	}
	return arrayLiteral(ids)
}

// claimOne claims the single row of a call, or returns it as still to claim.
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

	values := s.fenced(epoch)
	values["id"], values["at"] = rows[p.Indexes[0]].ID, at.Truncate(time.Microsecond)
	written, err := sess.conn.Exec(ctx, t.claimOne.sql, t.claimOne.args(values)...)
	if err != nil || written.RowsAffected() != 1 {
		return parts, err
	}

	answers[p.Indexes[0]].Result = store.Claimed
	return nil, nil
}

// canClaimMany reports whether claimManyQuery applies to the part.
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

// readMany reads the result of claimManyQuery and returns the rows that it does not
// cover: rows not claimed, and rows whose id the server writes differently from the log.
func (p *claimPart) readMany(row pgx.Row, answers []store.ClaimAnswer) (left *claimPart, err error) {
	var n int
	var ids []string
	switch err := row.Scan(&n, &ids); {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, store.ErrNotLeader
	case err != nil:
		return nil, err
	}
	p.eachCounted(n, ids, func(i int) { answers[i].Result = store.Claimed })
	if n == len(p.Indexes) {
		return nil, nil
	}
	return &claimPart{p.Unanswered(answers)}, nil
}

// manyStatement returns the part's settleManyQuery, and sets its parameters.
func (p *settlePart) manyStatement(values map[string]any, outcomes []store.Outcome) *query {
	t := p.table
	if t.completeMany == nil {
		t.completeMany = settleManyQuery(t)
	}
	ids := make([]string, len(p.at))
	for k, i := range p.at {
		ids[k] = outcomes[i].ID
	}
	values["ids"], values["at"] = arrayLiteral(ids), p.when
	if p.bindReceipts(values, outcomes) {
		values["id texts"] = values["ids"]
	}
	return t.completeMany
}

// readMany is the resultReader of settleManyQuery. A row whose id the server writes
// differently from the log counts as missed and is looked up.
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
