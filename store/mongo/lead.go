package mongo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/store"
)

// leadPatience bounds the waiting of one Lead for writes of an earlier leader, which it
// ends.
const leadPatience = 2 * store.LockHold

// leaderDocument is the document of a relay in sluicebox_leader. N counts the writes
// of its leaders.
type leaderDocument struct {
	Epoch   int64       `bson:"epoch"`
	Holder  string      `bson:"holder"`
	Since   time.Time   `bson:"since"`
	Session bson.Binary `bson:"session"` // that of the leader's writer
	Aside   bson.Binary `bson:"aside"`   // that of its outcomes, see Store.aside
}

// sessionID is the id of a session.
func sessionID(s *mongo.Session) bson.Binary {
	subtype, data := s.ID().Lookup("id").Binary()
	return bson.Binary{Subtype: subtype, Data: data}
}

// Lead implements store.Leadership. It ends the transaction of an earlier leader, which
// would else keep the leader document until the server ends it, after 60 s by default
// (transactionLifetimeLimitSeconds).
func (s *Store) Lead(ctx context.Context) (store.Epoch, error) {
	var epoch store.Epoch
	err := s.writer.Do(ctx, func(ctx context.Context) error {
		on := s.writer.on
		s.grant.lead(0)
		if err := errors.Join(on.joined(ctx), installed(ctx, on)); err != nil {
			return err
		}
		for began := time.Now(); ; {
			if err := s.endPredecessor(ctx, on); err != nil {
				return err
			}
			err := s.writer.transact(ctx, rowPatience/2, func(ctx context.Context) (err error) {
				epoch, err = s.raise(ctx, on)
				return err
			})
			if err == nil {
				s.grant.lead(epoch)
			}
			if !conflict(err) {
				return err
			}
			if time.Since(began) > leadPatience {
				return fmt.Errorf("somebody keeps the document of relay %s in %s changed in a transaction; find out who by "+
					"db.adminCommand({aggregate: 1, pipeline: [{$currentOp: {idleSessions: true}}, {$match: {transaction: {$exists: true}}}], cursor: {}}), and end the session by killSessions; a relay ends that of an earlier one of the same user by itself: %w",
					s.name, ownLeader, err)
			}
		}
	})
	if err != nil {
		return 0, fmt.Errorf("take the lead: %w", Explain(err))
	}
	return epoch, nil
}

// endPredecessor kills the session of the leader that the document names: a relay that
// is frozen may have a transaction open. A store that took the lock, and has lost it,
// must not do that to its successor.
func (s *Store) endPredecessor(ctx context.Context, on *conn) error {
	if s.locked.Load() {
		held, err := s.holdsLease(ctx, on)
		if err != nil || !held {
			return errors.Join(err, lostLock(held))
		}
	} else if err := s.depose(ctx, on); err != nil {
		return err
	}
	var d leaderDocument
	err := one(ctx, on.own(ownLeader), s.name, &d)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return nil
	}
	if err != nil {
		return err
	}
	on.kill(ctx, d.Session)
	on.kill(ctx, d.Aside)
	return on.ended(ctx, d.Session, d.Aside)
}

func lostLock(held bool) error {
	if held {
		return nil
	}
	return fmt.Errorf("the relay's lock is lost: %w", store.ErrNotLeader)
}

// kill ends a session of another store. Where that fails the transaction ends later, by
// itself: then whoever waits for it says so.
func (c *conn) kill(ctx context.Context, id bson.Binary) {
	if len(id.Data) == 0 || string(id.Data) == string(sessionID(c.writing).Data) || string(id.Data) == string(sessionID(c.aside).Data) {
		return
	}
	kill := bson.D{{Key: "killSessions", Value: bson.A{bson.D{{Key: "id", Value: id}}}}}
	_ = c.admin(ctx, kill, &bson.D{})
}

// raise raises the epoch, in the call's transaction. A store that took the lock raises
// only while it has it still: one that was frozen in between must not depose its
// successor.
func (s *Store) raise(ctx context.Context, on *conn) (store.Epoch, error) {
	if s.locked.Load() || on.grants() {
		n, err := update(ctx, on.own(ownLease), s.leased(), bson.D{{Key: "$inc", Value: bson.D{{Key: "raised", Value: int64(1)}}}})
		if err != nil || n == 0 {
			return 0, errors.Join(err, lostLock(n > 0))
		}
	}
	bound, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	var d leaderDocument
	err := on.own(ownLeader).FindOneAndUpdate(bound, bson.D{{Key: "_id", Value: s.name}}, bson.D{
		{Key: "$inc", Value: bson.D{{Key: "epoch", Value: int64(1)}}},
		{Key: "$set", Value: bson.D{{Key: "holder", Value: s.holder}, {Key: "session", Value: sessionID(on.writing)}, {Key: "aside", Value: sessionID(on.aside)}}},
		{Key: "$currentDate", Value: bson.D{{Key: "since", Value: true}}},
	}, options.FindOneAndUpdate().SetUpsert(true).SetReturnDocument(options.After)).Decode(&d)
	return store.Epoch(d.Epoch), err
}

// Leader implements store.Leadership.
func (s *Store) Leader(ctx context.Context) (store.Leader, error) {
	var d leaderDocument
	err := s.read(ctx, func(ctx context.Context, on *conn) error {
		err := one(ctx, on.own(ownLeader), s.name, &d)
		if !errors.Is(err, mongo.ErrNoDocuments) {
			return err
		}
		if err := installed(ctx, on); err != nil {
			return err
		}
		return store.ErrNotLeader
	})
	if err != nil {
		return store.Leader{}, fmt.Errorf("read who leads: %w", Explain(err))
	}
	return store.Leader{Epoch: store.Epoch(d.Epoch), Holder: d.Holder, Since: d.Since.UTC()}, nil
}
