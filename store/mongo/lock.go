package mongo

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/sessions"
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
func leaseEnd() any { return after("$$NOW", leaseTime) }

// after is an expression for the time that follows another by a duration.
func after(at any, by time.Duration) any { return expr("$add", at, by.Milliseconds()) }

// Lock implements store.Locker by a lease that pings extend. A relay that crashes keeps it
// for leaseTime.
func (s *Store) Lock(ctx context.Context) (store.Lock, error) {
	var taken *lock
	err := s.onServer(ctx, func(ctx context.Context, on *conn) (err error) {
		taken, err = s.tryLock(ctx, on)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("acquire relay lock: %w", Explain(err))
	}

	if !s.lifetime.Add(taken) {
		taken.Release()
		return nil, fmt.Errorf("acquire relay lock: %w", sessions.ErrClosed)
	}
	return taken, nil
}

// tryLock requests a lease. If an answer is lost the lease may have been granted, so the
// next call repeats the request with the same token. Otherwise the store would stand by for
// itself.
func (s *Store) tryLock(ctx context.Context, on *conn) (*lock, error) {
	s.locking.Lock()
	defer s.locking.Unlock()

	if s.token.IsZero() {
		s.token = bson.NewObjectID()
	}
	token := s.token
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

	s.token = bson.ObjectID{}
	if d.Token != token {
		return nil, &store.LockedError{Holder: d.Holder}
	}

	s.hasTakenLock.Store(true)
	s.grant.start(d.term())
	l := &lock{store: s, conn: on, token: token}
	l.Lock = sessions.NewLock(l)
	return l, nil
}

// acquireLease acquires the lease if it is free or already the token's, and returns its
// current state.
func (s *Store) acquireLease(ctx context.Context, on *conn, token bson.ObjectID) (d leaseDocument, err error) {
	ctx, cancel := context.WithTimeout(ctx, lockTryTimeout)
	defer cancel()
	notEnded := []any{expr("$gt", "$until", "$$NOW")}
	if on.supportsGrants() {
		notEnded = append(notEnded, expr("$gt", "$fence", clusterTime()))
	}

	held := expr("$and", expr("$or", notEnded...), expr("$ne", "$token", token))
	unlessHeld := func(name string, value any) bson.E {
		return bson.E{Key: name, Value: expr("$cond", held, "$"+name, value)}
	}

	fields := bson.D{
		unlessHeld("holder", bson.D{{Key: "$literal", Value: s.holder}}), unlessHeld("token", token),
		unlessHeld("session", sessionID(on.writeSession)), unlessHeld("until", leaseEnd()),
	}
	if on.supportsGrants() {
		// Only writes advance the cluster time, so a request writes while it waits for the
		// fence.
		endsSoon := expr("$lte", "$until", after("$$NOW", time.Second))
		requests := expr("$add", expr("$ifNull", "$asked", 0), bson.D{{Key: "$toInt", Value: endsSoon}})
		fields = append(fields, unlessHeld("fence", fenceEnd()), bson.E{Key: "asked", Value: requests})
	}

	err = modify(ctx, on.ownCollection(ownLease), withID(s.name), bson.A{bson.D{{Key: "$set", Value: fields}}}, true, &d)
	return d, err
}

// endHolder kills the session of a holder whose lease has expired. The holder may be frozen
// in the transaction that raises the epoch, which locks the lease document.
func (s *Store) endHolder(ctx context.Context, on *conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lockTryTimeout)
	defer cancel()
	var d leaseDocument
	over := append(withID(s.name), bson.E{Key: "$expr", Value: expr("$lte", "$until", "$$NOW")})
	if findOne(ctx, on.ownCollection(ownLease), over, &d) == nil {
		on.killSession(ctx, d.Session)
	}
}

// leaseCondition is the filter that this store holds the lease, or nobody else has acquired
// it since.
func (s *Store) leaseCondition() bson.D {
	return append(withID(s.name), bson.E{Key: "holder", Value: s.holder})
}

// lock is a held lease.
type lock struct {
	*sessions.Lock
	store    *Store
	conn     *conn
	token    bson.ObjectID
	requests int64
}

