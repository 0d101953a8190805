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
	"github.com/sluicebox/sluicebox/store/internal/lifetime"
	"github.com/sluicebox/sluicebox/store/internal/sessionlock"
)

// leaseTime is how long a lease lasts after a ping, by the primary's clock. It is a second
// longer than store.MinLockLease because the next primary's clock may be ahead by that
// much.
const leaseTime = store.MinLockLease + time.Second

// lockTryTimeout bounds one command that requests a lease.
const lockTryTimeout = time.Second

// leaseDocument is the lease of a relay in sluicebox_lease.
type leaseDocument struct {
	Holder  string        `bson:"holder"`
	Token   bson.ObjectID `bson:"token"` // of the lock that holds it
	Until   time.Time     `bson:"until"`
	Fence   time.Time     `bson:"fence"`   // end of the holder's grant, by the cluster time
	Session bson.Binary   `bson:"session"` // of the holder's writer
}

// leaseEnd is the end of a lease that begins now, by the server's clock.
func leaseEnd() any {
	return bson.D{{Key: "$add", Value: bson.A{"$$NOW", leaseTime.Milliseconds()}}}
}

// Lock implements store.Locker by a lease that pings extend. A relay that crashes keeps it
// for leaseTime.
func (s *Store) Lock(ctx context.Context) (store.Lock, error) {
	var taken *lock
	err := s.lifetime.Do(ctx, func(ctx context.Context) error {
		on, err := s.server.open(ctx)
		if err == nil {
			taken, err = s.tryLock(ctx, on)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("acquire relay lock: %w", Explain(err))
	}

	if !s.lifetime.Add(taken) {
		taken.Release()
		return nil, fmt.Errorf("acquire relay lock: %w", lifetime.ErrClosed)
	}
	return taken, nil
}

// tryLock requests a lease. If an answer is lost the lease may have been granted, so the
// next call repeats the request with the same token. Otherwise the store would stand by for
// itself.
func (s *Store) tryLock(ctx context.Context, on *conn) (*lock, error) {
	s.locking.Lock()
	defer s.locking.Unlock()

	if s.token == nil {
		token := bson.NewObjectID()
		s.token = &token
	}

	token := *s.token
	d, err := s.acquireLease(ctx, on, token)
	switch {
	case hasCode(err, codeDuplicate): // two relays create the document at once
		d, err = s.acquireLease(ctx, on, token)
	case mongo.IsTimeout(err), isWriteConflict(err):
		s.endHolder(ctx, on)
	}

	if err != nil {
		return nil, err
	}

	s.token = nil
	if d.Token != token {
		return nil, &store.LockedError{Holder: d.Holder}
	}

	s.hasTakenLock.Store(true)
	s.grant.start(d.term())
	l := &lock{conn: on, name: s.name, token: token, lifetime: s.lifetime, grant: &s.grant}
	l.Lock = sessionlock.New(l)
	return l, nil
}

// acquireLease acquires the lease if it is free or already the token's, and returns its
// current state.
func (s *Store) acquireLease(ctx context.Context, on *conn, token bson.ObjectID) (d leaseDocument, err error) {
	ctx, cancel := context.WithTimeout(ctx, lockTryTimeout)
	defer cancel()
	notEnded := bson.A{bson.D{{Key: "$gt", Value: bson.A{"$until", "$$NOW"}}}}
	if on.supportsGrants() {
		notEnded = append(notEnded, bson.D{{Key: "$gt", Value: bson.A{"$fence", clusterTime()}}})
	}

	held := bson.D{{Key: "$and", Value: bson.A{
		bson.D{{Key: "$or", Value: notEnded}}, bson.D{{Key: "$ne", Value: bson.A{"$token", token}}},
	}}}
	unlessHeld := func(name string, value any) bson.E {
		return bson.E{Key: name, Value: bson.D{{Key: "$cond", Value: bson.A{held, "$" + name, value}}}}
	}

	literal := func(v any) any { return bson.D{{Key: "$literal", Value: v}} }
	fields := bson.D{unlessHeld("holder", literal(s.holder)), unlessHeld("token", token), unlessHeld("session", sessionID(on.writeSession)), unlessHeld("until", leaseEnd())}
	if on.supportsGrants() {
		// Only writes advance the cluster time, so a request writes while it waits for the
		// fence.
		endsSoon := bson.D{{Key: "$lte", Value: bson.A{"$until", bson.D{{Key: "$add", Value: bson.A{"$$NOW", time.Second.Milliseconds()}}}}}}
		requests := bson.D{{Key: "$add", Value: bson.A{bson.D{{Key: "$ifNull", Value: bson.A{"$asked", 0}}}, bson.D{{Key: "$toInt", Value: endsSoon}}}}}
		fields = append(fields, unlessHeld("fence", fenceEnd()), bson.E{Key: "asked", Value: requests})
	}

	take := bson.A{bson.D{{Key: "$set", Value: fields}}}
	err = on.ownCollection(ownLease).FindOneAndUpdate(ctx, bson.D{{Key: "_id", Value: s.name}}, take,
		options.FindOneAndUpdate().SetUpsert(true).SetReturnDocument(options.After)).Decode(&d)
	return d, err
}

// endHolder kills the session of a holder whose lease has expired. The holder may be frozen
// in the transaction that raises the epoch, which locks the lease document.
func (s *Store) endHolder(ctx context.Context, on *conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lockTryTimeout)
	defer cancel()
	var d leaseDocument
	over := bson.D{{Key: "_id", Value: s.name}, {Key: "$expr", Value: bson.D{{Key: "$lte", Value: bson.A{"$until", "$$NOW"}}}}}
	if on.ownCollection(ownLease).FindOne(ctx, over).Decode(&d) == nil {
		on.killSession(ctx, d.Session)
	}
}

// leaseCondition is the filter that this store holds the lease, or nobody else has acquired
// it since.
func (s *Store) leaseCondition() bson.D {
	return bson.D{{Key: "_id", Value: s.name}, {Key: "holder", Value: s.holder}}
}

// holdsLease reports whether this store holds the lease, or nobody else has acquired it
// since.
func (s *Store) holdsLease(ctx context.Context, on *conn) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	err := on.ownCollection(ownLease).FindOne(ctx, s.leaseCondition()).Err()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return false, nil
	}
	return err == nil, err
}

