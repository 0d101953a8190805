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
)

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
	plus := func(base any, by time.Duration) any {
		return bson.D{{Key: "$add", Value: bson.A{base, by.Milliseconds()}}}
	}
	ahead := bson.D{{Key: "$gt", Value: bson.A{clusterTime(), plus("$$NOW", maxClockAhead)}}}
	return bson.D{{Key: "$cond", Value: bson.A{ahead, zeroFence(), plus(clusterTime(), leaseTime)}}}
}

// notEnded is the filter that a term has not ended. It checks both times, because the
// cluster time stands still on an idle server, and the clock of a new primary may be
// behind.
func (t term) notEnded() bson.E {
	return bson.E{Key: "$expr", Value: bson.D{{Key: "$and", Value: bson.A{
		bson.D{{Key: "$lt", Value: bson.A{"$$NOW", t.until}}},
		bson.D{{Key: "$lt", Value: bson.A{clusterTime(), t.fence}}},
	}}}}
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

	for started, try := time.Now(), maxPauseTry; ; try++ {
		bound, cancel := context.WithTimeout(ctx, commandTimeout)
		var d struct {
			Over bool `bson:"over"`
		}
		err := on.ownCollection(ownLease).FindOneAndUpdate(bound, bson.D{{Key: "_id", Value: s.name}}, bson.A{bson.D{{Key: "$set", Value: bson.D{
			{Key: "holder", Value: bson.D{{Key: "$literal", Value: s.holder}}}, {Key: "token", Value: bson.NewObjectID()}, {Key: "until", Value: time.Unix(0, 0)},
			{Key: "over", Value: bson.D{{Key: "$lte", Value: bson.A{"$fence", clusterTime()}}}},
		}}}}, options.FindOneAndUpdate().SetUpsert(true).SetReturnDocument(options.After)).Decode(&d)
		cancel()
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
