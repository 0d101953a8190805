package postgres

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/capture/internal/logged"
	"github.com/sluicebox/sluicebox/store"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
)

// generatedSQL finds the columns that the WAL does not contain. Since version 18 a
// publication can include stored generated columns.
const generatedSQL = `
SELECT a.attname::text FROM pg_attribute a
WHERE a.attrelid = $1 AND a.attname = ANY ($2) AND NOT a.attisdropped AND a.attgenerated <> ''
	AND NOT (a.attgenerated = 's' AND EXISTS (
		SELECT FROM pg_publication p WHERE p.pubname = $3 AND to_jsonb(p) ->> 'pubgencols' = 's'))
ORDER BY a.attnum`

// checkGenerated reports generated columns in a layout before the first row fails.
func (s *Source) checkGenerated(ctx context.Context, conn *pgx.Conn, tables []*table, wrong *fault.List) error {
	for _, t := range tables {
		for _, o := range t.outboxes {
			rows, err := conn.Query(ctx, generatedSQL, t.oid, logged.CapturedColumns(&o.Layout.Columns), s.cfg.Name)
			if err != nil {
				return fmt.Errorf("find generated columns of %s: %w", t.quoted(), pgstore.Explain(err))
			}
			names, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				return fmt.Errorf("find generated columns of %s: %w", t.quoted(), pgstore.Explain(err))
			}
			for _, name := range names {
				wrong.Add(fault.Fault{
					Subject: "tables",
					Problem: fmt.Sprintf("outbox %s: column %s (%s) of table %s is generated, and the WAL does not contain generated columns",
						o.Name, pgstore.Ident(name), o.Layout.ConfigKey(name), t.quoted()),
					Instructions: "name an ordinary column (group-path reads a group from the JSON of another one), or poll",
				})
			}
		}
	}
	return nil
}

// readsAny reports whether an outbox of the table reads one of the columns.
func (t *table) readsAny(columns []string) bool {
	return slices.ContainsFunc(t.outboxes, func(o *store.Outbox) bool {
		return slices.ContainsFunc(logged.CapturedColumns(&o.Layout.Columns), func(name string) bool { return slices.Contains(columns, name) })
	})
}
