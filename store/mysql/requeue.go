package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
	"github.com/sluicebox/sluicebox/store/internal/deadletter"
)

// resolveAction is an operator's action on FAILED rows.
type resolveAction struct {
	// verb returns the statement for rows o, up to its WHERE.
	verb  func(t *table, s *statement) string
	right string // privilege that the account needs
}

// Requeue implements store.DeadLetters. It sets the times of claim and settlement to NULL
// where they are part of the state and nullable; otherwise they keep their values, as on
// a retry.
func (s *Store) Requeue(ctx context.Context, epoch store.Epoch, f store.DeadLetterFilter, limit int) ([]store.Item, error) {
	letters, err := s.resolveFailed(ctx, epoch, f, limit, resolveAction{requeueVerb, "UPDATE"})
	if err != nil {
		return nil, fmt.Errorf("requeue: %w", err)
	}
	return store.RequeuedItems(letters, time.Now()), nil
}

// Discard implements store.DeadLetters.
func (s *Store) Discard(ctx context.Context, epoch store.Epoch, f store.DeadLetterFilter, limit int) ([]store.Ref, error) {
	letters, err := s.resolveFailed(ctx, epoch, f, limit, resolveAction{discardVerb, "DELETE"})
	if err != nil {
		return nil, fmt.Errorf("discard: %w", err)
	}
	return store.Refs(letters), nil
}

func requeueVerb(t *table, s *statement) string {
	set := columns.Requeue(&t.Layout, func(name string) bool { return t.mustColumn(name).notNull })
	return "UPDATE " + t.from() + " SET " + t.assign(s, set, func(column, columns.Value) any { return t.status(store.Pending) })
}

func discardVerb(t *table, _ *statement) string { return "DELETE o FROM " + t.from() }

func (s *Store) resolveFailed(ctx context.Context, epoch store.Epoch, f store.DeadLetterFilter, limit int, m resolveAction) ([]store.DeadLetter, error) {
	return deadletter.Resolve(f.Outbox,
		func() ([]store.DeadLetter, error) { return s.readLetters(ctx, f, limit, false) },
		func(letters []store.DeadLetter) (done []store.DeadLetter, err error) {
			err = s.operator.do(ctx, func(ctx context.Context, c *conn) error {
				t, err := c.table(ctx, s.outboxes.Lookup(f.Outbox))
				if err != nil {
					return err
				}
				return s.runAsLeader(ctx, c, epoch, func() (err error) {
					done, err = s.resolveRows(ctx, c, t, letters, m)
					return err
				})
			})
			if err != nil {
				return nil, m.explain(err, s.outboxes.Lookup(f.Outbox))
			}
			return done, nil
		})
}

// resolveRows locks the rows that are still FAILED, writes them, and deletes the blocks
// that they hold, in the call's transaction. It returns these rows in their order.
func (s *Store) resolveRows(ctx context.Context, c *conn, t *table, letters []store.DeadLetter, m resolveAction) (done []store.DeadLetter, err error) {
	var batch keyBatch
	for i := range letters {
		key, _ := t.id().key(letters[i].ID) // the id of an existing row is valid
		batch.add(i, key)
	}

	failed := map[string]bool{}
	err = batch.chunks(func(chunk *keyBatch) error {
		st := &statement{}
		text := "SELECT " + t.id().textOf() + " FROM " + t.from() + "\nWHERE " + t.idIn(st, chunk.keys) + " AND " + t.failed(st) + "\nFOR UPDATE"
		return c.query(ctx, text, st.args, func(rows *sql.Rows) error {
			var id string
			err := rows.Scan(&id)
			failed[id] = true
			return err
		})
	})
	if err != nil {
		return nil, err
	}

	var write keyBatch
	for k, i := range batch.at {
		if failed[letters[i].ID] {
			write.add(i, batch.keys[k])
			done = append(done, letters[i])
		}
	}

	return done, write.chunks(func(chunk *keyBatch) error { return s.resolveChunk(ctx, c, t, letters, chunk, m) })
}

func (s *Store) resolveChunk(ctx context.Context, c *conn, t *table, letters []store.DeadLetter, chunk *keyBatch, m resolveAction) error {
	st := &statement{}
	text := m.verb(t, st)
	text += "\nWHERE " + t.lockedIDIn(st, chunk.keys) + " AND " + t.failed(st)
	n, err := c.exec(ctx, text, st.args...)
	if err != nil {
		return err
	}

	if n < int64(len(chunk.at)) {
		return &store.RefusedError{Err: fmt.Errorf("outbox %s: change of FAILED rows had no effect; check triggers on the table", t.Name)}
	}
	ids := make([]any, len(chunk.at))
	for k, i := range chunk.at {
		ids[k] = []byte(letters[i].ID)
	}

	st = &statement{}
	text = "DELETE FROM " + ownPrefix + "hold WHERE name = " + st.arg(s.name) + " AND outbox = " + st.arg(t.Name) +
		" AND hold = " + st.arg(store.Blocked.String()) + " AND id IN " + st.list("?", ids)

	_, err = c.exec(ctx, text, st.args...)
	return err
}

// explain names the missing grant. A relay whose layout deletes nothing needs DELETE only
// when someone discards a row.
func (m resolveAction) explain(err error, o *store.Outbox) error {
	if n := code(err); n == codeTableDenied || n == codeColumnDenied {
		return &store.SetupError{
			Problem: fmt.Sprintf("outbox %s: %s", o.Name, err),
			Remedy:  fmt.Sprintf("GRANT %s ON %s TO the relay's account", m.right, TableName(o)),
		}
	}
	return asRefused(err)
}
