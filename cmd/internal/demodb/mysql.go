package demodb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
)

// Server errors, the same in MySQL and MariaDB; see
// https://dev.mysql.com/doc/mysql-errors/9.0/en/server-error-reference.html.
const (
	codeNoSession   = 1094 // ER_NO_SUCH_THREAD
	codeLockTimeout = 1205 // ER_LOCK_WAIT_TIMEOUT
)

// ErrorNumber returns the number of a server error, or 0 for any other error.
func ErrorNumber(err error) int {
	var e *mysql.MySQLError
	if errors.As(err, &e) {
		return int(e.Number)
	}
	return 0
}

// DropDatabase drops a database of MySQL or MariaDB, if it exists. The relay has closed its
// sessions by then. Until the server notices, an open transaction of one locks its tables;
// after the wait, which counts in whole seconds, DropDatabase kills the sessions that use the
// database.
func (s *SQL) DropDatabase(ctx context.Context, name string, wait time.Duration) error {
	if _, err := s.ExecContext(ctx, fmt.Sprintf("SET SESSION lock_wait_timeout = %d", int(math.Ceil(wait.Seconds())))); err != nil {
		return fmt.Errorf("set lock_wait_timeout: %w", err)
	}
	drop := "DROP DATABASE IF EXISTS " + name
	_, err := s.ExecContext(ctx, drop)
	if ErrorNumber(err) == codeLockTimeout {
		if err := s.killUsers(ctx, name); err != nil {
			return err
		}
		_, err = s.ExecContext(ctx, drop)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", drop, err)
	}
	return nil
}

// killUsers kills the sessions that use a database. They belong to the account itself, so it
// can see them.
func (s *SQL) killUsers(ctx context.Context, name string) error {
	using, err := s.Users(ctx)
	for _, id := range using[name] {
		err = errors.Join(err, s.Kill(ctx, id))
	}
	if err != nil {
		return fmt.Errorf("kill sessions of database %s: %w", name, err)
	}
	return nil
}

// Kill ends a session of the server, which may have ended already.
func (s *SQL) Kill(ctx context.Context, id int64) error {
	_, err := s.ExecContext(ctx, fmt.Sprintf("KILL %d", id))
	if ErrorNumber(err) == codeNoSession {
		return nil
	}
	return err
}

// Users returns the ids of the sessions that use each database, as far as the
// account may see them. It uses SHOW PROCESSLIST because MySQL and MariaDB have the
// list in different tables. The servers' columns differ, so it picks id and db by name.
func (s *SQL) Users(ctx context.Context) (map[string][]int64, error) {
	rows, err := s.QueryContext(ctx, "SHOW PROCESSLIST")
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // rows.Err has the error
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}

	var id int64
	var database sql.NullString
	into := make([]any, len(columns))
	for i, column := range columns {
		switch {
		case strings.EqualFold(column, "id"):
			into[i] = &id
		case strings.EqualFold(column, "db"):
			into[i] = &database
		default:
			into[i] = new(sql.RawBytes)
		}
	}

	using := map[string][]int64{}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return nil, err
		}
		using[database.String] = append(using[database.String], id)
	}
	return using, rows.Err()
}
