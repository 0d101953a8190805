package mysql

import (
	"context"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
)

const (
	// maxBatchRows is the maximum number of spilled rows that one transaction writes or
	// deletes, because it locks the leader row at its end.
	maxBatchRows = 5000
	// maxBatchBytes limits the spilled payloads of one transaction. Group replication
	// refuses transactions of 150 MB (group_replication_transaction_size_limit).
	maxBatchBytes = 16 << 20
)

// backend implements ledger.Backend on one of the store's sessions. The settings of the
// server decide how durable a commit is.
type backend struct {
	store *Store
	on    seat
}

// Update implements ledger.Backend. Barrier needs the session that acquired leadership, see
// keepsCommits.
func (b backend) Update(ctx context.Context, epoch store.Epoch, d ledger.Durability, do func(context.Context, ledger.Tx) error) error {
	on := b.on
	if d == ledger.Barrier {
		on = seat{b.store.control, b.store.lifetime}
	}
	return asOwnRefused(on.do(ctx, func(ctx context.Context, c *conn) error {
		if d == ledger.Barrier && !b.store.keepsCommits(c) {
			return store.ErrInterrupted
		}
		return b.store.runAsLeader(ctx, c, epoch, func() error { return do(ctx, b.store.tx(c)) })
	}))
}

// Request implements ledger.Backend. The lock on the counted record orders the requests.
func (b backend) Request(ctx context.Context, do func(ctx context.Context, tx ledger.Tx, nth int64) error) error {
	const count = "SELECT r.version FROM " + records + " WHERE r.name = ? AND r.kind = ? AND r.record_key = ?"
	return asOwnRefused(b.on.do(ctx, func(ctx context.Context, c *conn) error {
		return c.tx(ctx, func() error {
			tx, nth := b.store.tx(c), int64(0)
			err := tx.Put(ctx, ledger.RelayKind, ledger.Record{Key: ledger.Requests, Body: []byte("{}")})
			if err == nil {
				err = c.row(ctx, count, []any{b.store.name, ledger.RelayKind, ledger.Requests}, &nth)
			}
			if err != nil {
				return err
			}
			return do(ctx, tx, nth)
		})
	}))
}

// View implements ledger.Backend. At the session's own level, READ COMMITTED, each statement
// would see another snapshot.
func (b backend) View(ctx context.Context, do func(context.Context, ledger.Reader) error) error {
	return Explain(b.on.do(ctx, func(ctx context.Context, c *conn) error {
		return c.tx(ctx, func() error {
			if _, err := c.sqlConn.ExecContext(ctx, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"); err != nil {
				return err
			}
			return do(ctx, b.store.tx(c).reader)
		})
	}))
}

// reader implements ledger.Reader in a transaction.
type reader struct {
	conn *conn
	name string // of the relay
}

// writeTx implements ledger.Tx in a transaction.
type writeTx struct{ reader }

// tx returns a session's open transaction.
func (s *Store) tx(c *conn) writeTx { return writeTx{reader{c, s.name}} }
