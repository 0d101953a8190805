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
	err = lookAll(ctx, s.operator, parts, func(ctx context.Context, c *conn, p *byoutbox.Part) error {
		for _, i := range p.At {
			settled[i] = false
		}
		if p.Outbox.Layout.State == store.StateNone {
			return nil // a table without states tells nothing
		}
		return lookAt(ctx, c, p, func(t *table) []look { return []look{t.settledLook(p, rows, settled)} })
	})
	if err != nil {
		return nil, fmt.Errorf("look for settled rows: %w", Explain(err))
	}
	return settled, nil
}

// settledLook tells which rows are settled. Of an id that came twice nothing is said at
// its second place.
func (t *table) settledLook(p *byoutbox.Part, rows []store.ClaimRow, settled []bool) look {
	var open bool
	return look{
		at: p.At, rows: rows,
		columns: func(s *statement) string { return t.open(s) + " IS TRUE" },
		into:    []any{&open},
		tell:    func(i int, again bool) { settled[i] = !open && (settled[i] || !again) },
		gone:    func(i int) { settled[i] = true },
		unknown: func(i int) { settled[i] = false },
	}
}

// look is what is asked of rows of one outbox, by their places in a call.
type look struct {
	at   []int
	rows []store.ClaimRow
	// columns makes what is read of each row into some values.
	columns func(*statement) string
	into    []any
	// tell takes what was read of a row; again says that there is another one of its
	// id. gone and unknown say what else may be.
	tell          func(i int, again bool)
	gone, unknown func(i int)
}

// errTableLocked says that somebody has locked a table whole, so that no row of it can
// be locked.
var errTableLocked = errors.New("the table is locked")

// lookAll runs a look at the rows of each outbox in one transaction.
func lookAll(ctx context.Context, on *link, parts []*byoutbox.Part, at func(context.Context, *conn, *byoutbox.Part) error) error {
	return on.do(ctx, func(ctx context.Context, c *conn) (err error) {
		for range claimTries {
			err = c.tx(ctx, func() error {
				for _, p := range parts {
					if err := at(ctx, c, p); err != nil {
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
}

// lookAt asks for the rows of one outbox. Of a table that somebody has locked whole
// nothing is known. It returns errMoved where rows seem gone and the table is not what
// it was.
func lookAt(ctx context.Context, c *conn, p *byoutbox.Part, looks func(*table) []look) error {
	t, err := c.table(ctx, p.Outbox)
	if err != nil {
		return err
	}
	all, gone := looks(t), false
	for k := range all {
		missed, err := t.lookUp(ctx, c, p, &all[k])
		if errors.Is(err, errTableLocked) {
			for k := range all {
				for _, i := range all[k].at {
					all[k].unknown(i)
				}
			}
			return nil
		}
		if err != nil {
			return err
		}
		gone = gone || missed
	}
	if !gone {
		return nil
	}
	altered, err := c.altered(ctx, p.Outbox)
	if altered {
		return errMoved
	}
	return err
}

// lookUp looks at rows, and reports whether any of them is gone.
func (t *table) lookUp(ctx context.Context, c *conn, p *byoutbox.Part, l *look) (gone bool, err error) {
	var all, absent lookup
	found := map[int]bool{}
	for _, i := range l.at {
		if key, can := t.id().key(l.rows[i].ID); can {
			all.add(i, key)
		} else {
			l.gone(i) // no row can have it
			gone = true
		}
	}
	err = all.chunks(func(chunk *lookup) error {
		s := &statement{}
		text := "SELECT " + t.id().textOf() + ", " + l.columns(s) + "\nFROM " + t.from() + "\nWHERE " + t.among(s, chunk.keys)
		return c.query(ctx, text, s.args, func(rows *sql.Rows) error {
			var id string
			if err := rows.Scan(append([]any{&id}, l.into...)...); err != nil {
				return err
			}
			if i, asked := p.First[id]; asked {
				l.tell(i, found[i])
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
	err = absent.chunks(func(chunk *lookup) error { return t.gone(ctx, c, p, chunk, l) })
	return gone || len(absent.at) > 0, err
}

// gone tells which rows are not there and are not being inserted. A read that meets a
// lock is split until the row stands alone that is locked.
func (t *table) gone(ctx context.Context, c *conn, p *byoutbox.Part, chunk *lookup, l *look) error {
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
			if there[i] {
				l.unknown(i)
			} else {
				l.gone(i)
			}
		}
		return nil
	case !lockedOut(err):
		return err
	case c.server.tableLocked(err):
		return errTableLocked
	case len(chunk.at) == 1:
		l.unknown(chunk.at[0])
		return nil
	}
	half := len(chunk.at) / 2
	if err := t.gone(ctx, c, p, &lookup{chunk.at[:half], chunk.keys[:half]}, l); err != nil {
		return err
	}
	return t.gone(ctx, c, p, &lookup{chunk.at[half:], chunk.keys[half:]}, l)
}
