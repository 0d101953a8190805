package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/outbox/internal/diagnose"
	"github.com/sluicebox/sluicebox/store/postgres"
)

// Diagnose checks what a writer needs of tables: the grants, and a value for each column that
// needs one. It changes nothing. An error means that the remaining checks could not run.
func Diagnose(ctx context.Context, url, application string, outboxes []*store.Outbox) ([]store.Finding, error) {
	cfg, err := postgres.ParseURL(url, application)
	if err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", cfg.Host, postgres.ExplainConnect(cfg, err))
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // a read-only session
	return diagnose.Outboxes(outboxes, func(o *store.Outbox, _ []string) (*diagnose.Table, error) { return read(ctx, conn, o) })
}

// tableQuery returns the role, its missing privileges, and the columns that need a value. It
// returns no row if there is no table.
const tableQuery = `SELECT current_user::text,
	ARRAY(SELECT p FROM unnest(ARRAY['SELECT', 'INSERT']) p WHERE NOT has_any_column_privilege(c.oid, p) AND NOT has_table_privilege(c.oid, p)),
	ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped
		AND attnotnull AND NOT atthasdef AND attidentity = '' ORDER BY attnum)
FROM pg_class c WHERE c.oid = to_regclass($1)`

func read(ctx context.Context, conn *pgx.Conn, o *store.Outbox) (*diagnose.Table, error) {
	t := &diagnose.Table{Name: postgres.TableName(o), Rule: diagnose.NotNull}
	rows, err := conn.Query(ctx, tableQuery, t.Name)
	if err != nil {
		return nil, err
	}
	known, role := false, ""
	if _, err := pgx.ForEachRow(rows, []any{&role, &t.Missing, &t.Required}, func() error { known = true; return nil }); err != nil || !known {
		return nil, err
	}
	t.Account = "role " + role
	t.Grant = fmt.Sprintf("GRANT %s ON %s TO %s;", strings.Join(t.Missing, ", "), t.Name, postgres.Ident(role))
	t.Default = func(column string) string {
		return fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s SET DEFAULT '…';", t.Name, postgres.Ident(column))
	}
	return t, nil
}
