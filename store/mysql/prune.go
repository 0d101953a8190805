package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
	"github.com/sluicebox/sluicebox/store/internal/finding"
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
		t, err := c.tableToCopy(ctx, o, o.Archive != "")
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

// tableToCopy describes the table of an outbox. If rows are copied from it, it is read anew, so
// that a column that was added since is copied too.
func (c *conn) tableToCopy(ctx context.Context, o *store.Outbox, copies bool) (*table, error) {
	if copies {
		return describe(ctx, c, o)
	}
	return c.table(ctx, o)
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

	copied := int64(0)
	if t.Archive != "" {
		st = &statement{}
		text = t.copyInto(t.ArchiveTable()) + "\nSELECT o.* FROM " + t.from() + "\nWHERE " + t.lockedIDIn(st, free) + " AND " + t.deliveredBefore(st, before)
		if copied, err = c.exec(ctx, text, st.args...); err != nil {
			return 0, err
		}
	}

	st = &statement{}
	text = "DELETE o FROM " + t.from() + "\nWHERE " + t.lockedIDIn(st, free) + " AND " + t.deliveredBefore(st, before)
	deleted, err := c.exec(ctx, text, st.args...)
	if err == nil && t.Archive != "" {
		err = columns.CheckCopied(TableName(t.ArchiveTable()), copied, deleted)
	}
	return deleted, err
}

// copyInto begins the statement that copies rows into an archive.
func (t *table) copyInto(archive *store.Outbox) string {
	return t.CopyInto(TableName(archive), func(name string) string { return Ident(name) })
}

// archives checks that rows can be moved into the outbox's archives.
func (c *checker) archives(ctx context.Context, t *table) error {
	for _, to := range t.ArchiveTables() {
		if err := c.archive(ctx, t, to); err != nil {
			return err
		}
	}
	return nil
}

func (c *checker) archive(ctx context.Context, t *table, to *store.Outbox) error {
	srv := &c.conn.server
	name, from := TableName(to), TableName(t.Outbox)
	grants := fmt.Sprintf("GRANT SELECT ON %s TO %s; GRANT SELECT, INSERT ON %s TO %[2]s;", qualifiedName(t.Outbox, srv), Account(srv.account), qualifiedName(to, srv))
	a, err := readTable(ctx, c.conn, to)
	if errors.As(err, new(*store.SetupError)) {
		c.AddNoArchive(name, fmt.Sprintf("CREATE TABLE %s LIKE %s; %s", name, from, grants))
		return nil
	}
	if err != nil {
		return err
	}
	before := c.CountFaults()
	c.AddArchive(&finding.Archive{Outbox: from, Name: name, Have: a.archived(), Want: t.archived(), Same: t.Same, Ident: func(name string) string { return Ident(name) }})
	if c.CountFaults() > before {
		return nil
	}

	allowed, err := c.canRun(ctx, t.copyInto(to)+" SELECT o.* FROM "+from+" AS o WHERE 1 = 0")
	switch {
	case err != nil && code(err) != 0:
		c.AddFault(fmt.Sprintf("archive %s cannot take rows of %s: %v", name, from, err), "-- make its columns plain ones: a generated column takes no value")
		return nil
	case err == nil && !allowed:
		c.AddFault(fmt.Sprintf("%s may not copy rows of %s into the archive %s", Account(srv.account), from, name), grants)
	}
	return err
}

// archived returns the columns as the shared checks of an archive see them.
func (t *table) archived() []finding.ArchiveColumn {
	list := make([]finding.ArchiveColumn, len(t.Columns))
	for i, c := range t.Columns {
		list[i] = finding.ArchiveColumn{Name: c.name, Type: c.full}
	}
	return list
}
