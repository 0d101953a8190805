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

// grant says until when the leader may write documents without a transaction that
// begins with the leader document; see the package's documentation. It comes with the
// lock, and with each ping.
type grant struct {
	mu               sync.Mutex
	epoch            store.Epoch   // that was raised under the lock, 0 before
	term             term          // zero without a lock
	inFlight         int           // writes under way
	unconfirmedUntil time.Time     // when a write that was not answered cannot be made any more
	pausedUntil      time.Time     // none before
	pause            time.Duration // how long the latest pause was
}

// term is when a grant ends, by the primary's clock and by the time that the members of
// the set agree on.
type term struct{ until, fence time.Time }

const (
	// termMargin is how long before its end a grant is used no more. It is longer than
	// singleServerTimeout, so that a write has ended by then.
	termMargin = time.Second
	// minGrantPause and maxGrantPause bound how long every write is a transaction after an error:
	// of a document that somebody else changes, or a server that is away, a transaction
	// tells more.
	minGrantPause = time.Second
	maxGrantPause = time.Minute
	// maxClockAhead is how far the cluster's time may be ahead of the primary's clock. It goes
	// on only when the clock has caught up, and a grant would last as long.
	maxClockAhead = time.Second
)

// zeroFence is the fence of a lease that comes without a grant.
func zeroFence() time.Time { return time.Unix(0, 0) }

// clusterTime is the time that the members of a replica set agree on, which no election
// sets back, in seconds (mongodb.com/docs/manual/reference/aggregation-variables). It
// follows what is written.
func clusterTime() any { return bson.D{{Key: "$toDate", Value: "$$CLUSTER_TIME"}} }

// fenceEnd is the end of a grant that begins now, by the cluster's time.
func fenceEnd() any {
	later := func(than any, by time.Duration) any {
		return bson.D{{Key: "$add", Value: bson.A{than, by.Milliseconds()}}}
	}
	ahead := bson.D{{Key: "$gt", Value: bson.A{clusterTime(), later("$$NOW", maxClockAhead)}}}
	return bson.D{{Key: "$cond", Value: bson.A{ahead, zeroFence(), later(clusterTime(), leaseTime)}}}
}

// notEnded is the condition that a term has not ended. On an idle server the cluster's
// time stands still, and where another member's clock is behind, that clock's.
func (t term) notEnded() bson.E {
	return bson.E{Key: "$expr", Value: bson.D{{Key: "$and", Value: bson.A{
		bson.D{{Key: "$lt", Value: bson.A{"$$NOW", t.until}}},
		bson.D{{Key: "$lt", Value: bson.A{clusterTime(), t.fence}}},
	}}}}
}

// term is that of the lease.
func (d *leaseDocument) term() term { return term{d.Until, d.Fence} }

// start notes that the lock was taken.
func (g *grant) start(t term) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.epoch, g.term, g.unconfirmedUntil, g.pausedUntil, g.pause = 0, t, time.Time{}, time.Time{}, 0
}

// setEpoch notes that an epoch was raised, or is about to be where it is 0.
func (g *grant) setEpoch(epoch store.Epoch) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.epoch = epoch
}

// extend notes what a ping brought.
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

// revoke takes the grant away, and reports whether nothing of it can come any more.
func (g *grant) revoke() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.epoch, g.term = 0, term{}
	return g.inFlight == 0 && g.unconfirmedUntil.IsZero()
}

// acquire gives a write of an epoch the term in which it has to be made. It ends with done.
func (g *grant) acquire(epoch store.Epoch) (by term, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.epoch != epoch || !g.term.fence.After(zeroFence()) || time.Now().Before(g.pausedUntil) {
		return term{}, false
	}
	g.inFlight++
	return term{g.term.until.Add(-termMargin), g.term.fence.Add(-termMargin)}, true
}

// release ends a write, by its error.
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

// revokeLease takes the lease from whoever has it, for a store that leads without the lock,
// and waits until the grant that came with it is over.
func (s *Store) revokeLease(ctx context.Context, on *conn) error {
	if !on.supportsGrants() {
		return nil
	}
	for began, try := time.Now(), maxPauseTry; ; try++ {
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
		case time.Since(began) > leadTimeout || !retryPause(ctx, try):
			return errors.Join(err, fmt.Errorf("the lease of relay %s in %s goes on: another relay of the name asks for it all the time", s.name, ownLease))
		}
	}
}

// awaitWritesEnded waits until no command of an earlier leader's sessions runs any more. One that
// began under its grant might else write after the change of leader.
func (c *conn) awaitWritesEnded(ctx context.Context, sessions ...bson.Binary) error {
	if !c.supportsGrants() {
		return nil
	}
	running := mongo.Pipeline{
		{{Key: "$currentOp", Value: bson.D{}}},
		{{Key: "$match", Value: bson.D{{Key: "lsid.id", Value: bson.D{{Key: "$in", Value: sessions}}}, {Key: "active", Value: true}}}},
		{{Key: "$limit", Value: 1}},
	}
	for began, try := time.Now(), 0; ; try++ {
		bound, cancel := context.WithTimeout(ctx, commandTimeout)
		found, err := c.client.Database("admin", options.Database().SetReadConcern(readconcern.Local())).Aggregate(bound, running)
		var some []bson.Raw
		if err == nil {
			err = found.All(bound, &some)
		}
		cancel()
		switch {
		case err != nil:
			return fmt.Errorf("look for writes of the relay that led before: %w", err)
		case len(some) == 0:
			return nil
		case time.Since(began) > leadTimeout || !retryPause(ctx, try):
			return fmt.Errorf("a write of the relay that led before does not end; find it by db.currentOp({active: true, \"lsid.id\": UUID(\"%x\")}) and end it by db.killOp", sessions[0].Data)
		}
	}
}

// supportsGrants reports whether a lock on the server comes with a grant: there is a time that
// the members of a set agree on. A mongos may hold commands up behind its own look at it.
func (c *conn) supportsGrants() bool { return !c.standalone.Load() && !c.isMongos.Load() }
