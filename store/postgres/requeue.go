package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
	"github.com/sluicebox/sluicebox/store/internal/deadletter"
)

// resolveAction is an action on FAILED rows.
type resolveAction struct {
	// write returns the part of a statement that applies the action to the rows w.id and
	// returns w.ord and w.text of the rows it changed.
	write func(t *table, b *builder) string
	right string // the privilege that it needs
}

// Requeue implements store.DeadLetters. It clears the claim and settlement times
// where they are part of the state and may be NULL; otherwise they stay, as after a
// retry.
func (s *Store) Requeue(ctx context.Context, epoch store.Epoch, f store.DeadLetterFilter, limit int) ([]store.Item, error) {
	letters, err := s.resolveFailed(ctx, epoch, f, limit, resolveAction{requeueSQL, "UPDATE"})
	if err != nil {
		return nil, fmt.Errorf("requeue: %w", err)
	}
	return store.RequeuedItems(letters, time.Now()), nil
}

// Discard implements store.DeadLetters.
func (s *Store) Discard(ctx context.Context, epoch store.Epoch, f store.DeadLetterFilter, limit int) ([]store.Ref, error) {
	letters, err := s.resolveFailed(ctx, epoch, f, limit, resolveAction{discardSQL, "DELETE"})
	if err != nil {
		return nil, fmt.Errorf("discard: %w", err)
	}
	return store.Refs(letters), nil
}

func (s *Store) resolveFailed(ctx context.Context, epoch store.Epoch, f store.DeadLetterFilter, limit int, m resolveAction) ([]store.DeadLetter, error) {
	return deadletter.Resolve(f.Outbox,
		func() ([]store.DeadLetter, error) { return s.readLetters(ctx, f, limit, false) },
		func(letters []store.DeadLetter) ([]store.DeadLetter, error) {
			return s.resolveRows(ctx, epoch, f.Outbox, letters, m)
		})
}

// resolveRows returns the rows that it changed, in their order.
func (s *Store) resolveRows(ctx context.Context, epoch store.Epoch, outbox string, letters []store.DeadLetter, m resolveAction) ([]store.DeadLetter, error) {
	wrote := make([]bool, len(letters))
	err := s.operator.do(ctx, func(ctx context.Context, sess *session) error {
		t, err := sess.table(ctx, s.outboxes.Lookup(outbox))
		if err != nil {
			return err
		}

		ids, texts := make([]string, len(letters)), make([][]byte, len(letters))
		for i := range letters {
			ids[i], texts[i] = letters[i].ID, []byte(letters[i].ID)
		}

		write, values := resolveQuery(t, m), s.fenced(epoch, t.values(s.name))
		values["ids"], values["texts"] = arrayLiteral(ids), texts
		var leaderEpoch *int64
		var ords []int64
		if err := sess.conn.QueryRow(ctx, write.sql, write.args(values)...).Scan(&leaderEpoch, &ords); err != nil {
			return err
		}

		for _, ord := range ords {
			wrote[ord-1] = true
		}

		if leaderEpoch == nil {
			return store.ErrNotLeader
		}
		return nil
	})
	if err != nil {
		return nil, m.explain(err, s.outboxes.Lookup(outbox))
	}

	done := letters[:0]
	for i := range letters {
		if wrote[i] {
			done = append(done, letters[i])
		}
	}

	return done, nil
}

// explain names the missing grant, because a relay whose layout deletes nothing runs
// without DELETE until an operator discards a row.
func (m resolveAction) explain(err error, o *store.Outbox) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "42501" && strings.Contains(pg.Message, o.Table) { // insufficient_privilege
		return &store.SetupError{
			Problem: fmt.Sprintf("outbox %s: %s", o.Name, pg.Message),
			Remedy:  fmt.Sprintf("GRANT %s ON %s TO the relay's role", m.right, TableName(o)),
		}
	}
	return asRefused(explainOwn(err))
}

// resolveQuery returns the statement of an action. It returns one row: the epoch, NULL if
// it is stale, and the indexes of the rows that were changed.
func resolveQuery(t *table, m resolveAction) *query {
	b := &builder{}
	return b.query(
		"WITH "+b.leader()+",",
		"want AS MATERIALIZED (",
		"  SELECT * FROM unnest("+b.arg("ids", t.mustColumn(t.Layout.Columns.ID).typ+"[]")+", "+b.arg("texts", "bytea[]")+
			") WITH ORDINALITY AS u(id, text, ord)",
		"),",
		"done AS ("+m.write(t, b)+"),",
		deleteDoneBlocks(b),
		"SELECT (SELECT epoch FROM leader), ARRAY(SELECT ord FROM done)",
	)
}

// stillFailed is the condition that a row o is wanted and still FAILED.
func (t *table) stillFailed(b *builder) string {
	return "o." + Ident(t.Layout.Columns.ID) + " = w.id AND " + t.failed(b) + " IS TRUE AND EXISTS (SELECT FROM leader)"
}

func discardSQL(t *table, b *builder) string {
	return "DELETE FROM " + TableName(t.Outbox) + " AS o USING want w WHERE " + t.stillFailed(b) + " RETURNING w.ord, w.text"
}

func requeueSQL(t *table, b *builder) string {
	var set []string
	for _, a := range columns.Requeue(&t.Layout, func(name string) bool { return t.mustColumn(name).notNull }) {
		value := map[columns.Value]string{columns.Null: "NULL", columns.Zero: "0", columns.Blank: "''"}[a.Value]
		if a.Value == columns.Status {
			value = t.statusValue(b, store.Pending)
		}
		set = append(set, Ident(a.Column)+" = "+value)
	}
	return "UPDATE " + TableName(t.Outbox) + " AS o SET " + strings.Join(set, ", ") +
		" FROM want w WHERE " + t.stillFailed(b) + " RETURNING w.ord, w.text"
}

// deleteDoneBlocks returns the CTE that deletes the blocks caused by the rows of done. A
// row that was requeued, deleted or FAILED again no longer blocks its lane by its earlier
// failure.
func deleteDoneBlocks(b *builder) string {
	return `forgotten AS (
  DELETE FROM sluicebox.hold h USING done d
  WHERE h.name = ` + b.arg("name", "text") + " AND h.outbox = " + b.arg("outbox", "text") +
		" AND h.hold = " + b.arg("blocked", "text") + ` AND substr(h.id, 1, 512) = substr(d.text, 1, 512) AND h.id = d.text
)`
}