func (l *lock) filter() bson.D {
	return append(withID(l.store.name), bson.E{Key: "token", Value: l.token})
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

// countRequests reads the number of requests. If the read fails the old count stays, because
// the lease was extended either way.
func (l *lock) countRequests(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	var d recordDocument
	err := findOne(ctx, l.conn.ownCollection(ownRecord), withID(requestsKey(l.store.name)), &d)
	if err == nil || errors.Is(err, mongo.ErrNoDocuments) || hasCode(err, codeUnauthorized) {
		l.requests = d.Version
	}
}

// RequestCount implements store.Lock.
func (l *lock) RequestCount() int64 { return l.requests }

func (l *lock) extend(ctx context.Context) error {
	fields := bson.D{{Key: "until", Value: leaseEnd()}}
	if l.conn.supportsGrants() {
		fields = append(fields, bson.E{Key: "fence", Value: fenceEnd()})
	}

	var d leaseDocument
	err := modify(ctx, l.conn.ownCollection(ownLease), l.filter(), bson.A{bson.D{{Key: "$set", Value: fields}}}, false, &d)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return fmt.Errorf("lease acquired by another relay: %w", store.ErrNotLeader)
	}
	if err != nil {
		return fmt.Errorf("extend relay lease: %w", err)
	}
	l.store.grant.extend(d.term())
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
	l.store.lifetime.Remove(l)
}

// Close releases the lock when the store closes.
func (l *lock) Close() { l.Release() }

// Lost implements sessions.Holder: only a call detects the loss.
func (l *lock) Lost() bool { return false }

// Unlock implements sessions.Holder: it ends the lease.
func (l *lock) Unlock(ctx context.Context) {
	fields := bson.D{{Key: "until", Value: zeroFence()}}
	if l.store.grant.revoke() {
		fields = append(fields, bson.E{Key: "fence", Value: zeroFence()})
	}
	_, _ = update(ctx, l.conn.ownCollection(ownLease), l.filter(), bson.D{{Key: "$set", Value: fields}}) // on failure the lease expires by itself
}

// Drop implements sessions.Holder. There is no session to drop, but the grant ends.
func (l *lock) Drop() { l.store.grant.revoke() }

// grant says until when the leader may write documents without a transaction; see the
// package documentation. The lock and each ping bring it.
type grant struct {
	mu               sync.Mutex
	epoch            store.Epoch   // epoch raised under the lock, 0 before
	term             term          // zero without the lock
	inFlight         int           // writes in flight
	unconfirmedUntil time.Time     // when an unanswered write can no longer take effect
	pausedUntil      time.Time     // use transactions until then, after an error
	pause            time.Duration // length of the latest pause
}

// term is the end of a grant, by the primary's clock and by the cluster time.
type term struct{ until, fence time.Time }

const (
	// termMargin is how long before its end a grant is no longer used. It is longer than
	// singleServerTimeout, so that a write has ended by then.
	termMargin = time.Second
	// minGrantPause and maxGrantPause bound how long every write is a transaction after an
	// error, because a transaction reports more about contention and about an unreachable
	// server.
	minGrantPause = time.Second
	maxGrantPause = time.Minute
	// maxClockAhead is how far the cluster time may be ahead of the primary's clock. The
	// cluster time stands still until the clock has caught up, and a grant would last as
	// long.
	maxClockAhead = time.Second
)

// zeroFence is the fence of a lease without a grant.
func zeroFence() time.Time { return time.Unix(0, 0) }

// clusterTime is the time that the members of a replica set agree on, in seconds
// (mongodb.com/docs/manual/reference/aggregation-variables). Writes advance it, and no
// election sets it back.
func clusterTime() any { return bson.D{{Key: "$toDate", Value: "$$CLUSTER_TIME"}} }

// fenceEnd is the end of a grant that begins now, by the cluster time.
func fenceEnd() any {
	ahead := expr("$gt", clusterTime(), after("$$NOW", maxClockAhead))
	return expr("$cond", ahead, zeroFence(), after(clusterTime(), leaseTime))
}

// notEnded is the filter that a term has not ended. It checks both times, because the
// cluster time stands still on an idle server, and the clock of a new primary may be
// behind.
func (t term) notEnded() bson.E {
	return bson.E{Key: "$expr", Value: expr("$and", expr("$lt", "$$NOW", t.until), expr("$lt", clusterTime(), t.fence))}
}

// term returns the term of the lease.
func (d *leaseDocument) term() term { return term{d.Until, d.Fence} }

// start begins a grant when the lock is acquired.
func (g *grant) start(t term) {
	g.mu.Lock()
	defer g.mu.Unlock()

	g.epoch, g.term, g.unconfirmedUntil, g.pausedUntil, g.pause = 0, t, time.Time{}, time.Time{}, 0
}

// setEpoch records a raised epoch; 0 while a new one is about to be raised.
func (g *grant) setEpoch(epoch store.Epoch) {
	g.mu.Lock()
	defer g.mu.Unlock()

	g.epoch = epoch
}

