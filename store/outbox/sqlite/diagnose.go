package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/outbox/internal/diagnose"
	relay "github.com/sluicebox/sluicebox/store/sqlite"
)

// Diagnose checks that a writer has a value for each column that needs one. It changes nothing.
// An error means that the remaining checks could not run.
func Diagnose(ctx context.Context, url, _ string, outboxes []*store.Outbox) ([]store.Finding, error) {
	path, err := relay.ParseURL(url)
	if err != nil {
		return nil, err
	}
	conn, err := relay.DialAsIs(ctx, path)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	found, err := diagnose.Outboxes(outboxes, func(o *store.Outbox, _ []string) (*diagnose.Table, error) { return read(ctx, conn, o) })
	return found, relay.Explain(err)
}

// tableQuery returns for each column whether it needs a value. SQLite itself fills an INTEGER PRIMARY
// KEY.
const tableQuery = `SELECT name, "notnull" AND dflt_value IS NULL AND hidden = 0 AND NOT (pk = 1 AND upper(type) = 'INTEGER')
FROM pragma_table_xinfo(?) ORDER BY cid`

func read(ctx context.Context, conn *relay.Conn, o *store.Outbox) (*diagnose.Table, error) {
	t := &diagnose.Table{Name: relay.TableName(o), FoldsCase: true, Rule: diagnose.NotNull}
	t.Default = func(column string) string {
		return fmt.Sprintf("create %s again with a default for %s, and copy its rows; SQLite changes no column", t.Name, relay.Ident(column))
	}
	known := false
	err := conn.Query(ctx, tableQuery, []any{o.Table}, func(row []driver.Value) error {
		known = true
		if name, ok := row[0].(string); ok && row[1] == int64(1) {
			t.Required = append(t.Required, name)
		}
		return nil
	})
	if err != nil || !known {
		return nil, err
	}
	return t, nil
}
