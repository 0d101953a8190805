package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/sluicebox/sluicebox/store"
	relay "github.com/sluicebox/sluicebox/store/mysql"
	"github.com/sluicebox/sluicebox/store/outbox/internal/diagnose"
)

// Diagnose checks what a writer needs of tables: the grants, and a value for each column that
// needs one. It changes nothing. An error means that the remaining checks could not run.
func Diagnose(ctx context.Context, url, application string, outboxes []*store.Outbox) ([]store.Finding, error) {
	cfg, err := relay.ParseURL(url, application)
	if err != nil {
		return nil, err
	}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector)
	defer func() { _ = db.Close() }() // it reads only
	var account string
	if err := db.QueryRowContext(ctx, "SELECT CURRENT_USER()").Scan(&account); err != nil {
		return nil, relay.Explain(err)
	}
	d := diagnosis{db, cfg.DBName, relay.Account(account)}
	found, err := diagnose.Outboxes(outboxes, func(o *store.Outbox, columns []string) (*diagnose.Table, error) { return d.read(ctx, o, columns) })
	return found, relay.Explain(err)
}

// diagnosis reads tables with the rights of an account.
type diagnosis struct {
	db                *sql.DB
	database, account string
}

// requiredColumns returns the columns that need a value. MariaDB writes a default NULL as a text.
const requiredColumns = `SELECT column_name FROM information_schema.columns
WHERE table_schema = ? AND table_name = ? AND is_nullable = 'NO' AND column_default IS NULL
	AND extra NOT LIKE '%auto_increment%' AND extra NOT LIKE '%GENERATED%' ORDER BY ordinal_position`

func (d *diagnosis) read(ctx context.Context, o *store.Outbox, columns []string) (*diagnose.Table, error) {
	schema := cmp.Or(o.Schema, d.database)
	t := &diagnose.Table{Name: relay.TableName(o), Account: "account " + d.account, FoldsCase: true, Rule: diagnose.NotNull}
	quoted := make([]string, len(columns))
	for i, column := range columns {
		quoted[i] = relay.Ident(column)
	}
	list := strings.Join(quoted, ", ")
	for _, need := range []struct{ right, statement string }{
		{"SELECT", "SELECT " + list + " FROM " + t.Name + " WHERE 1 = 0"},
		{"INSERT", "INSERT INTO " + t.Name + " (" + list + ") SELECT NULL" + strings.Repeat(", NULL", len(columns)-1) + " FROM DUAL WHERE 1 = 0"},
	} {
		switch may, err := d.mayRun(ctx, need.statement); {
		case code(err) == 1146, code(err) == 1054: // no such table, column: the check of the outbox reports it
			return nil, nil
		case err != nil:
			return nil, err
		case !may:
			t.Missing = append(t.Missing, need.right)
		}
	}
	t.Grant = fmt.Sprintf("GRANT %s ON %s TO %s;", strings.Join(t.Missing, ", "), relay.Ident(schema, o.Table), d.account)
	t.Default = func(column string) string {
		return fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s SET DEFAULT '…';", t.Name, relay.Ident(column))
	}
	rows, err := d.db.QueryContext(ctx, requiredColumns, schema, o.Table)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		t.Required = append(t.Required, name)
	}
	return t, rows.Err()
}

// mayRun reports whether the account has the rights for a statement. The server checks those of
// roles too, before it plans the statement.
func (d *diagnosis) mayRun(ctx context.Context, statement string) (bool, error) {
	rows, err := d.db.QueryContext(ctx, "EXPLAIN "+statement)
	if err == nil {
		err = rows.Close() // MariaDB reports the error here
	}
	switch code(err) {
	case 1142, 1143: // table or column denied
		return false, nil
	case 1290, 1792, 1836: // a server that takes no writes is reported elsewhere
		return true, nil
	case 1364: // MariaDB looks for the defaults of the other columns next
		return true, nil
	}
	return err == nil, err
}
