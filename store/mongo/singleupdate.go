package mongo

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
	"github.com/sluicebox/sluicebox/store/mongo/document"
)

// singleUpdate is an update of documents, each for itself, that is expected to find so many.
type singleUpdate struct {
	collection     *mongo.Collection
	filter, update bson.D
	count          int
}

const (
	// maxSingleUpdates is the most documents that are updated without a transaction. More of
	// them cost less in one (measured: from some 10 on).
	maxSingleUpdates = 16
	// singleServerTimeout bounds such an update on the server, the waiting for a majority included,
	// and singleTimeout the waiting for its answer.
	singleServerTimeout = 250 * time.Millisecond
	singleTimeout       = time.Second
)

// errSomeUpdatesFailed says that the server made some updates and not others.
var errSomeUpdatesFailed = errors.New("some updates were refused")

// isSingle reports whether an id is one value alone, so that an update by it finds one
// document at the most.
func isSingle(id string) bool { return len(document.IDs(id)) == 1 }

// runWithoutTransaction runs jobs without a transaction, in the writer's turn, and reports whether
// everything was found as expected. What was not, and what nobody knows of, a transaction
// finds out.
func (s *Store) runWithoutTransaction(ctx context.Context, jobs []*writeJob) bool {
	on := s.writer.conn
	var all []singleUpdate
	for _, j := range jobs {
		if j.singles == nil {
			return false
		}
		some := j.singles(on)
		if some == nil {
			return false
		}
		all = append(all, some...)
	}
	return s.writeSingles(ctx, on, on.writeSession, jobs[0].epoch, all)
}

// settleWithoutTransaction writes outcomes without a transaction, beside the claims, and reports
// whether all documents were found as expected.
func (s *Store) settleWithoutTransaction(ctx context.Context, epoch store.Epoch, c *settling) (done bool) {
	_ = s.outcomeWriter.Do(ctx, func(ctx context.Context) error { // or a transaction tells why not
		on := s.outcomeWriter.conn
		if all := c.singles(on); all != nil {
			c.mayBeWritten = true
			done = s.writeSingles(ctx, on, on.outcomeSession, epoch, all)
		}
		return nil
	})
	return done
}

// singles are the updates that write the outcomes if all documents are open. They are
// COMPLETED, each of a document of its own.
func (c *settling) singles(on *conn) []singleUpdate {
	c.conn = on
	all := []singleUpdate{}
	for _, p := range c.parts() {
		t := c.table(p.outbox)
		if p.round > 0 || t.Layout.State == store.StateNone || t.Layout.DeleteDelivered {
			return nil
		}
		for _, places := range c.groupUpdates(p, p.at) {
			to, ok := t.outcome(&c.outcomes[places[0]]).(bson.D)
			if !ok {
				return nil
			}
			all = append(all, singleUpdate{t.collection, t.openOf(c.ids(places)), to, len(places)})
		}
	}
	for i := range c.results {
		c.results[i] = store.Written
		if o := &c.outcomes[i]; o.SpilledSeq != 0 || o.Block != nil || !isSingle(o.ID) {
			return nil
		}
	}
	return all
}

// isCompletedByCall reports whether a document is COMPLETED as an outcome of the call says.
func (c *settling) isCompletedByCall(t *table, ref store.Ref, doc bson.Raw) bool {
	at := document.Time(document.Lookup(doc, t.completedAt()))
	return !at.IsZero() && t.isDelivered(doc) && slices.ContainsFunc(c.outcomes, func(o store.Outcome) bool {
		return o.Ref == ref && o.Status == store.Completed && o.At.UnixMilli() == at.UnixMilli()
	})
}

// completedAt is the field with the time of COMPLETED, "" if there is none.
func (t *table) completedAt() string {
	for _, a := range columns.Outcome(&t.Layout, store.Completed) {
		if a.Value == columns.Time {
			return a.Column
		}
	}
	return ""
}

// writeSingles makes updates in a session, if there is a grant, and reports whether they
// found what they were to.
func (s *Store) writeSingles(ctx context.Context, on *conn, in *mongo.Session, epoch store.Epoch, all []singleUpdate) bool {
	count := 0
	for i := range all {
		count += all[i].count
	}
	if count == 0 || count > maxSingleUpdates || !on.supportsGrants() {
		return false
	}
	by, ok := s.grant.acquire(epoch)
	if !ok {
		return false
	}
	ctx, cancel := s.lifetime.Bind(context.WithoutCancel(ctx))
	defer cancel()
	found, err := on.writeSingles(mongo.NewSessionContext(ctx, in), all, by)
	s.grant.release(by, err)
	if err == nil {
		on.recordWrite(in.OperationTime())
	}
	return err == nil && found == count
}

// writeSingles makes updates, those of one collection by one command, and tells how many
// documents they found.
func (c *conn) writeSingles(ctx context.Context, all []singleUpdate, by term) (found int, err error) {
	for len(all) > 0 {
		in, rest := all[0].collection, []singleUpdate(nil)
		var updates bson.A
		for _, one := range all {
			if one.collection.Name() != in.Name() || one.collection.Database().Name() != in.Database().Name() {
				rest = append(rest, one)
				continue
			}
			filter := append(append(bson.D{}, one.filter...), by.notEnded())
			updates = append(updates, bson.D{{Key: "q", Value: filter}, {Key: "u", Value: one.update}, {Key: "multi", Value: true}})
		}
		n, err := c.update(ctx, in, updates)
		found += n
		if err != nil {
			return found, err
		}
		all = rest
	}
	return found, nil
}

// update runs the command of that name in the context's session, and waits for a majority.
func (c *conn) update(ctx context.Context, in *mongo.Collection, updates bson.A) (int, error) {
	// A deadline would be the command's time limit too.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer time.AfterFunc(singleTimeout, cancel).Stop()
	var done struct {
		N       int        `bson:"n"`
		Errors  []bson.Raw `bson:"writeErrors"`
		Concern bson.Raw   `bson:"writeConcernError"`
	}
	err := in.Database().RunCommand(ctx, bson.D{
		{Key: "update", Value: in.Name()}, {Key: "updates", Value: updates}, {Key: "ordered", Value: false},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}, {Key: "j", Value: true}}},
		{Key: "maxTimeMS", Value: singleServerTimeout.Milliseconds()},
	}).Decode(&done)
	if err == nil && (len(done.Errors) > 0 || done.Concern != nil) {
		err = errSomeUpdatesFailed
	}
	return done.N, err
}
