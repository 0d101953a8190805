package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
)

// A call first waits for locks, for the lock_timeout of its session. After a lock has
// delayed a call that long, the session's calls skip locked rows until skipLockedPeriod
// after a lock was last met. So a session that keeps rows locked, for example in a
// forgotten transaction, does not stop the other rows.
const (
	skipLockedPeriod = 10 * time.Second
	// tableTimeout bounds the wait for each table's lock. It is longer than the
	// lock_timeout, so that a table which many sessions lock in turn is still acquired.
	tableTimeout = "500ms"
	// otherTimeout bounds the wait for the leader row, and for locks that the table's
	// triggers need.
	otherTimeout = "2s"
	// awaitTimeout bounds the wait of AwaitTable.
	awaitTimeout = "1s"
)

// lockQuery returns the statement that acquires the table lock which claims and outcomes
// need, with the same privileges: planning a write takes the lock, and EXPLAIN fires no
// trigger. The condition is volatile, so that planning prunes no partition.
func lockQuery(o *store.Outbox) string {
	write := "SELECT FROM " + TableName(o) + " AS o"
	switch set := columns.Outcome(&o.Layout, store.Completed, nil); {
	case o.Layout.LogOnly():
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

// skipLockedTx runs a call that skips locks in one transaction. It locks the leader row
// and the tables; write does the rest and commits. locked names the outboxes whose table
// was not acquired; write leaves them out.
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

	if conn.PgConn().TxStatus() != 'I' { // left by the attempt that a lock delayed
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
	switch err := conn.QueryRow(ctx, leader.sql, leader.args(s.fenced(epoch))...).Scan(&is); {
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
