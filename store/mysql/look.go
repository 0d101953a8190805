package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/byoutbox"
)

// Settled implements store.Looker, on the operator's session. A row that is not there
// is asked for once more by a read that meets the lock of whoever inserts it just now:
// the log is ahead of what statements see.
func (s *Store) Settled(ctx context.Context, rows []store.ClaimRow) ([]bool, error) {
	parts, err := byoutbox.Sort(s.outboxes, rows)
	if err != nil {
		return nil, fmt.Errorf("look for settled rows: %w", err)
	}
	settled := make([]bool, len(rows))
	err = s.operator.do(ctx, func(ctx context.Context, c *conn) (err error) {
		for range claimTries {
			err = c.tx(ctx, func() error {
				clear(settled)
				for _, p := range parts {
					if err := lookAt(ctx, c, p, rows, settled); err != nil {
						return err
					}
				}
				return nil
			})
			if !errors.Is(err, errMoved) {
				return err
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look for settled rows: %w", Explain(err))
	}
	return settled, nil
}

// lookAt asks for the rows of one outbox. Of an id that came twice nothing is said at
// its second place, and nothing of a table that somebody has locked whole. It returns
// errMoved where rows seem gone and the table is not what it was.
func lookAt(ctx context.Context, c *conn, p *byoutbox.Part, rows []store.ClaimRow, settled []bool) error {
	t, err := c.table(ctx, p.Outbox)
	if err != nil || t.Layout.State == store.StateNone {
		return err // a table without states tells nothing
	}
	gone, err := t.lookUp(ctx, c, p, rows, settled)
	if errors.Is(err, errTableLocked) {
		for _, i := range p.At {
			settled[i] = false
		}
		return nil
	}
	if err != nil || !gone {
		return err
	}
	altered, err := c.altered(ctx, p.Outbox)
	if altered {
		return errMoved
	}
	return err
}

// lookUp tells which rows are settled, and whether any of them is gone.
func (t *table) lookUp(ctx context.Context, c *conn, p *byoutbox.Part, rows []store.ClaimRow, settled []bool) (gone bool, err error) {
	var all, absent lookup
	found := map[int]bool{}
	for _, i := range p.At {
		if key, can := t.id().key(rows[i].ID); can {
			all.add(i, key)
		} else {
			settled[i], gone = true, true // no row can have it
		}
	}
	err = all.chunks(func(chunk *lookup) error {
		s := &statement{}
		text := "SELECT " + t.id().textOf() + ", " + t.open(s) + " IS TRUE\nFROM " + t.from() + "\nWHERE " + t.among(s, chunk.keys)
		return c.query(ctx, text, s.args, func(rows *sql.Rows) error {
			var id string
			var open bool
			if err := rows.Scan(&id, &open); err != nil {
				return err
			}
			if i, asked := p.First[id]; asked {
				settled[i] = !open && (settled[i] || !found[i])
				found[i] = true
			}
			return nil
		})
	})
	if lockedOut(err) { // it waits for no row
		err = errTableLocked
	}
	if err != nil {
		return false, err
	}
	for k, i := range all.at {
		if !found[i] {
			absent.add(i, all.keys[k])
		}
	}
	err = absent.chunks(func(chunk *lookup) error { return t.gone(ctx, c, p, chunk, settled) })
	return gone || len(absent.at) > 0, err
}

// gone tells which rows are not there and are not being inserted. A read that meets a
// lock is split until the row stands alone that is locked.
func (t *table) gone(ctx context.Context, c *conn, p *byoutbox.Part, chunk *lookup, settled []bool) error {
	there := map[int]bool{}
	s := &statement{}
	text := "SELECT " + t.id().textOf() + " FROM " + t.from() + "\nWHERE " + t.among(s, chunk.keys) + "\nFOR UPDATE NOWAIT"
	err := c.query(ctx, text, s.args, func(rows *sql.Rows) error {
		var id string
		err := rows.Scan(&id)
		if i, asked := p.First[id]; asked {
			there[i] = true // since a moment ago
		}
		return err
	})
	switch {
	case err == nil:
		for _, i := range chunk.at {
			settled[i] = !there[i]
		}
		return nil
	case !lockedOut(err):
		return err
	case c.server.tableLocked(err):
		return errTableLocked
	case len(chunk.at) == 1:
		return nil
	}
	half := len(chunk.at) / 2
	if err := t.gone(ctx, c, p, &lookup{chunk.at[:half], chunk.keys[:half]}, settled); err != nil {
		return err
	}
	return t.gone(ctx, c, p, &lookup{chunk.at[half:], chunk.keys[half:]}, settled)
}
