package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Prune implements store.Pruner. It walks the table by id because most kinds of ids grow
// with time. Tables rarely have an index on the settlement time, and such an index would
// cost each claim and outcome more than this walk.
func (s *Store) Prune(ctx context.Context, epoch store.Epoch, p store.PruneRequest) (store.PruneResult, error) {
	o, err := s.outboxes.FindValid(p.Outbox, &p)
	if err != nil {
		return store.PruneResult{}, fmt.Errorf("prune: %w", err)
	}

	var done store.PruneResult
	err = s.operator.do(ctx, func(ctx context.Context, c *conn) error {
		t, err := c.table(ctx, o)
		if err != nil {
			return err
		}
		from, err := t.pruneFrom(p.From)
		if err != nil {
			return err
		}
		return s.runAsLeader(ctx, c, epoch, func() (err error) {
			done, err = s.prune(ctx, c, t, from, p)
			return err
		})
	})
	if err == nil {
		return done, nil
	}

	err = asRefused(err)
	if !errors.As(err, new(*store.RefusedError)) {
		done.Next = ""
	}
	return store.PruneResult{Next: done.Next}, fmt.Errorf("prune outbox %s: %w", p.Outbox, err)
}

// Clock implements store.Pruner.
func (s *Store) Clock(ctx context.Context) (now time.Time, err error) {
	err = s.operator.do(ctx, func(ctx context.Context, c *conn) (err error) {
		now, err = serverTime(ctx, c)
		return err
	})
	if err != nil {
		return now, fmt.Errorf("read server time: %w", Explain(err))
	}
	return now, nil
}

func serverTime(ctx context.Context, c *conn) (time.Time, error) {
	var text string
	if err := c.row(ctx, "SELECT UTC_TIMESTAMP(6)", nil, &text); err != nil {
		return time.Time{}, err
	}
	now, ok := readTime(text)
	if !ok {
		return now, fmt.Errorf("invalid server time %q", text)
	}
	return now, nil
}

// pruneFrom parses a prune cursor: an id after a colon, or "" for the beginning, for
// which it returns nil.
func (t *table) pruneFrom(text string) (any, error) {
	if text == "" {
		return nil, nil
	}
	id, ok := strings.CutPrefix(text, ":")
	key, valid := t.id().key(id)
	if !ok || !valid {
		return nil, fmt.Errorf("invalid prune cursor %q", text)
	}
	return key, nil
}

// prune deletes old rows in the call's transaction. It finds them without locks, then
// locks them and skips rows that another session has locked.
func (s *Store) prune(ctx context.Context, c *conn, t *table, from any, p store.PruneRequest) (done store.PruneResult, err error) {
	var old keyBatch
	seen, last := 0, ""
	st := &statement{}
	text := t.walkText(st, from, p)
	err = c.query(ctx, text, st.args, func(rows *sql.Rows) error {
		var id string
		var expired bool
		if err := rows.Scan(&id, &expired); err != nil {
			return err
		}
		if len(old.at) == p.Limit {
			return errStopIteration
		}
		seen++
		last = ":" + id
		if key, valid := t.id().key(id); expired && valid {
			old.add(seen, key)
		}
		return nil
	})

	full := errors.Is(err, errStopIteration)
	if err != nil && !full {
		return done, err
	}

	if full || seen == p.ScanRows() {
		done.Next = last
	}
	err = old.chunks(func(chunk *keyBatch) error {
		n, err := t.pruneChunk(ctx, c, chunk, p.Before)
		done.Rows += int(n)
		return err
	})

	return done, err
}

// walkText returns the statement that reads rows in the order of their ids, and for each
// whether it is old enough.
func (t *table) walkText(s *statement, from any, p store.PruneRequest) string {
	id := t.id()
	text := "SELECT " + id.textOf() + ", (" + t.deliveredBefore(s, p.Before) + ") IS TRUE\nFROM " + t.from() + "\nWHERE o." + Ident(id.name) + " IS NOT NULL"
	if from != nil {
		s.args = append(s.args, from)
		text += " AND o." + Ident(id.name) + " > " + id.placeholder()
	}
	return fmt.Sprintf("%s\nORDER BY o.%s LIMIT %d", text, Ident(id.name), p.ScanRows())
}

// deliveredBefore returns the condition that a row o was delivered before a time.
func (t *table) deliveredBefore(s *statement, before time.Time) string {
	return t.state(s).Delivered() + " AND o." + Ident(t.Layout.DeliveredTime()) + " < " + s.arg(timeBound(before))
}

func (t *table) pruneChunk(ctx context.Context, c *conn, chunk *keyBatch, before time.Time) (int64, error) {
	var free []any
	id, st := t.id(), &statement{}
	text := "SELECT " + id.textOf() + " FROM " + t.from() + "\nWHERE " + t.idExactlyIn(st, chunk.keys) + " AND " + t.deliveredBefore(st, before) + "\nFOR UPDATE SKIP LOCKED"
	err := c.query(ctx, text, st.args, func(rows *sql.Rows) error {
		var text string
		if err := rows.Scan(&text); err != nil {
			return err
		}
		key, _ := id.key(text) // the id of an existing row is valid
		free = append(free, key)
		return nil
	})
	if err != nil || len(free) == 0 {
		return 0, err
	}

	st = &statement{}
	text = "DELETE o FROM " + t.from() + "\nWHERE " + t.lockedIDIn(st, free) + " AND " + t.deliveredBefore(st, before)
	return c.exec(ctx, text, st.args...)
}
