package mongo

import (
	"context"
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
)

// backend implements ledger.Backend. The leader's updates run in the writer's session, and
// requests and views in sessions of their own. Every commit is on disk on a majority, so all
// transactions have the durability ledger.Barrier.
type backend struct{ store *Store }

// Update implements ledger.Backend.
func (b backend) Update(ctx context.Context, epoch store.Epoch, _ ledger.Durability, do func(context.Context, ledger.Tx) error) error {
	s := b.store
	for {
		var t *writeTx
		err := s.runAsLeader(ctx, epoch, func(ctx context.Context, on *conn) error {
			t = s.tx(on)
			if d := s.lastRecord.Load(); d != nil && d.epoch != epoch {
				s.lastRecord.CompareAndSwap(d, nil) // another leader may have replaced the record
			}
			if !on.standalone.Load() { // it could not be undone
				t.last = &s.lastRecord
			}
			return t.run(ctx, do)
		})
		if errors.Is(err, errRecordChanged) {
			continue // without the last record
		}
		if err == nil && t.wroteLocked {
			t.locked.epoch = epoch
			s.lastRecord.Store(t.locked)
		}
		return asOwnRefused(err)
	}
}

// Request implements ledger.Backend. Two requests conflict when they count themselves, and
// the server aborts one of them, which runs again.
func (b backend) Request(ctx context.Context, do func(context.Context, ledger.Tx, int64) error) error {
	s := b.store
	err := s.onServer(ctx, func(ctx context.Context, on *conn) error {
		if err := errors.Join(on.recheckStandalone(ctx), installed(ctx, on)); err != nil {
			return err
		}
		write := func(ctx context.Context) error {
			t := s.tx(on)
			nth, err := t.countRequest(ctx)
			if err != nil {
				return err
			}
			return t.run(ctx, func(ctx context.Context, tx ledger.Tx) error { return do(ctx, tx, nth) })
		}
		err := on.transactAlone(ctx, write)
		if hasCode(err, codeDuplicate) { // two requests created the counter at once
			err = on.transactAlone(ctx, write)
		}
		return err
	})
	return asOwnRefused(err)
}

// transactAlone runs do in a transaction outside of any leadership, and retries it when the
// server aborts it. Without a replica set do runs without a transaction.
func (c *conn) transactAlone(ctx context.Context, do func(context.Context) error) error {
	if c.standalone.Load() {
		return do(ctx)
	}

	ctx, cancel := context.WithTimeout(ctx, transactionTimeout)
	defer cancel()
	own, err := c.client.StartSession(options.Session().SetDefaultTransactionOptions(transactions()))
	if err != nil {
		return err
	}

	defer own.EndSession(context.WithoutCancel(ctx))
	_, err = own.WithTransaction(ctx, func(ctx context.Context) (any, error) { return nil, do(ctx) })
	if err == nil {
		c.recordWrite(own.OperationTime())
	}
	return err
}

// View implements ledger.Backend. If it finds no record, it checks that the collections are
// installed, because a missing collection reads as an empty one.
func (b backend) View(ctx context.Context, do func(context.Context, ledger.Reader) error) error {
	return Explain(b.store.read(ctx, func(ctx context.Context, on *conn) error {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		r := &reader{conn: on, relay: b.store.name}
		err := r.inSnapshot(ctx, func(ctx context.Context) error { return do(ctx, r) })
		if err == nil && r.readsRecords && !r.foundRecords {
			err = installed(ctx, on)
		}
		return err
	}))
}

// inSnapshot runs read in a session whose reads see one snapshot, if the server has them.
// ctx contains a causally consistent session.
func (r *reader) inSnapshot(ctx context.Context, read func(context.Context) error) error {
	if r.conn.standalone.Load() {
		return read(ctx)
	}

	r.since = r.conn.lastWrite.Load()
	for {
		err := retrySnapshot(ctx, func() error {
			snapshot, err := r.conn.client.StartSession(options.Session().SetSnapshot(true))
			if err != nil {
				return err
			}
			defer snapshot.EndSession(context.WithoutCancel(ctx))
			return read(mongo.NewSessionContext(ctx, snapshot))
		})
		if !errors.Is(err, errOldSnapshot) {
			return err
		}
		// A read in the causally consistent session waits until snapshots include the
		// writes of the store.
		if err := findOne(ctx, r.conn.ownCollection(ownMeta), withID(versionID), &bson.D{}); err != nil && !errors.Is(err, mongo.ErrNoDocuments) {
			return err
		}
		r.since = nil
	}
}

// errOldSnapshot says that a snapshot is older than a write of this store. A session with
// snapshots is not causally consistent, and the first snapshots of a new primary may be
// older than what its predecessor has committed.
var errOldSnapshot = errors.New("snapshot older than a write")
