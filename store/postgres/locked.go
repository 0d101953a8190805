package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
)

// A call waits for locks at first, for the lock_timeout of its session. When a lock has
// held one up for so long, and until skipLockedPeriod after a lock was last met, calls of that
// session pass over locked rows: somebody who keeps rows locked, in a forgotten
// transaction say, must not stop the others.
const (
	skipLockedPeriod = 10 * time.Second
	// Such a call waits for the lock of each table as long as this. It is more than
	// the lock_timeout, so that a table which many sessions lock in turn is had.
	tableTimeout = "500ms"
	// It waits so long for the leader row, and for what the table's triggers lock.
	otherTimeout = "2s"
	// awaitTimeout is how long AwaitTable waits.
	awaitTimeout = "1s"
)

// lockQuery is the statement that takes the lock on an outbox's table that its claims
// and outcomes need, with the rights that those need: the plan of a write takes the
// lock, and EXPLAIN fires no trigger. No plan leaves out a partition by this condition.
func lockQuery(o *store.Outbox) string {
	write := "SELECT FROM " + TableName(o)
	switch set := columns.Outcome(&o.Layout, store.Completed); {
	case o.Layout.State == store.StateNone:
	case o.Layout.DeleteDelivered:
		write = "DELETE FROM " + TableName(o)
	default:
		column := Ident(set[0].Column)
		write = "UPDATE " + TableName(o) + " SET " + column + " = " + column
	}
	return "EXPLAIN " + write + " WHERE pg_catalog.random() < 0"
}

// AwaitTable implements store.TableAwaiter.
func (s *Store) AwaitTable(ctx context.Context, outbox string) error {
	o, err := s.outbox(outbox)
	if err != nil {
		return err
	}
	return s.tableWaitSession.do(ctx, func(ctx context.Context, sess *session) error {
		_, err := sess.conn.PgConn().Exec(ctx, lockQuery(o)).ReadAll()
		if IsLockTimeout(err) {
			return &store.OutboxLockedError{Outbox: outbox, Err: err}
		}
		return Explain(err)
	})
}

// skipLockedTx runs a call that passes over locks, in one transaction: it locks the leader row
// and the tables, and write does the rest and commits. locked says which tables are not
// to be had; write leaves them out.
func (s *Store) skipLockedTx(ctx context.Context, conn *pgx.Conn, epoch store.Epoch, durable bool, outboxes []*store.Outbox,
	write func(locked map[string]bool) error,
) (err error) {
	simple := func(text string) error {
		_, err := conn.PgConn().Exec(ctx, text).ReadAll()
		return err
	}
	defer func() {
		if err != nil && !conn.IsClosed() && conn.PgConn().TxStatus() != 'I' {
			err = errors.Join(err, simple("ROLLBACK"))
		}
	}()
	if conn.PgConn().TxStatus() != 'I' { // of the try that a lock has held up
		if err := simple("ROLLBACK"); err != nil {
			return err
		}
	}
	setting := "BEGIN; SET LOCAL lock_timeout = '" + otherTimeout + "'"
	if durable {
		setting += "; SET LOCAL synchronous_commit = on"
	}
	if err := simple(setting); err != nil {
		return err
	}
	b := &builder{}
	leader := b.query(b.leaderRow())
	var is int64
	switch err := conn.QueryRow(ctx, leader.sql, leader.args(s.fenced(epoch, map[string]any{}))...).Scan(&is); {
	case errors.Is(err, pgx.ErrNoRows):
		return store.ErrNotLeader
	case err != nil:
		return err
	}
	locked := map[string]bool{}
	for _, o := range outboxes {
		err := simple("SAVEPOINT t; SET LOCAL lock_timeout = '" + tableTimeout + "'; " + lockQuery(o) +
			"; SET LOCAL lock_timeout = '" + otherTimeout + "'; RELEASE SAVEPOINT t")
		if IsLockTimeout(err) {
			locked[o.Name] = true
			err = simple("ROLLBACK TO SAVEPOINT t")
		}
		if err != nil {
			return err
		}
	}
	return write(locked)
}
