package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
	"github.com/sluicebox/sluicebox/store/internal/deadletter"
	"github.com/sluicebox/sluicebox/store/ledger"
)

// Requeue implements store.DeadLetters. It sets the times of claim and settlement to NULL if
// they are part of the state and the columns allow NULL. Otherwise they stay, as for a
// retry.
func (s *Store) Requeue(ctx context.Context, epoch store.Epoch, f store.DeadLetterFilter, limit int) ([]store.Item, error) {
	letters, err := s.resolveFailed(ctx, epoch, f, limit, requeueQuery)
	if err != nil {
		return nil, fmt.Errorf("requeue: %w", err)
	}
	return store.RequeuedItems(letters, time.Now()), nil
}

// Discard implements store.DeadLetters.
func (s *Store) Discard(ctx context.Context, epoch store.Epoch, f store.DeadLetterFilter, limit int) ([]store.Ref, error) {
	letters, err := s.resolveFailed(ctx, epoch, f, limit, discardQuery)
	if err != nil {
		return nil, fmt.Errorf("discard: %w", err)
	}
	return store.Refs(letters), nil
}

func (s *Store) resolveFailed(ctx context.Context, epoch store.Epoch, f store.DeadLetterFilter, limit int, statement func(*table) *query) ([]store.DeadLetter, error) {
	return deadletter.Resolve(f.Outbox,
		func() ([]store.DeadLetter, error) { return s.readLetters(ctx, f, limit, false) },
		func(letters []store.DeadLetter) ([]store.DeadLetter, error) {
			done, err := s.resolveRows(ctx, epoch, f.Outbox, letters, statement)
			if err != nil {
				return nil, asRefused(err)
			}
			return done, nil
		})
}

// resolveRows returns the rows that it wrote, in their order.
func (s *Store) resolveRows(ctx context.Context, epoch store.Epoch, outbox string, letters []store.DeadLetter, statement func(*table) *query) (done []store.DeadLetter, err error) {
	err = s.writer.do(ctx, func(ctx context.Context) error {
		return s.writer.runAsLeader(ctx, epoch, Full, lockTimeout, func(ctx context.Context) error {
			t, err := s.writer.table(ctx, s.outboxes.Lookup(outbox))
			if err != nil {
				return err
			}
			done = nil // the transaction may be retried
			write := statement(t)
			for i := range letters {
				wrote, err := s.resolveRow(ctx, t, write, letters[i].ID)
				if err != nil {
					return err
				}
				if wrote {
					done = append(done, letters[i])
				}
			}
			return ledger.Unblock(ctx, s.writer.tx(), store.Refs(done)...)
		})
	})
	return done, err
}

// resolveRow writes one row, in the call's transaction.
func (s *Store) resolveRow(ctx context.Context, t *table, write *query, id string) (bool, error) {
	for _, key := range t.keys(id) {
		n, err := s.writer.conn.Exec(ctx, write.sql, write.args(&values{key: key})...)
		if err != nil || n > 0 {
			return n > 0, err
		}
	}
	return false, nil
}

func discardQuery(t *table) *query {
	b := &builder{}
	sql := "DELETE FROM " + TableName(t.Outbox) + "\nWHERE " + Ident(t.Layout.Columns.ID) + " = " + b.key() + " AND " + t.state(b).Failed()
	return &query{sql, b.params}
}

func requeueQuery(t *table) *query {
	b := &builder{}
	requeue := columns.Requeue(&t.Layout, func(name string) bool { return t.mustColumn(name).notNull })
	set := columns.SetList(requeue, Ident, func(columns.Assignment) string { return b.bind(columns.Stored(&t.Layout, store.Pending)) })
	sql := "UPDATE " + TableName(t.Outbox) + " SET " + set +
		"\nWHERE " + Ident(t.Layout.Columns.ID) + " = " + b.key() + " AND " + t.state(b).Failed()
	return &query{sql, b.params}
}
