package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/store"
)

// Check implements store.Installer. What it finds is one *store.SetupError.
func (s *Store) Check(ctx context.Context) error {
	var found findings
	err := s.writer.do(ctx, func(ctx context.Context) error {
		conn := s.writer.conn
		// A file that may only be read refuses the transaction.
		err := conn.Write(ctx, Normal, func(context.Context) error { return nil })
		if err != nil {
			return err
		}
		return conn.Read(ctx, func(ctx context.Context) error {
			found = findings{}
			c := &checker{conn: conn, findings: &found}
			return c.run(ctx, s)
		})
	})
	if err != nil {
		return fmt.Errorf("check the tables: %w", Explain(err))
	}
	return found.err()
}

// findings gathers what is wrong and what to do about it.
type findings struct {
	problems, remedies []string
}

func (f *findings) add(problem, remedy string) {
	f.problems = append(f.problems, problem)
	if !slices.Contains(f.remedies, remedy) {
		f.remedies = append(f.remedies, remedy)
	}
}

func (f *findings) err() error {
	if len(f.problems) == 0 {
		return nil
	}
	return &store.SetupError{
		Problem: strings.Join(f.problems, "\n"),
		Remedy:  "to mend it:\n" + strings.Join(f.remedies, "\n"),
	}
}

type checker struct {
	*findings
	conn *Conn
}

func (c *checker) run(ctx context.Context, s *Store) error {
	if err := c.own(ctx); err != nil {
		return err
	}
	for _, name := range s.order {
		if err := c.outbox(ctx, s.outboxes[name]); err != nil {
			return err
		}
	}
	return nil
}

// own checks the relay's own tables.
func (c *checker) own(ctx context.Context) error {
	have, err := installed(ctx, c.conn)
	var setup *store.SetupError
	switch {
	case errors.As(err, &setup):
		c.add(setup.Problem, setup.Remedy)
		return nil
	case err != nil:
		return err
	case have == 0:
		c.add("the relay's own tables are not there", initialize)
		return nil
	case have < version:
		c.add(fmt.Sprintf("the relay's own tables have version %d, and this program needs %d", have, version), initialize)
		return nil
	}
	for _, name := range []string{"sluicebox_leader", "sluicebox_checkpoint", "sluicebox_parked", "sluicebox_hold"} {
		there, err := hasTable(ctx, c.conn, name)
		if err != nil {
			return err
		}
		if !there {
			c.add("the relay's own table "+name+" is not there, though sluicebox_meta says it is",
				"restore it, or drop sluicebox_meta and every other sluicebox_ table, and "+initialize+": the relay then begins anew")
		}
	}
	return nil
}

// outbox checks a table of rows.
func (c *checker) outbox(ctx context.Context, o *store.Outbox) error {
	t, err := readTable(ctx, c.conn, o)
	var setup *store.SetupError
	if errors.As(err, &setup) {
		c.add(setup.Problem, setup.Remedy)
		return nil
	}
	if err != nil {
		return err
	}
	if missing := t.missing(); len(missing) > 0 {
		c.add(t.missingText(missing), fmt.Sprintf("add the columns to %s, or name others in layout %s", TableName(o), o.Layout.Name))
		return nil
	}
	c.types(t)
	return c.index(ctx, t)
}

// types checks that the columns keep what the relay writes as it is.
func (c *checker) types(t *table) {
	l := &t.Layout
	id := t.col(l.Columns.ID)
	if id.affinity == affinityReal {
		c.add(fmt.Sprintf("outbox %s: the id, column %s of %s, is declared as %s, and a REAL number has no exact text", t.Name, id.name, TableName(t.Outbox), id.declared),
			"name another column as the id, or declare it as INTEGER or TEXT")
	}
	if l.State == store.StateNone {
		return
	}
	for _, name := range []string{l.Columns.Claimed, l.Columns.Settled, l.Columns.Delivered, l.Columns.Failed} {
		if name == "" {
			continue
		}
		if col := t.col(name); col.affinity == affinityReal {
			c.add(fmt.Sprintf("outbox %s: column %s (%s) of %s is declared as %s, and the relay writes times as text or as an integer",
				t.Name, name, l.Key(name), TableName(t.Outbox), col.declared),
				fmt.Sprintf("name another column in layout %s, or declare it as TEXT or INTEGER", l.Name))
		}
	}
	if l.State != store.StateTimestamps {
		return
	}
	for _, name := range []string{l.Columns.Delivered, l.Columns.Failed} {
		if t.col(name).notNull {
			c.add(fmt.Sprintf("outbox %s: column %s (%s) of %s is NOT NULL, and a row is open while it is NULL",
				t.Name, name, l.Key(name), TableName(t.Outbox)),
				"name a column that a service leaves NULL, or declare this one without NOT NULL")
		}
	}
}

// index checks that a row can be found by its id: without an index every claim
// reads the whole table.
func (c *checker) index(ctx context.Context, t *table) error {
	const find = `
SELECT 1 FROM pragma_table_xinfo(?1) WHERE name = ?2 COLLATE NOCASE AND pk = 1 AND type = 'INTEGER' COLLATE NOCASE
UNION ALL
SELECT 1 FROM pragma_index_list(?1) AS l JOIN pragma_index_xinfo(l.name) AS x
WHERE l.partial = 0 AND x.seqno = 0 AND x.name = ?2 COLLATE NOCASE LIMIT 1`
	id := t.col(t.Layout.Columns.ID)
	found := false
	err := c.conn.Query(ctx, find, []any{t.Table, id.name}, func([]driver.Value) error { found = true; return nil })
	if err == nil && !found {
		c.add(fmt.Sprintf("outbox %s: no index of %s begins with the id, column %s", t.Name, TableName(t.Outbox), id.name),
			fmt.Sprintf("CREATE UNIQUE INDEX %s ON %s (%s);", Ident(t.Table+"_"+id.name), TableName(t.Outbox), Ident(id.name)))
	}
	return err
}
