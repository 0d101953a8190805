package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/outbox"
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
	var found []store.Finding
	for _, o := range outboxes {
		list, err := diagnose(ctx, conn, o)
		if err != nil {
			return found, fmt.Errorf("diagnose outbox %s: %w", o.Name, err)
		}
		found = append(found, list...)
	}
	return found, nil
}

// tableQuery returns the role, its missing privileges, and the columns that need a value. It
// returns no row if there is no table.
const tableQuery = `SELECT current_user::text,
	ARRAY(SELECT p FROM unnest(ARRAY['SELECT', 'INSERT']) p WHERE NOT has_any_column_privilege(c.oid, p) AND NOT has_table_privilege(c.oid, p)),
	ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped
		AND attnotnull AND NOT atthasdef AND attidentity = '' ORDER BY attnum)
FROM pg_class c WHERE c.oid = to_regclass($1)`

func diagnose(ctx context.Context, conn *pgx.Conn, o *store.Outbox) ([]store.Finding, error) {
	table, subject := postgres.TableName(o), "outbox "+o.Name
	var role string
	var missing, required []string
	rows, err := conn.Query(ctx, tableQuery, table)
	if err != nil {
		return nil, err
	}
	known := false
	if _, err := pgx.ForEachRow(rows, []any{&role, &missing, &required}, func() error { known = true; return nil }); err != nil {
		return nil, err
	}
	if !known {
		return nil, nil // the check of the outbox reports it
	}
	var found []store.Finding
	if len(missing) > 0 {
		privileges := strings.Join(missing, ", ")
		found = append(found, store.Finding{
			Grade: store.GradeFault, Subject: subject, Text: fmt.Sprintf("role %s may not %s rows of %s, so ingest cannot write them", role, privileges, table),
			Remedy: fmt.Sprintf("GRANT %s ON %s TO %s;", privileges, table, postgres.Ident(role)),
		})
	}
	found = append(found, unfilled(o, subject, required)...)
	if len(found) == 0 {
		found = append(found, store.Finding{Grade: store.GradeOK, Subject: subject, Text: "rows can be written"})
	}
	return found, nil
}

// unfilled reports the columns that need a value and get none, or only from an attribute.
func unfilled(o *store.Outbox, subject string, required []string) (found []store.Finding) {
	of, err := outbox.New(*o)
	if err != nil {
		return nil // the check of the outbox reports it
	}
	row := outbox.Row{ID: "1", Kind: "k", Payload: []byte("{}")}
	for range o.Layout.GroupColumns() {
		row.Group = append(row.Group, "1")
	}
	if err := of.Complete(context.Background(), &row); err != nil {
		return nil
	}
	fields, err := of.Fields(&row)
	if err != nil {
		return nil // no row is like any other
	}
	for _, column := range required {
		if slices.ContainsFunc(fields, func(f outbox.Field) bool { return f.Column == column }) {
			continue
		}
		at := slices.IndexFunc(o.Layout.Attributes, func(a store.AttributeColumn) bool { return a.Column == column })
		if at >= 0 {
			found = append(found, store.Finding{
				Grade: store.GradeAdvice, Subject: subject, Text: fmt.Sprintf("column %s is NOT NULL without a default, so ingest refuses rows without the attribute %s", column, o.Layout.Attributes[at].Name),
				Remedy: fmt.Sprintf("let each client send it, or: ALTER TABLE %s ALTER COLUMN %s SET DEFAULT '…';", postgres.TableName(o), postgres.Ident(column)),
			})
			continue
		}
		found = append(found, store.Finding{
			Grade: store.GradeFault, Subject: subject, Text: fmt.Sprintf("column %s is NOT NULL without a default, and ingest has no value for it", column),
			Remedy: fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s SET DEFAULT '…';", postgres.TableName(o), postgres.Ident(column)),
		})
	}
	return found
}
