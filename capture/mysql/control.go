package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/sluicebox/sluicebox/store"
	mystore "github.com/sluicebox/sluicebox/store/mysql"
)

// maxControlSessions is how many statements may run concurrently: a check of the log must
// not wait for a marker that waits for a lock.
const maxControlSessions = 3

// control is the pool of ordinary sessions, opened on demand.
type control struct {
	config *driver.Config
	db     *sql.DB
}

func newControl(config *driver.Config) (*control, error) {
	config.InterpolateParams = true // one round trip instead of three
	connector, err := driver.NewConnector(config)
	if err != nil {
		return nil, &store.SetupError{Problem: err.Error()}
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(maxControlSessions)
	db.SetMaxIdleConns(maxControlSessions)
	db.SetConnMaxIdleTime(time.Minute)
	return &control{config: config, db: db}, nil
}

func (c *control) close() { _ = c.db.Close() } // the result does not depend on it

// queryStrings reads the only column of a query.
func (c *control) queryStrings(ctx context.Context, query string, args ...any) ([]string, error) {
	rows, err := c.db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var list []string
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return nil, err
		}
		list = append(list, text)
	}

	return list, rows.Err()
}

// queryMaps reads the rows of a SHOW statement as maps by column name, because the
// columns differ between servers.
func (c *control) queryMaps(ctx context.Context, query string) ([]map[string]string, error) {
	rows, err := c.db.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	names, err := rows.Columns()
	if err != nil {
		return nil, err
	}

	var list []map[string]string
	for rows.Next() {
		values := make([]sql.NullString, len(names))
		into := make([]any, len(names))
		for i := range values {
			into[i] = &values[i]
		}
		if err := rows.Scan(into...); err != nil {
			return nil, err
		}
		row := make(map[string]string, len(names))
		for i, name := range names {
			row[name] = values[i].String
		}
		list = append(list, row)
	}

	return list, rows.Err()
}

// variables reads global settings. It omits settings that the server does not have.
func (c *control) variables(ctx context.Context, names ...string) (map[string]string, error) {
	rows, err := c.queryMaps(ctx, "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('"+strings.Join(names, "', '")+"')")
	if err != nil {
		return nil, fmt.Errorf("read server settings: %w", mystore.Explain(err))
	}
	settings := make(map[string]string, len(rows))
	for _, row := range rows {
		settings[row["Variable_name"]] = row["Value"]
	}
	return settings, nil
}