// extend applies the term of a ping.
func (g *grant) extend(t term) {
	g.mu.Lock()
	defer g.mu.Unlock()

	if g.term == (term{}) {
		return
	}
	g.term = t
	if pinged := t.until.Add(-leaseTime); pinged.After(g.unconfirmedUntil) {
		g.unconfirmedUntil = time.Time{}
	}
}

// revoke ends the grant and reports whether no write under it can still take effect.
func (g *grant) revoke() bool {
	g.mu.Lock()
	defer g.mu.Unlock()

	g.epoch, g.term = 0, term{}
	return g.inFlight == 0 && g.unconfirmedUntil.IsZero()
}

// acquire returns the term for a write of an epoch; the write must be made within it. The
// caller ends it with release.
func (g *grant) acquire(epoch store.Epoch) (by term, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()

	if g.epoch != epoch || !g.term.fence.After(zeroFence()) || time.Now().Before(g.pausedUntil) {
		return term{}, false
	}
	g.inFlight++
	return term{g.term.until.Add(-termMargin), g.term.fence.Add(-termMargin)}, true
}

// release ends a write and applies its error.
func (g *grant) release(by term, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()

	g.inFlight--
	if err == nil {
		g.pause = 0
		return
	}

	g.pause = min(max(2*g.pause, minGrantPause), maxGrantPause)
	g.pausedUntil = time.Now().Add(g.pause)
	if !isServerError(err) && by.until.After(g.unconfirmedUntil) {
		g.unconfirmedUntil = by.until
	}
}

// revokeLease takes the lease from its holder, for a store that leads without the lock. It
// waits until the grant of that lease has ended.
func (s *Store) revokeLease(ctx context.Context, on *conn) error {
	if !on.supportsGrants() {
		return nil
	}

	take := bson.A{bson.D{{Key: "$set", Value: bson.D{
		{Key: "holder", Value: bson.D{{Key: "$literal", Value: s.holder}}}, {Key: "token", Value: bson.NewObjectID()}, {Key: "until", Value: zeroFence()},
		{Key: "over", Value: expr("$lte", "$fence", clusterTime())},
	}}}}
	for started, try := time.Now(), maxPauseTry; ; try++ {
		var d struct {
			Over bool `bson:"over"`
		}
		err := modify(ctx, on.ownCollection(ownLease), withID(s.name), take, true, &d)
		switch {
		case err == nil && d.Over:
			return nil
		case err != nil && !isWriteConflict(err) && !hasCode(err, codeDuplicate):
			return err
		case time.Since(started) > leadTimeout || !retryPause(ctx, try):
			return errors.Join(err, fmt.Errorf("lease of relay %s in %s still active: another relay with this name keeps renewing it", s.name, ownLease))
		}
	}
}

// awaitWritesEnded waits until no command of an earlier leader's sessions runs any more. A
// command that began under its grant might otherwise write after the change of leader.
func (c *conn) awaitWritesEnded(ctx context.Context, sessions ...bson.Binary) error {
	if !c.supportsGrants() {
		return nil
	}

	running := mongo.Pipeline{
		{{Key: "$currentOp", Value: bson.D{}}},
		{{Key: "$match", Value: bson.D{{Key: "lsid.id", Value: bson.D{{Key: "$in", Value: sessions}}}, {Key: "active", Value: true}}}},
		{{Key: "$limit", Value: 1}},
	}

	for started, try := time.Now(), 0; ; try++ {
		bound, cancel := context.WithTimeout(ctx, commandTimeout)
		found, err := c.client.Database("admin", options.Database().SetReadConcern(readconcern.Local())).Aggregate(bound, running)
		var active []bson.Raw
		if err == nil {
			err = found.All(bound, &active)
		}
		cancel()
		switch {
		case err != nil:
			return fmt.Errorf("find writes of the previous leader: %w", err)
		case len(active) == 0:
			return nil
		case time.Since(started) > leadTimeout || !retryPause(ctx, try):
			return fmt.Errorf("write of the previous leader still running; find it with db.currentOp({active: true, \"lsid.id\": UUID(\"%x\")}) and end it with db.killOp", sessions[0].Data)
		}
	}
}

// supportsGrants reports whether the server's lock comes with a grant, which needs the
// cluster time. A mongos is excluded because it may delay commands beyond the time it has
// checked.
func (c *conn) supportsGrants() bool { return !c.standalone.Load() && !c.isMongos.Load() }
