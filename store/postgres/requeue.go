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

// resolveAction is what may be done to FAILED rows.
type resolveAction struct {
	// write is the part of a statement that does it to the rows w.id and gives
	// w.ord and w.text of those that it was done to.
	write func(t *table, b *builder) string
	right string // what the role needs
}

// Requeue implements store.OpenDeadLetters. The times of claim and settlement are
// emptied where they belong to the state, and may be NULL; else they stay, as at
// a retry.
func (s *Store) Requeue(ctx context.Context, epoch store.Epoch, f store.DeadLetterFilter, limit int) ([]store.Item, error) {
	letters, err := s.resolveFailed(ctx, epoch, f, limit, resolveAction{requeueSQL, "UPDATE"})
	if err != nil {
		return nil, fmt.Errorf("requeue: %w", err)
	}
	return store.RequeuedItems(letters, time.Now()), nil
}

// Discard implements store.OpenDeadLetters.
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

// resolveRows returns those of the rows that it wrote, in their order.
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
		var leads *int64
		var ords []int64
		if err := sess.conn.QueryRow(ctx, write.sql, write.args(values)...).Scan(&leads, &ords); err != nil {
			return err
		}
		for _, ord := range ords {
			wrote[ord-1] = true
		}
		if leads == nil {
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

// explain names the grant that may be missing: a relay whose layout deletes
// nothing can do without DELETE until somebody discards a row.
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

// resolveQuery makes the statement that does it. It gives one row: the epoch, NULL
// if it has passed, and the places of the rows that were written.
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

// stillFailed is the condition on a row o that is to be written.
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

// deleteDoneBlocks is the CTE that forgets what the rows of done have blocked: a row
// that is set back, deleted or FAILED anew blocks nothing by what it was before.
func deleteDoneBlocks(b *builder) string {
	return `forgotten AS (
  DELETE FROM sluicebox.hold h USING done d
  WHERE h.name = ` + b.arg("name", "text") + " AND h.outbox = " + b.arg("outbox", "text") +
		" AND h.hold = " + b.arg("blocked", "text") + ` AND substr(h.id, 1, 512) = substr(d.text, 1, 512) AND h.id = d.text
)`
}
