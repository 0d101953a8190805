package sqlite

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// mendTries bounds how often rows are chosen again because all that were chosen
// had changed when it came to write.
const mendTries = 5

// Requeue implements store.DeadLetters. The times of claim and settlement are
// emptied where they belong to the state, and may be NULL; else they stay, as at
// a retry.
func (s *Store) Requeue(ctx context.Context, epoch store.Epoch, f store.DeadLetterFilter, limit int) ([]store.Item, error) {
	letters, err := s.mend(ctx, epoch, f, limit, requeueQuery)
	if err != nil {
		return nil, fmt.Errorf("requeue: %w", err)
	}
	return store.RequeuedItems(letters, time.Now()), nil
}

// Discard implements store.DeadLetters.
func (s *Store) Discard(ctx context.Context, epoch store.Epoch, f store.DeadLetterFilter, limit int) ([]store.Ref, error) {
	letters, err := s.mend(ctx, epoch, f, limit, discardQuery)
	if err != nil {
		return nil, fmt.Errorf("discard: %w", err)
	}
	return store.Refs(letters), nil
}

// mend chooses rows without the write lock, however long that takes, and then
// writes those that are still FAILED.
func (s *Store) mend(ctx context.Context, epoch store.Epoch, f store.DeadLetterFilter, limit int, statement func(*table) *query) ([]store.DeadLetter, error) {
	for range mendTries {
		letters, err := s.letters(ctx, f, limit, false)
		if err != nil {
			return nil, err
		}
		done, err := s.mendThese(ctx, epoch, f.Outbox, letters, statement)
		if err != nil {
			return nil, refusal(err)
		}
		if len(done) > 0 || len(letters) == 0 {
			return done, nil
		}
	}
	return nil, &store.RefusedError{Err: fmt.Errorf("outbox %s: a trigger keeps the FAILED rows as they are, or somebody else changes them again and again", f.Outbox)}
}

// mendThese returns those of the rows that it wrote, in their order.
func (s *Store) mendThese(ctx context.Context, epoch store.Epoch, outbox string, letters []store.DeadLetter, statement func(*table) *query) (done []store.DeadLetter, err error) {
	err = s.writer.do(ctx, func(ctx context.Context) error {
		return s.writer.lead(ctx, epoch, Full, patience, func(ctx context.Context) error {
			t, err := s.writer.table(ctx, s.outboxes[outbox])
			if err != nil {
				return err
			}
			done = nil // it may begin anew
			write := statement(t)
			for i := range letters {
				wrote, err := s.mendRow(ctx, t, write, letters[i].Ref)
				if err != nil {
					return err
				}
				if wrote {
					done = append(done, letters[i])
				}
			}
			return nil
		})
	})
	return done, err
}

// mendRow writes one row, in the call's transaction, and forgets what it blocks.
func (s *Store) mendRow(ctx context.Context, t *table, write *query, row store.Ref) (bool, error) {
	for _, key := range t.keys(row.ID) {
		n, err := s.writer.conn.Exec(ctx, write.sql, write.args(&values{key: key})...)
		if err != nil {
			return false, err
		}
		if n > 0 {
			return true, s.forget(ctx, row)
		}
	}
	return false, nil
}

func discardQuery(t *table) *query {
	b := &builder{}
	sql := "DELETE FROM " + TableName(t.Outbox) + "\nWHERE " + Ident(t.Layout.Columns.ID) + " = " + b.key() + " AND " + t.failed(b)
	return &query{sql, b.params}
}

func requeueQuery(t *table) *query {
	b := &builder{}
	c := &t.Layout.Columns
	var set []string
	assign := func(name, value string) { set = append(set, Ident(name)+" = "+value) }
	empty := func(name string) {
		if name != "" && !t.col(name).notNull {
			assign(name, "NULL")
		}
	}
	if t.Layout.State == store.StateTimestamps {
		assign(c.Failed, "NULL")
		empty(c.Claimed) // or the claim would hold the row
	} else {
		assign(c.Status, b.status(&t.Layout, store.Pending))
	}
	empty(c.Settled)
	if c.RetryCount != "" {
		assign(c.RetryCount, "0")
	}
	if c.Error != "" {
		none := "NULL"
		if t.col(c.Error).notNull {
			none = "''"
		}
		assign(c.Error, none)
	}
	sql := "UPDATE " + TableName(t.Outbox) + " SET " + strings.Join(set, ", ") +
		"\nWHERE " + Ident(c.ID) + " = " + b.key() + " AND " + t.failed(b)
	return &query{sql, b.params}
}
