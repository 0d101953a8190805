package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
	"github.com/sluicebox/sluicebox/store/internal/finding"
)

// minServerVersion is the oldest supported server: 14 brought binary and message support
// to logical decoding, and the session timeouts.
const minServerVersion = 14

// checker gathers findings.
type checker struct {
	finding.List
	conn *pgx.Conn
	// thorough also reports advice, and faults that may resolve without a fix.
	thorough bool
	now      func() time.Time // this machine's clock; set if thorough
	relay    string           // the relay's name; set if thorough
	role     string           // quoted
}

// Check implements store.Installer. It returns one *store.SetupError with every finding
// that Diagnose grades store.GradeFault, except faults that may resolve without a fix.
func (s *Store) Check(ctx context.Context) error {
	var c checker
	err := s.control.do(ctx, func(ctx context.Context, sess *session) error {
		c = checker{conn: sess.conn}
		return c.run(ctx, s)
	})
	if err != nil {
		return fmt.Errorf("check tables: %w", Explain(err))
	}
	return c.Err()
}

func (c *checker) run(ctx context.Context, s *Store) error {
	if ok, err := c.server(ctx); err != nil || !ok {
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

// server checks the server and the role. ok is false if the server is too old for the
// other checks.
func (c *checker) server(ctx context.Context) (ok bool, err error) {
	var number int
	var text, role string
	var super bool
	err = c.conn.QueryRow(ctx, `
SELECT current_setting('server_version_num')::int / 10000, current_setting('server_version'), current_user::text,
  (SELECT r.rolsuper FROM pg_catalog.pg_roles r WHERE r.rolname = current_user)`).Scan(&number, &text, &role, &super)
	if err != nil {
		return false, err
	}

	c.role, c.Subject = Ident(role), "server"
	if number < minServerVersion {
		c.AddFault(fmt.Sprintf("PostgreSQL %s is too old", text), fmt.Sprintf("use PostgreSQL %d or later", minServerVersion))
		return false, nil
	}

	c.Add(store.GradeOK, "PostgreSQL "+text)
	if c.thorough {
		if err := c.checkWritable(ctx); err != nil {
			return false, err
		}
	}

	c.Subject = "role"
	if super {
		role += ", a superuser with every privilege"
	}

	c.Add(store.GradeOK, role)
	return true, nil
}

// queryBool runs a query for one boolean; NULL is false.
func (c *checker) queryBool(ctx context.Context, sql string, args ...any) (bool, error) {
	var yes bool
	err := c.conn.QueryRow(ctx, "SELECT coalesce(("+sql+"), false)", args...).Scan(&yes)
	return yes, err
}

// checkOwnTables checks the relay's tables.
func (c *checker) checkOwnTables(ctx context.Context) error {
	const initialize = "run `sluicebox init`"
	c.Subject = "relay tables"
	before := c.CountFaults()
	exists, err := c.queryBool(ctx, "SELECT true FROM pg_catalog.pg_namespace WHERE nspname = 'sluicebox'")
	if err != nil {
		return err
	}
	if !exists {
		c.AddFault("relay tables do not exist", initialize)
		return nil
	}
	if ok, err := c.queryBool(ctx, "SELECT pg_catalog.has_schema_privilege('sluicebox', 'USAGE')"); err != nil {
		return err
	} else if !ok {
		c.AddFault(c.role+" lacks USAGE on the schema sluicebox", grantAll(c.role)...)
		return nil
	}

	have, err := installed(ctx, c.conn)
	var setup *store.SetupError
	switch {
	case errors.As(err, &setup):
		c.AddSetupError(setup)
		return nil
	case err != nil && !lacksRight(err): // the right is reported below
		return err
	}

	readable := false
	for i, t := range ownTables() {
		rights, found, err := c.tableRights(ctx, t.name, t.rights)
		if err != nil {
			return err
		}
		switch {
		case !found:
			c.AddFault("relay table sluicebox."+t.name+" does not exist", initialize)
		case len(rights) > 0:
			c.AddFault(fmt.Sprintf("%s lacks %s on sluicebox.%s", c.role, strings.Join(rights, ", "), t.name),
				fmt.Sprintf("GRANT %s ON sluicebox.%s TO %s;", strings.Join(rights, ", "), t.name, c.role))
		}
		readable = readable || i == 0 && found && len(rights) == 0
	}

	if readable && have < version {
		c.AddFault(fmt.Sprintf("relay tables have version %d; this program needs %d", have, version), initialize)
	}
	if c.CountFaults() == before {
		c.Add(store.GradeOK, fmt.Sprintf("version %d; the role has all required privileges", version))
	}
	return nil
}

// tableRights lists the rights that the role lacks on one of the relay's tables.
func (c *checker) tableRights(ctx context.Context, name string, rights []string) (missing []string, found bool, err error) {
	var oid uint32
	err = c.conn.QueryRow(ctx, `
SELECT coalesce((SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  WHERE n.nspname = 'sluicebox' AND c.relname = $1), 0)`, name).Scan(&oid)
	if err != nil || oid == 0 {
		return nil, false, err
	}

	for _, right := range rights {
		ok, err := c.queryBool(ctx, "SELECT pg_catalog.has_table_privilege($1::oid, $2)", oid, right)
		if err != nil {
			return nil, true, err
		}
		if !ok {
			missing = append(missing, right)
		}
	}

	return missing, true, nil
}

// outbox checks an outbox table.
func (c *checker) outbox(ctx context.Context, o *store.Outbox) error {
	c.Subject = "outbox " + o.Name
	before := c.CountFaults()
	if o.MessagePrefix != "" {
		c.Add(store.GradeOK, fmt.Sprintf("messages with the prefix %s need no table", o.MessagePrefix))
		return nil
	}
	t, err := readTable(ctx, c.conn, o)
	if setup, ok := errors.AsType[*store.SetupError](err); ok {
		return c.reportMissing(ctx, o, setup)
	}
	if err != nil {
		return err
	}
	if missing := t.Missing(); len(missing) > 0 {
		c.AddSetupError(t.MissingError(missing, t.checked().AddColumns))
		return nil
	}

	c.AddTypes(t.checked())
	c.placeTypes(t)
	checks := []func(context.Context, *table) error{c.rights, c.index, c.policies, c.archives}
	if c.CountFaults() == before { // otherwise the constraints may not take the values
		checks = append(checks, c.statusConstraints)
	}
	for _, check := range checks {
		if err := check(ctx, t); err != nil {
			return err
		}
	}

	if c.CountFaults() > before {
		return nil
	}

	c.Add(store.GradeOK, fmt.Sprintf("%s has the columns of layout %s, and the role has all required privileges", TableName(o), o.Layout.Name))
	if !c.thorough {
		return nil
	}
	return c.unsettledIndex(ctx, t)
}

// placeTypes checks the columns of the place of a row, if polling reads the table by it.
func (c *checker) placeTypes(t *table) {
	if !t.Layout.ReadsByPosition() {
		return
	}
	const remedy = "-- remove columns.transaction, and let the relay read the log"
	if txn := t.MustColumn(t.Layout.Columns.Transaction); !slices.Contains([]uint32{pgtype.XID8OID, pgtype.Int8OID, pgtype.NumericOID}, txn.base) || !txn.notNull {
		c.AddFault(fmt.Sprintf("column %s (columns.transaction) of %s is of type %s, and must be xid8 or bigint and NOT NULL", txn.name, TableName(t.Outbox), txn.full), remedy)
	}
	if id := t.MustColumn(t.Layout.Columns.ID); !slices.Contains([]uint32{pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID}, id.base) {
		c.AddFault(fmt.Sprintf("column %s (columns.id) of %s is of type %s, and polling by position needs an integer", id.name, TableName(t.Outbox), id.full), remedy)
	}
}

// reportMissing reports that the table does not exist, or that it exists in a schema that
// the role may not use.
func (c *checker) reportMissing(ctx context.Context, o *store.Outbox, setup *store.SetupError) error {
	schema, err := schemaWithoutUsage(ctx, c.conn, o)
	if err != nil {
		return err
	}
	if schema == "" {
		c.AddSetupError(setup)
		return nil
	}
	c.reportNoUsage(schema)
	return nil
}

// schemaWithoutUsage returns the schema of an outbox that has the table, but that the role may not use;
// "" if there is none. Of an outbox without a schema, those are the schemas of the default search_path.
func schemaWithoutUsage(ctx context.Context, conn *pgx.Conn, o *store.Outbox) (schema string, err error) {
	err = conn.QueryRow(ctx, `
SELECT coalesce(min(n.nspname::text), '') FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relname = $2 AND c.relkind IN ('r', 'p') AND (n.nspname = $1 OR $1 = '' AND n.nspname IN ('public', current_user))
  AND NOT pg_catalog.has_schema_privilege(n.oid, 'USAGE')`, o.Schema, o.Table).Scan(&schema)
	return schema, err
}

// reportNoUsage reports that the role lacks USAGE on a schema.
func (c *checker) reportNoUsage(schema string) {
	problem, remedy := noUsage(c.role, schema)
	c.AddFault(problem, remedy)
}

// noUsage is the fault of a quoted role without USAGE on a schema.
func noUsage(role, schema string) (problem, remedy string) {
	return fmt.Sprintf("%s lacks USAGE on the schema %s", role, Ident(schema)), fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s;", Ident(schema), role)
}

// rights checks the role's privileges on the table.
func (c *checker) rights(ctx context.Context, t *table) error {
	var schema string
	err := c.conn.QueryRow(ctx, `
SELECT n.nspname::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = $1`, t.oid).Scan(&schema)
	if err != nil {
		return err
	}
	if ok, err := c.queryBool(ctx, "SELECT pg_catalog.has_schema_privilege($1, 'USAGE')", schema); err != nil {
		return err
	} else if !ok {
		c.reportNoUsage(schema)
	}

	deletes := t.Layout.DeleteDelivered || t.Retention > 0 || t.FailedArchive != ""
	if err := c.columnRights(ctx, t); err != nil || !deletes {
		return err
	}

	ok, err := c.queryBool(ctx, "SELECT pg_catalog.has_table_privilege($1::oid, 'DELETE')", t.oid)
	if err == nil && !ok {
		c.AddFault(fmt.Sprintf("%s lacks DELETE on %s", c.role, TableName(t.Outbox)),
			fmt.Sprintf("GRANT DELETE ON %s TO %s;", TableName(t.Outbox), c.role))
	}
	return err
}

// columnRights checks the privileges on each column that the layout uses.
func (c *checker) columnRights(ctx context.Context, t *table) error {
	missing := map[string][]string{}
	for _, u := range columns.UsedColumns(&t.Layout) {
		for _, right := range []string{"SELECT", "UPDATE"} {
			if right == "SELECT" && !u.Read || right == "UPDATE" && !u.Write {
				continue
			}
			ok, err := c.queryBool(ctx, "SELECT pg_catalog.has_column_privilege($1::oid, $2::int2, $3)", t.oid, t.MustColumn(u.Column).num, right)
			if err != nil {
				return err
			}
			if !ok {
				missing[right] = append(missing[right], Ident(u.Column))
			}
		}
	}

	for _, right := range []string{"SELECT", "UPDATE"} {
		if list := strings.Join(missing[right], ", "); list != "" {
			c.AddFault(fmt.Sprintf("%s lacks %s on %s (%s)", c.role, right, TableName(t.Outbox), list),
				fmt.Sprintf("GRANT %s (%s) ON %s TO %s;", right, list, TableName(t.Outbox), c.role))
		}
	}

	return nil
}

// index checks for a unique index on the id. Without an index every claim reads the whole
// table. With two rows of one id, an outcome would be written to both. On a partitioned
// table a unique index must include the partition key.
func (c *checker) index(ctx context.Context, t *table) error {
	id := t.MustColumn(t.Layout.Columns.ID)
	ok, err := c.queryBool(ctx, `
SELECT true FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indrelid
WHERE i.indrelid = $1 AND i.indkey[0] = $2::int2 AND i.indisvalid AND i.indpred IS NULL
  AND i.indisunique AND (i.indnkeyatts = 1 OR c.relkind = 'p') LIMIT 1`, t.oid, id.num)
	if err != nil || ok {
		return err
	}

	c.AddFault(fmt.Sprintf("no unique index on the id of %s, column %s", TableName(t.Outbox), id.name), uniqueIndex(t, id.name))
	return nil
}

// uniqueIndex returns the statement that creates a unique index on a column.
func uniqueIndex(t *table, name string) string {
	if t.partitioned {
		return fmt.Sprintf("CREATE UNIQUE INDEX ON %s (%s, …); -- with the partition key columns", TableName(t.Outbox), Ident(name))
	}
	return fmt.Sprintf("CREATE UNIQUE INDEX CONCURRENTLY ON %s (%s);", TableName(t.Outbox), Ident(name))
}

// policies checks that no row-level security hides rows, because a hidden row would look
// like a deleted row.
func (c *checker) policies(ctx context.Context, t *table) error {
	hides, err := c.queryBool(ctx, "SELECT pg_catalog.row_security_active($1::oid)", t.oid)
	if err == nil && hides {
		c.AddFault(fmt.Sprintf("row-level security of %s applies to %s, which must see every row", TableName(t.Outbox), c.role),
			fmt.Sprintf("ALTER ROLE %s BYPASSRLS;", c.role))
	}
	return err
}
