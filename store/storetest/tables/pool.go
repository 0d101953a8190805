package tables

import (
	"context"
	"database/sql"
	"errors"
)

// Pool is an Opener for a database/sql pool.
type Pool struct {
	runner
	db *sql.DB
}

// NewPool returns a Pool for db. The caller closes db.
func NewPool(db *sql.DB) *Pool { return &Pool{runner{db}, db} }

// Begin implements Opener.
func (p *Pool) Begin(ctx context.Context) (Transaction, error) {
	tx, err := p.db.BeginTx(ctx, nil)
	return transaction{runner{tx}, tx}, err
}

type transaction struct {
	runner
	tx *sql.Tx
}

func (x transaction) Commit(context.Context) error {
	if err := x.tx.Commit(); err != nil && !errors.Is(err, sql.ErrTxDone) {
		return err
	}
	return nil
}

// runner runs statements in a pool or a transaction.
type runner struct {
	on interface {
		ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
		QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	}
}

// Exec implements Session.
func (r runner) Exec(ctx context.Context, query string, args ...any) error {
	_, err := r.on.ExecContext(ctx, query, args...)
	return err
}

// Row implements Session.
func (r runner) Row(ctx context.Context, query string, args []any, into ...any) error {
	return r.on.QueryRowContext(ctx, query, args...).Scan(into...)
}