// lock is a held lease.
type lock struct {
	*sessionlock.Lock
	conn     *conn
	name     string
	token    bson.ObjectID
	lifetime *lifetime.Lifetime
	grant    *grant

	requests int64
}

func (l *lock) filter() bson.D {
	return bson.D{{Key: "_id", Value: l.name}, {Key: "token", Value: l.token}}
}

// Ping implements store.Lock. It extends the lease and then reads the number of requests.
// While there is no primary it retries until the context ends.
func (l *lock) Ping(ctx context.Context) error {
	return l.Use(ctx, func(ctx context.Context) error {
		for try := 0; ; try++ {
			err := l.extend(ctx)
			if err == nil {
				l.countRequests(ctx)
				return nil
			}
			if !Unreachable(err) || !retryPause(ctx, try) {
				return err
			}
		}
	})
}

// countTimeout bounds the time that reading the request count adds to a ping.
const countTimeout = 500 * time.Millisecond

// countRequests reads the number of requests. The count is not in the lease document
// because a request is a transaction, and a ping would wait for it. If the read fails the
// old count stays: the lease was extended either way.
func (l *lock) countRequests(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	var d struct {
		N int64 `bson:"n"`
	}
	err := l.conn.ownCollection(ownRequest).FindOne(ctx, bson.D{{Key: "_id", Value: l.name}}).Decode(&d)
	if err == nil || errors.Is(err, mongo.ErrNoDocuments) || hasCode(err, codeUnauthorized) {
		l.requests = d.N
	}
}

// RequestCount implements store.Lock.
func (l *lock) RequestCount() int64 { return l.requests }

func (l *lock) extend(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	fields := bson.D{{Key: "until", Value: leaseEnd()}}
	if l.conn.supportsGrants() {
		fields = append(fields, bson.E{Key: "fence", Value: fenceEnd()})
	}

	var d leaseDocument
	err := l.conn.ownCollection(ownLease).FindOneAndUpdate(ctx, l.filter(), bson.A{bson.D{{Key: "$set", Value: fields}}},
		options.FindOneAndUpdate().SetReturnDocument(options.After)).Decode(&d)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return fmt.Errorf("lease acquired by another relay: %w", store.ErrNotLeader)
	}

	if err != nil {
		return fmt.Errorf("extend relay lease: %w", err)
	}

	l.grant.extend(d.term())
	return nil
}

// Watch implements store.Lock. Only a ping detects a lost lease.
func (l *lock) Watch(ctx context.Context) error {
	return l.Use(ctx, func(ctx context.Context) error {
		<-ctx.Done()
		return nil
	})
}

// Release implements store.Lock.
func (l *lock) Release() {
	l.Lock.Release()
	l.lifetime.Remove(l)
}

// Close releases the lock when the store closes.
func (l *lock) Close() { l.Release() }

// Lost implements sessionlock.Session: only a call detects the loss.
func (l *lock) Lost() bool { return false }

// Unlock implements sessionlock.Session: it ends the lease.
func (l *lock) Unlock(ctx context.Context) {
	fields := bson.D{{Key: "until", Value: time.Unix(0, 0)}}
	if l.grant.revoke() {
		fields = append(fields, bson.E{Key: "fence", Value: zeroFence()})
	}
	_, _ = update(ctx, l.conn.ownCollection(ownLease), l.filter(), bson.D{{Key: "$set", Value: fields}}) // on failure the lease expires by itself
}

// Drop implements sessionlock.Session. There is no session to drop, but the grant ends.
func (l *lock) Drop() { l.grant.revoke() }
