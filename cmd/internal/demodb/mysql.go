package demodb

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/go-sql-driver/mysql"

	mystore "github.com/sluicebox/sluicebox/store/mysql"
)

// MySQL is a session of a MySQL or MariaDB server, and the pool that it belongs to.
type MySQL struct {
	*sql.Conn
	Pool *sql.DB

	addr string
}

// OpenMySQL opens a session. The caller closes it.
func OpenMySQL(ctx context.Context, cfg *mysql.Config) (*MySQL, error) {
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", cfg.Addr, err)
	}
	s := &MySQL{Pool: sql.OpenDB(connector), addr: cfg.Addr}
	if s.Conn, err = s.Another(ctx); err != nil {
		_ = s.Pool.Close()
		return nil, err
	}
	return s, nil
}

// Another opens another session of the pool.
func (s *MySQL) Another(ctx context.Context) (*sql.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := s.Pool.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", s.addr, mystore.Explain(err))
	}
	return conn, nil
}

// Close closes the session and its pool. The server may be gone. A nil session is ignored.
func (s *MySQL) Close() {
	if s != nil {
		_ = s.Conn.Close()
		_ = s.Pool.Close()
	}
}
