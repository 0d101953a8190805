package demodb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	mystore "github.com/sluicebox/sluicebox/store/mysql"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
)

// SQL is a session of a database server, and the pool that it belongs to.
type SQL struct {
	*sql.Conn
	Pool *sql.DB

	host    string
	explain func(error) error
}

// Host returns the host of the server; on MySQL with its port.
func (s *SQL) Host() string { return s.host }

// OpenSQL opens a session of PostgreSQL. The caller closes it.
func OpenSQL(ctx context.Context, cfg *pgx.ConnConfig) (*SQL, error) {
	return open(ctx, stdlib.GetConnector(*cfg.Copy()), cfg.Host, func(err error) error { return pgstore.ExplainConnect(cfg, err) })
}

// OpenMySQL opens a session of MySQL or MariaDB. The caller closes it.
func OpenMySQL(ctx context.Context, cfg *mysql.Config) (*SQL, error) {
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", cfg.Addr, err)
	}
	return open(ctx, connector, cfg.Addr, mystore.Explain)
}

func open(ctx context.Context, connector driver.Connector, host string, explain func(error) error) (s *SQL, err error) {
	s = &SQL{Pool: sql.OpenDB(connector), host: host, explain: explain}
	if s.Conn, err = s.Another(ctx); err != nil {
		_ = s.Pool.Close()
		return nil, err
	}
	return s, nil
}

// Another opens another session of the pool.
func (s *SQL) Another(ctx context.Context) (*sql.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := s.Pool.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", s.host, s.explain(err))
	}
	return conn, nil
}

// Close closes the session and its pool. The server may be gone. A nil session is ignored.
func (s *SQL) Close() {
	if s != nil {
		_ = s.Conn.Close()
		_ = s.Pool.Close()
	}
}

// Querier is a session, a pool or a transaction.
type Querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Each runs a query. It scans each row into the values and then calls each.
func Each(ctx context.Context, db Querier, query string, args, into []any, each func()) error {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }() // rows.Err has the error
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return err
		}
		each()
	}
	return rows.Err()
}
