package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
	"github.com/sluicebox/sluicebox/store/internal/finding"
)

// Check implements store.Installer. It returns every finding that Diagnose grades a
// store.Fault in one *store.SetupError, except conditions that may pass by themselves. It
// has a session of its own because MariaDB shows a session the columns as of the rights
// at its first query.
func (s *Store) Check(ctx context.Context) error {
	var c checker
	err := s.onNewSession(ctx, func(ctx context.Context, on *conn) error {
		c.conn = on
		return c.run(ctx, s)
	})
	if err != nil {
		return fmt.Errorf("check tables: %w", Explain(err))
	}
	return c.Err()
}

// checker collects findings.
type checker struct {
	finding.List
	conn     *conn
	thorough bool // also report advice and conditions that may pass
}

func (c *checker) run(ctx context.Context, s *Store) error {
	if err := c.checkServer(ctx); err != nil {
		return err
	}
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

// checkServer checks the server and the account.
func (c *checker) checkServer(ctx context.Context) error {
	srv := &c.conn.server
	c.Subject = "server"
	c.Add(store.GradeOK, srv.name()+" "+srv.version)
	cluster, err := srv.multiPrimary(ctx, c.conn)
	if err != nil {
		return err
	}

	if cluster != "" {
		c.AddFault("several servers accept writes, "+cluster+": two relays could lead at the same time", onePrimary)
	}
	if err := c.format(ctx); err != nil {
		return err
	}

	if c.thorough {
		if err := c.checkWritable(ctx); err != nil {
			return err
		}
	}

	c.Subject = "account"
	c.Add(store.GradeOK, Account(srv.account))
	return nil
}

// format checks that the server accepts statements at the isolation level of the relay's
// sessions. With binlog_format = STATEMENT it refuses them, and few accounts may change
// the format of their own session.
func (c *checker) format(ctx context.Context) error {
	logs, err := c.conn.variable(ctx, "log_bin")
	if err != nil || logs != "ON" {
		return err
	}
	format, err := c.conn.variable(ctx, "binlog_format")
	if err == nil && format == "STATEMENT" {
		c.AddFault("binlog_format is STATEMENT: server refuses the relay's READ COMMITTED transactions", c.conn.server.setGlobal("binlog_format", "ROW")...)
	}
	return err
}

// checkOwnTables checks the relay's tables.
func (c *checker) checkOwnTables(ctx context.Context) error {
	c.Subject = "relay tables"
	before, existing := c.CountFaults(), map[string]bool{}
	for _, t := range ownTables() {
		found, err := hasTable(ctx, c.conn, ownPrefix+t.name)
		if err != nil {
			return err
		}
		if found {
			existing[t.name] = true
		}
	}

	if len(existing) == 0 {
		return c.reportNoOwnTables(ctx)
	}
	var unusable *store.SetupError
	if _, err := installed(ctx, c.conn); errors.As(err, &unusable) {
		c.AddSetupError(unusable)
		return nil
	}
	for _, t := range ownTables() {
		if !existing[t.name] {
			c.AddFault("relay table "+ownPrefix+t.name+" does not exist, or the account has no right on it",
				"-- if it does not exist, "+initHint+" as an account that has CREATE; then", grant(&c.conn.server, t.rights, ownPrefix+t.name))
			continue
		}
		if err := c.checkOwnRights(ctx, t); err != nil {
			return err
		}
	}

	if c.CountFaults() > before {
		return nil
	}
	return c.version(ctx)
}

// reportNoOwnTables reports that the relay's tables are missing, or that the account may
// not see them: a server hides a table from an account without a right on it.
func (c *checker) reportNoOwnTables(ctx context.Context) error {
	visible, err := c.canRun(ctx, "SELECT 1 FROM "+Ident(ownPrefix+"meta"))
	if visible || code(err) == codeNoTable {
		c.AddFault("relay tables do not exist", initHint)
		return nil
	}
	if err == nil {
		c.AddFault("relay tables do not exist, or the account has no right on them",
			append([]string{"-- if they do not exist, " + initHint + " as an account that has CREATE; then"}, grantAll(&c.conn.server)...)...)
	}
	return err
}

// checkOwnRights checks the account's rights on one of the relay's tables: it asks for
// the plans of statements that need them.
func (c *checker) checkOwnRights(ctx context.Context, t ownTable) error {
	name, key := Ident(ownPrefix+t.name), "name"
	if t.name == "meta" {
		key = "one"
	}

	probes := map[string]string{
		"SELECT": "SELECT 1 FROM " + name + " AS o WHERE o." + key + " = ''",
		"INSERT": "INSERT INTO " + name + " () VALUES ()", // the last three need no SELECT
		"UPDATE": "UPDATE " + name + " SET " + key + " = ''",
		"DELETE": "DELETE FROM " + name,
	}

	var missing []string
	for _, right := range t.rights {
		allowed, err := c.canRun(ctx, probes[right])
		if err != nil {
			return err
		}
		if !allowed {
			missing = append(missing, right)
		}
	}

	if len(missing) > 0 {
		c.AddFault(fmt.Sprintf("%s lacks %s on %s%s", Account(c.conn.server.account), strings.Join(missing, ", "), ownPrefix, t.name),
			grant(&c.conn.server, missing, ownPrefix+t.name))
	}
	return nil
}

func (c *checker) version(ctx context.Context) error {
	have, err := installed(ctx, c.conn)
	if err != nil {
		return err
	}
	if have < version {
		c.AddFault(fmt.Sprintf("relay tables have version %d, this program needs %d", have, version), initHint)
		return nil
	}

	c.Add(store.GradeOK, fmt.Sprintf("version %d, all rights granted", version))
	return nil
}

// outbox checks the table of an outbox.
func (c *checker) outbox(ctx context.Context, o *store.Outbox) error {
	c.Subject = "outbox " + o.Name
	before := c.CountFaults()
	t, err := readTable(ctx, c.conn, o)
	if setup, ok := errors.AsType[*store.SetupError](err); ok {
		if err := c.similarTables(ctx, o, setup); err != nil {
			return err
		}
		return c.reportUnseen(ctx, o, columns.Missing(&o.Layout, func(string) bool { return false }), setup, setup.Remedy)
	}
	if err != nil {
		return err
	}

	if missing := t.Missing(); len(missing) > 0 {
		return c.reportUnseen(ctx, o, missing, t.MissingError(missing, nil), t.MissingError(missing, t.checked().AddColumns).Remedy)
	}

	c.types(t)
	if c.CountFaults() == before {
		if err := c.statusConstraints(ctx, t); err != nil {
			return err
		}
	}

	c.index(t)
	for _, check := range []func(context.Context, *table) error{c.rights, c.archives} {
		if err := check(ctx, t); err != nil {
			return err
		}
	}
	if c.CountFaults() > before {
		return nil
	}

	c.Add(store.GradeOK, fmt.Sprintf("%s has the columns of layout %s, and the account has the required rights", TableName(o), o.Layout.Name))
	if !c.thorough {
		return nil
	}
	return c.unsettledIndex(ctx, t)
}

// similarTables adds visible tables to a finding about a table's name, those with a
// similar spelling or sound first.
func (c *checker) similarTables(ctx context.Context, o *store.Outbox, setup *store.SetupError) error {
	const find = `
SELECT table_name FROM information_schema.tables
WHERE table_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND table_type <> 'VIEW' AND table_name <> ? AND table_name NOT LIKE 'sluicebox\\_%'
ORDER BY LOCATE(?, table_name) > 0 OR LOCATE(table_name, ?) > 0 DESC, LEFT(SOUNDEX(table_name), 4) = LEFT(SOUNDEX(?), 4) DESC, table_name LIMIT 5`

	var names []string
	err := c.conn.query(ctx, find, []any{o.Schema, o.Table, o.Table, o.Table, o.Table}, func(rows *sql.Rows) error {
		var name string
		err := rows.Scan(&name)
		names = append(names, name)
		return err
	})
	if err == nil && len(names) > 0 {
		setup.Problem += "; visible tables: " + strings.Join(names, ", ")
	}

	return err
}

// reportUnseen reports that a table or its columns are missing, or that the account may
// not see them. remedy is for the first case.
func (c *checker) reportUnseen(ctx context.Context, o *store.Outbox, names []string, setup *store.SetupError, remedy string) error {
	list := func(names []string) string {
		quoted := make([]string, len(names))
		for i, name := range names {
			quoted[i] = Ident(name)
		}
		return strings.Join(quoted, ", ")
	}

	allowed, err := c.canRun(ctx, "SELECT "+list(names)+" FROM "+TableName(o)+" WHERE 1 = 0")
	if err != nil && code(err) == 0 {
		return err
	}
	if err == nil && !allowed {
		srv := &c.conn.server
		all := list(columns.Missing(&o.Layout, func(string) bool { return false }))
		setup = &store.SetupError{Problem: setup.Problem, Remedy: fmt.Sprintf("-- %s; or, if it exists and the account may not see it:\nGRANT SELECT (%s) ON %s TO %s;",
			setup.Remedy, all, qualifiedName(o, srv), Account(srv.account))}
	} else {
		setup.Remedy = remedy
	}

	c.AddSetupError(setup)
	return nil
}

// index checks for a unique index on the id. Without an index every claim reads and locks
// the whole table, and if two rows share an id, the outcome of one is also written to the
// other. On a partitioned table a unique index must include the partitioning columns, so
// any unique index that begins with the id is accepted there.
func (c *checker) index(t *table) {
	if !strings.EqualFold(t.engine, "InnoDB") {
		c.AddFault(fmt.Sprintf("%s uses storage engine %s, which has no row locks", TableName(t.Outbox), t.engine),
			"-- this locks the table while it is rebuilt", "ALTER TABLE "+TableName(t.Outbox)+" ENGINE = InnoDB;")
	}
	if !t.unique {
		c.AddFault(fmt.Sprintf("no unique index of %s begins with the id, column %s", TableName(t.Outbox), t.Layout.Columns.ID),
			uniqueIndex(t.Outbox, t.Layout.Columns.ID))
	}
}

// uniqueIndex returns the statement that creates a unique index on a column.
func uniqueIndex(o *store.Outbox, name string) string {
	return fmt.Sprintf("CREATE UNIQUE INDEX %s ON %s (%s);", Ident(o.Table+"_"+name), TableName(o), Ident(name))
}

// canRun reports whether the account may run a statement. The server checks the rights,
// including those granted by roles, before it plans the statement.
func (c *checker) canRun(ctx context.Context, text string) (bool, error) {
	rows, err := c.conn.sqlConn.QueryContext(ctx, "EXPLAIN "+text)
	if err == nil {
		err = rows.Close() // MariaDB reports the error here
	}
	switch code(err) {
	case codeTableDenied, codeColumnDenied:
		return false, nil
	case codeReadOnlyServer, codeReadOnly, codeReadOnlyMode, codeStatementFormat: // checked elsewhere
		return true, nil
	}
	return err == nil, err
}

// rights checks the account's rights on the columns.
func (c *checker) rights(ctx context.Context, t *table) error {
	missing := map[string][]string{}
	name := TableName(t.Outbox)
	for _, u := range columns.UsedColumns(&t.Layout) {
		col := Ident(u.Column)
		for right, text := range map[string]string{
			"SELECT": "SELECT " + col + " FROM " + name + " WHERE 1 = 0",
			"UPDATE": "UPDATE " + name + " SET " + col + " = NULL WHERE 1 = 0", // needs no SELECT
		} {
			if right == "UPDATE" && !u.Write {
				continue
			}
			allowed, err := c.canRun(ctx, text)
			if err != nil {
				return err
			}
			if !allowed {
				missing[right] = append(missing[right], col)
			}
		}
	}

	srv := &c.conn.server
	for _, right := range []string{"SELECT", "UPDATE"} {
		if list := strings.Join(missing[right], ", "); list != "" {
			c.AddFault(fmt.Sprintf("%s lacks %s on %s (%s)", Account(srv.account), right, name, list),
				fmt.Sprintf("GRANT %s (%s) ON %s TO %s;", right, list, qualifiedName(t.Outbox, srv), Account(srv.account)))
		}
	}

	if !deletesRows(t.Outbox) {
		return nil
	}
	allowed, err := c.canRun(ctx, "DELETE FROM "+name+" WHERE 1 = 0")
	if err == nil && !allowed {
		c.AddFault(fmt.Sprintf("%s lacks DELETE on %s", Account(srv.account), name), fmt.Sprintf("GRANT DELETE ON %s TO %s;", qualifiedName(t.Outbox, srv), Account(srv.account)))
	}

	return err
}

// deletesRows reports whether the relay itself deletes rows of an outbox.
func deletesRows(o *store.Outbox) bool {
	return o.Layout.DeleteDelivered || o.Retention > 0 || o.FailedArchive != ""
}

// grantOutbox returns the GRANT for everything that the relay does with an outbox's
// table.
func grantOutbox(s *server, o *store.Outbox) string {
	var read, write []string
	for _, u := range columns.UsedColumns(&o.Layout) {
		read = append(read, Ident(u.Column))
		if u.Write {
			write = append(write, Ident(u.Column))
		}
	}

	rights := "SELECT (" + strings.Join(read, ", ") + ")"
	if len(write) > 0 {
		rights += ", UPDATE (" + strings.Join(write, ", ") + ")"
	}

	if deletesRows(o) {
		rights += ", DELETE"
	}
	return fmt.Sprintf("GRANT %s ON %s TO %s;", rights, qualifiedName(o, s), Account(s.account))
}

// qualifiedName returns a table's name with its database, as GRANT needs it.
func qualifiedName(o *store.Outbox, s *server) string {
	if o.Schema != "" {
		return TableName(o)
	}
	return Ident(s.database, o.Table)
}
