package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
	"github.com/sluicebox/sluicebox/store/internal/finding"
)

// Check implements store.Installer. It returns one *store.SetupError with every finding that
// Diagnose grades a fault.
func (s *Store) Check(ctx context.Context) error {
	var c checker
	err := s.writer.do(ctx, func(ctx context.Context) (err error) {
		c, err = s.checkOn(ctx, s.writer.conn, false)
		return err
	})
	if err != nil {
		return fmt.Errorf("check tables: %w", Explain(err))
	}
	return c.Err()
}

// checkOn runs the checks on a connection.
func (s *Store) checkOn(ctx context.Context, conn *Conn, thorough bool) (c checker, err error) {
	// A read-only file refuses the transaction.
	err = conn.Write(ctx, Normal, func(context.Context) error { return nil })
	if err != nil {
		return c, err
	}
	err = conn.Read(ctx, func(ctx context.Context) error {
		c = checker{conn: conn, thorough: thorough} // the transaction may be retried
		return c.run(ctx, s)
	})
	return c, err
}

// checker collects findings.
type checker struct {
	finding.List
	conn     *Conn
	thorough bool // report advice too
}

func (c *checker) run(ctx context.Context, s *Store) error {
	if err := c.checkOwnTables(ctx); err != nil {
		return err
	}
	for _, name := range s.outboxes.Names() {
		if err := c.outbox(ctx, s.outboxes.Lookup(name)); err != nil {
			return err
		}
	}
	return nil
}

// checkOwnTables checks the relay's tables.
func (c *checker) checkOwnTables(ctx context.Context) error {
	c.Subject = "relay tables"
	before := c.CountFaults()
	have, err := installed(ctx, c.conn)
	var setup *store.SetupError
	switch {
	case errors.As(err, &setup):
		c.AddSetupError(setup)
		return nil
	case err != nil:
		return err
	case have == 0:
		c.AddFault("relay tables do not exist", initHint)
		return nil
	case have < version:
		c.AddFault(fmt.Sprintf("relay tables have version %d, this program needs %d", have, version), initHint)
		return nil
	}

	for _, name := range []string{"sluicebox_leader", "sluicebox_record", "sluicebox_queue"} {
		exists, err := hasTable(ctx, c.conn, name)
		if err != nil {
			return err
		}
		if !exists {
			c.AddFault("relay table "+name+" does not exist, but sluicebox_meta lists its version",
				"restore it, or drop sluicebox_meta and every other sluicebox_ table, and "+initHint+": the relay then starts over")
		}
	}
	if c.CountFaults() == before {
		c.Add(store.GradeOK, fmt.Sprintf("version %d", version), "")
	}
	return nil
}

// outbox checks an outbox table.
func (c *checker) outbox(ctx context.Context, o *store.Outbox) error {
	c.Subject = "outbox " + o.Name
	before := c.CountFaults()
	t, err := readTable(ctx, c.conn, o)
	if setup, ok := errors.AsType[*store.SetupError](err); ok {
		c.AddSetupError(setup)
		return nil
	}
	if err != nil {
		return err
	}
	if missing := t.Missing(); len(missing) > 0 {
		c.AddSetupError(t.MissingError(missing, nil))
		return nil
	}

	c.types(t)
	for _, check := range []func(context.Context, *table) error{c.index, c.archives} {
		if err := check(ctx, t); err != nil {
			return err
		}
	}
	if c.CountFaults() > before {
		return nil
	}

	c.Add(store.GradeOK, fmt.Sprintf("%s has the columns of layout %s", TableName(o), o.Layout.Name), "")
	if !c.thorough {
		return nil
	}
	return c.unsettledIndex(ctx, t)
}

// types checks that the columns store the relay's values unchanged.
func (c *checker) types(t *table) {
	l := &t.Layout
	id := t.MustColumn(l.Columns.ID)
	if id.affinity == affinityReal {
		c.AddFault(fmt.Sprintf("id column %s of %s is declared as %s, and a REAL number has no exact text", id.name, TableName(t.Outbox), id.declared),
			"use another column as the id, or declare it as INTEGER or TEXT")
	}
	if l.State == store.StateNone {
		return
	}

	for _, name := range []string{l.Columns.Claimed, l.Columns.Settled, l.Columns.Delivered, l.Columns.Failed} {
		if name == "" {
			continue
		}
		if col := t.MustColumn(name); col.affinity == affinityReal {
			c.AddFault(fmt.Sprintf("column %s (%s) of %s is declared as %s, and the relay writes times as text or as an integer",
				name, l.ConfigKey(name), TableName(t.Outbox), col.declared),
				fmt.Sprintf("use another column in layout %s, or declare it as TEXT or INTEGER", l.Name))
		}
	}
	for i := range l.Record {
		r := &l.Record[i]
		col, is := t.MustColumn(r.Column), "a text"
		if r.Max > 0 {
			is = "an integer"
		}
		converts := []affinity{affinityReal}
		if r.Max == 0 {
			converts = append(converts, affinityInteger, affinityNumeric)
		}
		if slices.Contains(converts, col.affinity) {
			c.AddFault(fmt.Sprintf("column %s (%s) of %s is declared as %s, and the receipt is %s", col.name, r.Key(), TableName(t.Outbox), col.declared, is),
				"use another column in record, or declare it as TEXT")
		}
	}
	for _, n := range columns.Nullable(l) {
		if t.MustColumn(n.Column).notNull {
			c.AddFault(fmt.Sprintf("column %s (%s) of %s is NOT NULL, but must be NULL in %s",
				n.Column, l.ConfigKey(n.Column), TableName(t.Outbox), n.Marks),
				"use a column that services leave NULL, or declare this one without NOT NULL")
		}
	}
}

// index checks that an index finds a row by its id, because otherwise every claim scans the
// table.
func (c *checker) index(ctx context.Context, t *table) error {
	const find = `
SELECT 1 FROM pragma_table_xinfo(?1) WHERE name = ?2 COLLATE NOCASE AND pk = 1 AND type = 'INTEGER' COLLATE NOCASE
UNION ALL
SELECT 1 FROM pragma_index_list(?1) AS l JOIN pragma_index_xinfo(l.name) AS x
WHERE l.partial = 0 AND x.seqno = 0 AND x.name = ?2 COLLATE NOCASE LIMIT 1`
	id := t.MustColumn(t.Layout.Columns.ID)
	found := false
	err := c.conn.Query(ctx, find, []any{t.Table, id.name}, func([]driver.Value) error { found = true; return nil })
	if err == nil && !found {
		c.AddFault(fmt.Sprintf("no index of %s begins with the id column %s", TableName(t.Outbox), id.name),
			uniqueIndex(t.Outbox, id.name))
	}
	return err
}

// uniqueIndex returns the statement that creates a unique index on a column.
func uniqueIndex(o *store.Outbox, name string) string {
	return fmt.Sprintf("CREATE UNIQUE INDEX %s ON %s (%s);", Ident(o.Table+"_"+name), TableName(o), Ident(name))
}
