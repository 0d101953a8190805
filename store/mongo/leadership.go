package mongo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/sluicebox/sluicebox/store"
)

// leadTimeout bounds how long AcquireLeadership waits for writes of an earlier leader,
// which it ends.
const leadTimeout = 2 * store.MinLockLease

// leaderDocument is the document of a relay in sluicebox_leader. Its field n, which is not
// read, counts the writes of its leaders.
type leaderDocument struct {
	Epoch          int64       `bson:"epoch"`
	Holder         string      `bson:"holder"`
	Since          time.Time   `bson:"since"`
	Session        bson.Binary `bson:"session"` // session of the leader's transactions
	OutcomeSession bson.Binary `bson:"aside"`   // session of its outcomes without a transaction
}

// sessionID returns the id of a session.
func sessionID(s *mongo.Session) bson.Binary {
	subtype, data := s.ID().Lookup("id").Binary()
	return bson.Binary{Subtype: subtype, Data: data}
}

// AcquireLeadership implements store.Leadership. It ends the open transaction of an earlier
// leader.
func (s *Store) AcquireLeadership(ctx context.Context) (store.Epoch, error) {
	var epoch store.Epoch
	err := s.writer.Do(ctx, func(ctx context.Context) error {
		on := s.writer.conn
		s.grant.setEpoch(0)
		if err := errors.Join(on.recheckStandalone(ctx), installed(ctx, on)); err != nil {
			return err
		}

		for started := time.Now(); ; {
			if err := s.endPredecessor(ctx, on); err != nil {
				return err
			}
			err := s.writer.transact(ctx, rowTimeout/2, func(ctx context.Context) (err error) {
				epoch, err = s.raiseEpoch(ctx, on)
				return err
			})
			if err == nil {
				s.grant.setEpoch(epoch)
			}
			if !isWriteConflict(err) {
				return err
			}
			if time.Since(started) > leadTimeout {
				return fmt.Errorf("document of relay %s in %s locked by another session's transaction; find it with "+
					"db.adminCommand({aggregate: 1, pipeline: [{$currentOp: {idleSessions: true}}, {$match: {transaction: {$exists: true}}}], cursor: {}}), and end it with killSessions (a relay does so itself if both log in as the same user): %w",
					s.name, ownLeader, err)
			}
		}
	})
	if err != nil {
		return 0, fmt.Errorf("acquire leadership: %w", Explain(err))
	}

	return epoch, nil
}

// endPredecessor kills the sessions named in the leader document, because a frozen relay
// may have a transaction open. A store that held the lock and lost it must not do that to
// its successor.
func (s *Store) endPredecessor(ctx context.Context, on *conn) error {
	var err error
	if s.hasTakenLock.Load() {
		err = findOne(ctx, on.ownCollection(ownLease), s.leaseCondition(), &bson.D{})
		if errors.Is(err, mongo.ErrNoDocuments) {
			err = errLockLost
		}
	} else {
		err = s.revokeLease(ctx, on)
	}
	if err != nil {
		return err
	}

	var d leaderDocument
	err = findOne(ctx, on.ownCollection(ownLeader), withID(s.name), &d)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return nil
	}
	if err != nil {
		return err
	}

	on.killSession(ctx, d.Session)
	on.killSession(ctx, d.OutcomeSession)
	return on.awaitWritesEnded(ctx, d.Session, d.OutcomeSession)
}

// errLockLost says that another relay has acquired the lock.
var errLockLost = fmt.Errorf("relay lock lost: %w", store.ErrNotLeader)

// killSession ends a session of another store. It ignores errors: the transaction then ends
// by itself later, and the call that waits for it reports that.
func (c *conn) killSession(ctx context.Context, id bson.Binary) {
	if len(id.Data) == 0 || string(id.Data) == string(sessionID(c.writeSession).Data) || string(id.Data) == string(sessionID(c.outcomeSession).Data) {
		return
	}
	kill := bson.D{{Key: "killSessions", Value: bson.A{bson.D{{Key: "id", Value: id}}}}}
	_ = c.run(ctx, kill, &bson.D{})
}

// raiseEpoch raises the epoch, in the call's transaction. A store that acquired the lock
// raises it only while it still holds the lock, because a relay that was frozen in between
// must not depose its successor.
func (s *Store) raiseEpoch(ctx context.Context, on *conn) (store.Epoch, error) {
	if s.hasTakenLock.Load() || on.supportsGrants() {
		n, err := update(ctx, on.ownCollection(ownLease), s.leaseCondition(), bson.D{{Key: "$inc", Value: bson.D{{Key: "raised", Value: int64(1)}}}})
		if err != nil {
			return 0, err
		}
		if n == 0 {
			return 0, errLockLost
		}
	}

	var d leaderDocument
	err := modify(ctx, on.ownCollection(ownLeader), withID(s.name), bson.D{
		{Key: "$inc", Value: bson.D{{Key: "epoch", Value: int64(1)}}},
		{Key: "$set", Value: bson.D{{Key: "holder", Value: s.holder}, {Key: "session", Value: sessionID(on.writeSession)}, {Key: "aside", Value: sessionID(on.outcomeSession)}}},
		{Key: "$currentDate", Value: bson.D{{Key: "since", Value: true}}},
	}, true, &d)
	return store.Epoch(d.Epoch), err
}

// Leader implements store.Leadership.
func (s *Store) Leader(ctx context.Context) (store.Leader, error) {
	var d leaderDocument
	err := s.read(ctx, func(ctx context.Context, on *conn) error {
		err := findOne(ctx, on.ownCollection(ownLeader), withID(s.name), &d)
		if !errors.Is(err, mongo.ErrNoDocuments) {
			return err
		}
		if err := installed(ctx, on); err != nil {
			return err
		}
		return store.ErrNotLeader
	})
	if err != nil {
		return store.Leader{}, fmt.Errorf("read leader: %w", Explain(err))
	}
	return store.Leader{Epoch: store.Epoch(d.Epoch), Holder: d.Holder, Since: d.Since.UTC()}, nil
}

// CommitsWait implements store.CommitWaiter. A change stream shows only what a majority of
// the members has, which no failover loses.
//
// Source: https://www.mongodb.com/docs/manual/changeStreams/
func (s *Store) CommitsWait(context.Context) (setting string, err error) { return "", nil }
