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
	mu      sync.Mutex
	epoch   store.Epoch   // that was raised under the lock, 0 before
	term    term          // zero without a lock
	writing int           // writes under way
	unsure  time.Time     // when a write that was not answered cannot be made any more
	refrain time.Time     // none before
	pause   time.Duration // how long the latest pause was
}

// term is when a grant ends, by the primary's clock and by the time that the members of
// the set agree on.
type term struct{ until, fence time.Time }

const (
	// termMargin is how long before its end a grant is used no more. It is longer than
	// singleTime, so that a write has ended by then.
	termMargin = time.Second
	// leastPause and mostPausing bound how long every write is a transaction after an error:
	// of a document that somebody else changes, or a server that is away, a transaction
	// tells more.
	leastPause  = time.Second
	mostPausing = time.Minute
	// clockAhead is how far the cluster's time may be ahead of the primary's clock. It goes
	// on only when the clock has caught up, and a grant would last as long.
	clockAhead = time.Second
)

// noFence is the fence of a lease that comes without a grant.
func noFence() time.Time { return time.Unix(0, 0) }

// clusterTime is the time that the members of a replica set agree on, which no election
// sets back, in seconds (mongodb.com/docs/manual/reference/aggregation-variables). It
// follows what is written.
func clusterTime() any { return bson.D{{Key: "$toDate", Value: "$$CLUSTER_TIME"}} }

// fenced is the end of a grant that begins now, by the cluster's time.
func fenced() any {
	later := func(than any, by time.Duration) any {
		return bson.D{{Key: "$add", Value: bson.A{than, by.Milliseconds()}}}
	}
	ahead := bson.D{{Key: "$gt", Value: bson.A{clusterTime(), later("$$NOW", clockAhead)}}}
	return bson.D{{Key: "$cond", Value: bson.A{ahead, noFence(), later(clusterTime(), leaseTime)}}}
}

// before is the condition that a term has not ended. On an idle server the cluster's
// time stands still, and where another member's clock is behind, that clock's.
func (t term) before() bson.E {
	return bson.E{Key: "$expr", Value: bson.D{{Key: "$and", Value: bson.A{
		bson.D{{Key: "$lt", Value: bson.A{"$$NOW", t.until}}},
		bson.D{{Key: "$lt", Value: bson.A{clusterTime(), t.fence}}},
	}}}}
}

// term is that of the lease.
func (d *leaseDocument) term() term { return term{d.Until, d.Fence} }

// begin notes that the lock was taken.
func (g *grant) begin(t term) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.epoch, g.term, g.unsure, g.refrain, g.pause = 0, t, time.Time{}, time.Time{}, 0
}

// lead notes that an epoch was raised, or is about to be where it is 0.
func (g *grant) lead(epoch store.Epoch) {
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
	if pinged := t.until.Add(-leaseTime); pinged.After(g.unsure) {
		g.unsure = time.Time{}
	}
}

// end takes the grant away, and reports whether nothing of it can come any more.
func (g *grant) end() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.epoch, g.term = 0, term{}
	return g.writing == 0 && g.unsure.IsZero()
}

// use gives a write of an epoch the term in which it has to be made. It ends with done.
func (g *grant) use(epoch store.Epoch) (by term, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.epoch != epoch || !g.term.fence.After(noFence()) || time.Now().Before(g.refrain) {
		return term{}, false
	}
	g.writing++
	return term{g.term.until.Add(-termMargin), g.term.fence.Add(-termMargin)}, true
}

// done ends a write, by its error.
func (g *grant) done(by term, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.writing--
	if err == nil {
		g.pause = 0
		return
	}
	g.pause = min(max(2*g.pause, leastPause), mostPausing)
	g.refrain = time.Now().Add(g.pause)
	if !answered(err) && by.until.After(g.unsure) {
		g.unsure = by.until
	}
}

// depose takes the lease from whoever has it, for a store that leads without the lock,
// and waits until the grant that came with it is over.
func (s *Store) depose(ctx context.Context, on *conn) error {
	if !on.grants() {
		return nil
	}
	for began, try := time.Now(), mostTries; ; try++ {
		bound, cancel := context.WithTimeout(ctx, silence)
		var d struct {
			Over bool `bson:"over"`
		}
		err := on.own(ownLease).FindOneAndUpdate(bound, bson.D{{Key: "_id", Value: s.name}}, bson.A{bson.D{{Key: "$set", Value: bson.D{
			{Key: "holder", Value: bson.D{{Key: "$literal", Value: s.holder}}}, {Key: "token", Value: bson.NewObjectID()}, {Key: "until", Value: time.Unix(0, 0)},
			{Key: "over", Value: bson.D{{Key: "$lte", Value: bson.A{"$fence", clusterTime()}}}},
		}}}}, options.FindOneAndUpdate().SetUpsert(true).SetReturnDocument(options.After)).Decode(&d)
		cancel()
		switch {
		case err == nil && d.Over:
			return nil
		case err != nil && !conflict(err) && !has(err, codeDuplicate):
			return err
		case time.Since(began) > leadPatience || !pause(ctx, try):
			return errors.Join(err, fmt.Errorf("the lease of relay %s in %s goes on: another relay of the name asks for it all the time", s.name, ownLease))
		}
	}
}

// ended waits until no command of an earlier leader's sessions runs any more. One that
// began under its grant might else write after the change of leader.
func (c *conn) ended(ctx context.Context, sessions ...bson.Binary) error {
	if !c.grants() {
		return nil
	}
	running := mongo.Pipeline{
		{{Key: "$currentOp", Value: bson.D{}}},
		{{Key: "$match", Value: bson.D{{Key: "lsid.id", Value: bson.D{{Key: "$in", Value: sessions}}}, {Key: "active", Value: true}}}},
		{{Key: "$limit", Value: 1}},
	}
	for began, try := time.Now(), 0; ; try++ {
		bound, cancel := context.WithTimeout(ctx, silence)
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
		case time.Since(began) > leadPatience || !pause(ctx, try):
			return fmt.Errorf("a write of the relay that led before does not end; find it by db.currentOp({active: true, \"lsid.id\": UUID(\"%x\")}) and end it by db.killOp", sessions[0].Data)
		}
	}
}

// grants reports whether a lock on the server comes with a grant: there is a time that
// the members of a set agree on. A mongos may hold commands up behind its own look at it.
func (c *conn) grants() bool { return !c.alone.Load() && !c.routed.Load() }
