package mysql

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
	"github.com/sluicebox/sluicebox/store/internal/finding"
)

// Check implements store.Installer. What it finds is one *store.SetupError: all that
// Examine grades a store.Fault, but for what may pass by itself. It has a session of
// its own: MariaDB shows columns to one as the rights were when it first asked.
func (s *Store) Check(ctx context.Context) error {
	var c checker
	err := s.onOwn(ctx, func(ctx context.Context, on *conn) error {
		c.conn = on
		return c.run(ctx, s)
	})
	if err != nil {
		return fmt.Errorf("check the tables: %w", Explain(err))
	}
	return c.Err()
}

// checker gathers findings.
type checker struct {
	finding.List
	conn     *conn
	thorough bool // advice is wanted too, and what may pass by itself
}

func (c *checker) run(ctx context.Context, s *Store) error {
	if err := c.ofServer(ctx); err != nil {
		return err
	}
	if err := c.own(ctx); err != nil {
		return err
	}
	for _, name := range s.outboxes.Names() {
		if err := c.outbox(ctx, s.outboxes.Known(name)); err != nil {
			return err
		}
	}
	return nil
}

// ofServer looks at the server and the account.
func (c *checker) ofServer(ctx context.Context) error {
	on := &c.conn.server
	c.Subject = "server"
	c.Add(store.Fine, on.name()+" "+on.version)
	what, err := on.multiPrimary(ctx, c.conn)
	if err != nil {
		return err
	}
	if what != "" {
		c.Fault("it is one of several that take writes, "+what+": two relays could lead at a time", onePrimary)
	}
	if c.thorough {
		if err := c.state(ctx); err != nil {
			return err
		}
	}
	c.Subject = "account"
	c.Add(store.Fine, account(on.account))
	return nil
}

// own checks the relay's own tables.
func (c *checker) own(ctx context.Context) error {
	c.Subject = "own tables"
	before, there := c.Faults(), 0
	for _, t := range ownTables() {
		found, err := hasTable(ctx, c.conn, ownPrefix+t.name)
		if err != nil {
			return err
		}
		if found {
			there++
		}
	}
	if there == 0 {
		return c.ownAbsent(ctx)
	}
	for _, t := range ownTables() {
		found, err := hasTable(ctx, c.conn, ownPrefix+t.name)
		if err != nil {
			return err
		}
		if !found {
			c.Fault("the relay's own table "+ownPrefix+t.name+" is not there, or the account has no right on it", initialize)
			continue
		}
		if err := c.ownRights(ctx, t); err != nil {
			return err
		}
	}
	if c.Faults() > before {
		return nil
	}
	return c.version(ctx)
}

// ownAbsent says that the own tables are not there, or that the account may not see
// them: a server tells nobody who has no right on a table that it is there.
func (c *checker) ownAbsent(ctx context.Context) error {
	sees, err := c.may(ctx, "SELECT 1 FROM "+Ident(ownPrefix+"meta"))
	if sees || code(err) == codeNoTable {
		c.Fault("the relay's own tables are not there", initialize)
		return nil
	}
	if err == nil {
		c.Fault("the relay's own tables are not there, or the account has no right on them",
			append([]string{"-- unless they are there, " + initialize + " as an account that has CREATE; then"}, grantAll(&c.conn.server)...)...)
	}
	return err
}

// ownRights checks what the account may do to one of the own tables, by asking for the
// plans of statements that would do it.
func (c *checker) ownRights(ctx context.Context, t ownTable) error {
	name, key := Ident(ownPrefix+t.name), "name"
	if t.name == "meta" {
		key = "one"
	}
	try := map[string]string{
		"SELECT": "SELECT 1 FROM " + name + " AS o WHERE o." + key + " = ''",
		"INSERT": "INSERT INTO " + name + " SELECT * FROM " + name,
		"UPDATE": "UPDATE " + name + " SET " + key + " = " + key + " WHERE " + key + " = ''",
		"DELETE": "DELETE FROM " + name + " WHERE " + key + " = ''",
	}
	var lacks []string
	for _, right := range t.rights {
		may, err := c.may(ctx, try[right])
		if err != nil {
			return err
		}
		if !may {
			lacks = append(lacks, right)
		}
	}
	if len(lacks) > 0 {
		c.Fault(fmt.Sprintf("%s lacks %s on %s%s", account(c.conn.server.account), strings.Join(lacks, ", "), ownPrefix, t.name),
			grant(&c.conn.server, lacks, ownPrefix+t.name))
	}
	return nil
}

// may reports whether the account may run a statement. The server checks that before
// it makes a plan, also for what the account has by roles.
func (c *checker) may(ctx context.Context, text string) (bool, error) {
	rows, err := c.conn.on.QueryContext(ctx, "EXPLAIN "+text)
	if err == nil {
		err = rows.Close() // where MariaDB says it
	}
	if n := code(err); n == codeTableDenied || n == codeColumnDenied {
		return false, nil
	}
	return err == nil, err
}

func (c *checker) version(ctx context.Context) error {
	have, err := installed(ctx, c.conn)
	var newer *store.SetupError
	switch {
	case errors.As(err, &newer):
		c.Setup(newer)
		return nil
	case err != nil:
		return err
	case have < version:
		c.Fault(fmt.Sprintf("the relay's own tables have version %d, and this program needs %d", have, version), initialize)
		return nil
	}
	c.Add(store.Fine, fmt.Sprintf("version %d, with the rights that the relay needs", version))
	return nil
}

