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

// each calls take for every row of a query. It returns the server's errors unchanged.
func (c *control) each(ctx context.Context, take func(*sql.Rows) error, query string, args ...any) error {
	rows, err := c.db.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := take(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// queryStrings reads the only column of a query.
func (c *control) queryStrings(ctx context.Context, query string, args ...any) (list []string, err error) {
	err = c.each(ctx, func(row *sql.Rows) error {
		var text string
		err := row.Scan(&text)
		list = append(list, text)
		return err
	}, query, args...)
	return list, err
}

// queryMaps reads the rows of a SHOW statement as maps by column name, because the
// columns differ between servers.
func (c *control) queryMaps(ctx context.Context, query string) (list []map[string]string, err error) {
	err = c.each(ctx, func(rows *sql.Rows) error {
		names, err := rows.Columns()
		if err != nil {
			return err
		}
		values, into := make([]sql.NullString, len(names)), make([]any, len(names))
		for i := range values {
			into[i] = &values[i]
		}
		if err := rows.Scan(into...); err != nil {
			return err
		}
		row := make(map[string]string, len(names))
		for i, name := range names {
			row[name] = values[i].String
		}
		list = append(list, row)
		return nil
	}, query)
	return list, err
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
