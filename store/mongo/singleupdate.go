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

// singleUpdate is an update outside a transaction that is expected to match count
// documents.
type singleUpdate struct {
	collection     *mongo.Collection
	filter, update bson.D
	count          int
}

const (
	// maxSingleUpdates bounds the documents updated without a transaction. More of them
	// cost less in one transaction (measured: from about 10 on).
	maxSingleUpdates = 16
	// singleServerTimeout bounds such an update on the server, including the wait for a
	// majority. singleTimeout bounds the wait for its answer.
	singleServerTimeout = 250 * time.Millisecond
	singleTimeout       = time.Second
)

// errSomeUpdatesFailed says that the server applied some updates and refused others.
var errSomeUpdatesFailed = errors.New("server refused some updates")

// isSingle reports whether only one BSON value has this text, so that an update by it
// matches at most one document.
func isSingle(id string) bool { return len(document.IDs(id)) == 1 }

// runWithoutTransaction runs jobs without a transaction, in the writer's turn. It reports
// whether every update matched as expected; if not, or if an answer is missing, the caller
// uses a transaction to find out.
func (s *Store) runWithoutTransaction(ctx context.Context, jobs []*writeJob) bool {
	on := s.writer.conn
	var allUpdates []singleUpdate
	for _, j := range jobs {
		if j.singles == nil {
			return false
		}
		updates := j.singles(on)
		if updates == nil {
			return false
		}
		allUpdates = append(allUpdates, updates...)
	}
	return s.writeSingles(ctx, on, on.writeSession, jobs[0].epoch, allUpdates)
}

// settleWithoutTransaction writes outcomes without a transaction, concurrently with claims.
// It reports whether all documents matched as expected.
func (s *Store) settleWithoutTransaction(ctx context.Context, epoch store.Epoch, c *settling) (done bool) {
	_ = s.outcomeWriter.Do(ctx, func(ctx context.Context) error { // on error the transaction that follows reports the cause
		on := s.outcomeWriter.conn
		if all := c.singles(on); all != nil {
			c.mayBeWritten = true
			done = s.writeSingles(ctx, on, on.outcomeSession, epoch, all)
		}
		return nil
	})
	return done
}

// singles returns the updates that write the outcomes if all documents are open. It returns
// nil unless each outcome is a COMPLETED or a PENDING of a distinct document and changes no record.
//
// The transaction that follows if not all documents match writes a PENDING again, because it cannot
// tell that one from an earlier one. So with a takeover timeout a PENDING needs the transaction: another
// processor may claim the row between the two.
func (c *settling) singles(on *conn) (all []singleUpdate) {
	c.conn = on
	for i := range c.outcomes {
		o := &c.outcomes[i]
		if l := &c.outboxes.Lookup(o.Outbox).Layout; l.State == store.StateNone || l.DeleteDelivered || o.ChangesRecords() || !isSingle(o.ID) {
			return nil
		}
		if c.takeover != 0 && o.Status == store.Pending {
			return nil
		}
	}

	for _, w := range c.plan(nil) {
		if len(w.ids) < w.rows {
			return nil
		}
		for _, group := range w.groups {
			all = append(all, singleUpdate{w.table.collection, w.table.openOf(c.ids(group)), w.table.outcome(&c.outcomes[group[0]]), len(group)})
		}
	}
	return all
}

// isCompletedByCall reports whether a document is COMPLETED with the time of one of the
// call's outcomes.
func (c *settling) isCompletedByCall(t *table, ref store.Ref, doc bson.Raw) bool {
	at := document.Time(document.Lookup(doc, t.completedAt()))
	return !at.IsZero() && t.statusOf(doc) == store.Completed && slices.ContainsFunc(c.outcomes, func(o store.Outcome) bool {
		return o.Ref == ref && o.Status == store.Completed && o.At.UnixMilli() == at.UnixMilli()
	})
}

// completedAt is the field with the time of COMPLETED, or "".
func (t *table) completedAt() string {
	for _, a := range columns.Outcome(&t.Layout, store.Completed, nil) {
		if a.Value == columns.Time {
			return a.Column
		}
	}
	return ""
}

// writeSingles runs updates in a session, if there is a grant, and reports whether they
// matched the expected number of documents.
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

// writeSingles runs updates, one command per collection, and returns how many documents
// matched.
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

// update runs the update command in the context's session and waits for a majority.
func (c *conn) update(ctx context.Context, in *mongo.Collection, updates bson.A) (int, error) {
	// The driver would derive a second time limit (maxTimeMS) from a deadline.
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