// outbox checks a table of rows.
func (c *checker) outbox(ctx context.Context, o *store.Outbox) error {
	c.Subject = "outbox " + o.Name
	before := c.Faults()
	t, err := readTable(ctx, c.conn, o)
	var setup *store.SetupError
	if errors.As(err, &setup) {
		return c.unseen(ctx, o, columns.Missing(&o.Layout, func(string) bool { return false }), setup)
	}
	if err != nil {
		return err
	}
	if missing := t.lacks(); len(missing) > 0 {
		return c.unseen(ctx, o, missing, &store.SetupError{
			Problem: t.missingText(missing),
			Remedy:  fmt.Sprintf("add the columns to %s, or name others in layout %s", TableName(o), o.Layout.Name),
		})
	}
	c.types(t)
	c.index(t)
	if err := c.rights(ctx, t); err != nil || c.Faults() > before {
		return err
	}
	c.Add(store.Fine, fmt.Sprintf("%s has the columns of layout %s, and the account the rights that the relay needs", TableName(o), o.Layout.Name))
	if !c.thorough {
		return nil
	}
	return c.unsettledIndex(ctx, t)
}

// unseen says that a table or columns of it are not there, or that the account may not
// see them.
func (c *checker) unseen(ctx context.Context, o *store.Outbox, names []string, setup *store.SetupError) error {
	list := make([]string, len(names))
	for i, name := range names {
		list[i] = Ident(name)
	}
	all := strings.Join(list, ", ")
	may, err := c.may(ctx, "SELECT "+all+" FROM "+TableName(o)+" WHERE 1 = 0")
	if err != nil && code(err) == 0 {
		return err
	}
	if err == nil && !may {
		on := &c.conn.server
		setup = &store.SetupError{Problem: setup.Problem, Remedy: fmt.Sprintf("-- %s; or, if the account may not see what is there:\nGRANT SELECT (%s) ON %s TO %s;",
			setup.Remedy, all, whole(o, on), account(on.account))}
	}
	c.Setup(setup)
	return nil
}

// index checks that a row can be found by its id, and only it: without an index every
// claim reads the whole table and locks it, and of two rows of one id the outcome of
// the one would be written into the other too. A partitioned table can only be unique
// in its id together with what it is partitioned by.
func (c *checker) index(t *table) {
	if !strings.EqualFold(t.engine, "InnoDB") {
		c.Fault(fmt.Sprintf("%s is kept by %s, which knows no transactions that lock rows", TableName(t.Outbox), t.engine),
			"-- this locks the table while it is written anew", "ALTER TABLE "+TableName(t.Outbox)+" ENGINE = InnoDB;")
	}
	if !t.unique {
		c.Fault(fmt.Sprintf("no unique index of %s begins with the id, column %s", TableName(t.Outbox), t.Layout.Columns.ID),
			fmt.Sprintf("CREATE UNIQUE INDEX %s ON %s (%s);", Ident(t.Table+"_"+t.Layout.Columns.ID), TableName(t.Outbox), Ident(t.Layout.Columns.ID)))
	}
}

// rights checks what the account may do to the columns.
func (c *checker) rights(ctx context.Context, t *table) error {
	lacks := map[string][]string{}
	name := TableName(t.Outbox)
	for _, u := range columns.Uses(&t.Layout) {
		col := Ident(u.Column)
		for right, text := range map[string]string{
			"SELECT": "SELECT " + col + " FROM " + name + " WHERE 1 = 0",
			"UPDATE": "UPDATE " + name + " SET " + col + " = " + col + " WHERE 1 = 0",
		} {
			if right == "UPDATE" && !u.Write {
				continue
			}
			may, err := c.may(ctx, text)
			if err != nil {
				return err
			}
			if !may {
				lacks[right] = append(lacks[right], col)
			}
		}
	}
	on := &c.conn.server
	for _, right := range []string{"SELECT", "UPDATE"} {
		if list := strings.Join(lacks[right], ", "); list != "" {
			c.Fault(fmt.Sprintf("%s lacks %s on %s (%s)", account(on.account), right, name, list),
				fmt.Sprintf("GRANT %s (%s) ON %s TO %s;", right, list, whole(t.Outbox, on), account(on.account)))
		}
	}
	deletes := t.Layout.DeleteDelivered && t.Layout.State != store.StateNone || t.Retention > 0
	if !deletes {
		return nil
	}
	may, err := c.may(ctx, "DELETE FROM "+name+" WHERE 1 = 0")
	if err == nil && !may {
		c.Fault(fmt.Sprintf("%s lacks DELETE on %s", account(on.account), name), fmt.Sprintf("GRANT DELETE ON %s TO %s;", whole(t.Outbox, on), account(on.account)))
	}
	return err
}

// whole is a table's name with its database, which a grant needs.
func whole(o *store.Outbox, s *server) string {
	if o.Schema != "" {
		return TableName(o)
	}
	return Ident(s.database, o.Table)
}

// stateColumns are those of the state of a row.
func (t *table) stateColumns() []string {
	c := &t.Layout.Columns
	return slices.DeleteFunc([]string{c.Status, c.Delivered, c.Failed}, func(name string) bool { return name == "" })
}
