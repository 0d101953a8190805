package mongo

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/store"
	views "github.com/sluicebox/sluicebox/store/internal/view"
	"github.com/sluicebox/sluicebox/store/mongo/document"
)

// View implements store.Viewer. A view is a session of its own with snapshot reads, and a
// store may have several. MongoDB has no named snapshots. The server keeps a snapshot for 5
// minutes (minSnapshotHistoryWindowInSeconds); later reads fail.
func (s *Store) View(ctx context.Context, snapshot string) (store.View, error) {
	if snapshot != "" {
		return nil, fmt.Errorf("open view: MongoDB has no named snapshots, got %q", snapshot)
	}
	return views.Open(ctx, s.lifetime, s.outboxes, func(ctx context.Context) (views.Snapshot, error) {
		on, err := s.server.open(ctx)
		if err == nil {
			err = on.recheckStandalone(ctx)
		}
		return &view{store: s, conn: on}, Explain(err)
	})
}

// view is a session whose reads see one snapshot.
type view struct {
	store   *Store
	conn    *conn
	session *mongo.Session
}

// snapshotTimeout is how long a read waits for a snapshot of collections that were created,
// or got an index, a moment ago.
const snapshotTimeout = 5 * time.Second

// retrySnapshot repeats a read while the server has no snapshot of a collection.
func retrySnapshot(ctx context.Context, read func() error) error {
	for started, try := time.Now(), 0; ; try++ {
		err := read()
		if !hasCode(err, codeSnapshotUnavailable) || time.Since(started) > snapshotTimeout || !retryPause(ctx, try) {
			return err
		}
	}
}

// Begin implements view.Snapshot. The view of a shard must have what its partition had before.
func (v *view) Begin(ctx context.Context) error {
	if v.store.server.beside != nil {
		if err := v.store.confirmPrimary(ctx, v.conn); err != nil {
			return Explain(err)
		}
	}
	return Explain(retrySnapshot(ctx, func() error {
		v.Drop() // that of an earlier try
		return v.begin(ctx)
	}))
}

// begin takes the snapshot by reading from each collection: each must have existed then as
// it does now.
func (v *view) begin(ctx context.Context) (err error) {
	if v.session, err = v.conn.client.StartSession(options.Session().SetSnapshot(!v.conn.standalone.Load())); err != nil {
		return err
	}

	in := []*mongo.Collection{v.conn.ownCollection(ownQueue)}
	for _, name := range v.store.outboxes.Names() {
		in = append(in, v.conn.table(v.store.outboxes.Lookup(name)).collection)
	}

	for _, c := range in {
		opts := options.Find().SetProjection(project("_id")).SetLimit(1)
		for _, err := range find(mongo.NewSessionContext(ctx, v.session), commandTimeout, c, bson.D{}, opts) {
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// Position is the time of the last operation that the snapshot shows (atClusterTime), for
// example 1795338000.5; "" on a standalone server.
func (v *view) Position() store.Position {
	at := v.session.SnapshotTime()
	if at.IsZero() {
		return ""
	}
	return store.Position(fmt.Sprintf("%d.%d", at.T, at.I))
}

// Drop implements view.Snapshot.
func (v *view) Drop() {
	if v.session == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), store.CloseTimeout)
	defer cancel()
	v.session.EndSession(ctx)
}

// ReadDelivered implements view.Snapshot. The program, not the server, filters times stored
// as text.
func (v *view) ReadDelivered(ctx context.Context, o *store.Outbox, to *views.DeliveredRows) error {
	t := v.conn.table(o)
	fields := append(project(append(t.rowFields(), o.Layout.OrderBy[0])...), bson.E{Key: sizeField, Value: t.size()})
	opts := options.Find().SetSort(t.order()).SetProjection(fields).SetAllowDiskUse(true).SetBatchSize(minWindow)
	for doc, err := range find(mongo.NewSessionContext(ctx, v.session), viewTimeout, t.collection, t.deliveredFilter(to), opts) {
		if err != nil {
			return Explain(err)
		}
		it, err := t.reader.Head(doc)
		if err != nil {
			continue // a fractional number: Diagnose reports such ids
		}
		it.PayloadSize, it.Attributes = sizeOf(doc), t.reader.KindAttributes(doc)
		it.Committed = document.Time(document.Lookup(doc, o.Layout.OrderBy[0]))
		if !to.Add(it) {
			break
		}
	}
	return nil
}

// deliveredFilter selects delivered documents within the time bounds. Documents whose time
// is not a date pass.
func (t *table) deliveredFilter(q *views.DeliveredRows) bson.D {
	all := bson.A{bson.D{t.identified()}, t.delivered()}
	var bounds bson.D
	if !q.Since.IsZero() {
		bounds = append(bounds, bson.E{Key: "$gte", Value: bson.NewDateTimeFromTime(q.Since)})
	}

	if !q.Until.IsZero() {
		bounds = append(bounds, bson.E{Key: "$lte", Value: bson.NewDateTimeFromTime(q.Until)}) // stored dates are truncated to ms, so equal passes
	}

	if at := t.Layout.OrderBy[0]; len(bounds) > 0 {
		other := bson.D{{Key: at, Value: bson.D{{Key: "$not", Value: bson.D{{Key: "$type", Value: "date"}}}}}}
		all = append(all, bson.D{{Key: "$or", Value: bson.A{bson.D{{Key: at, Value: bounds}}, other}}})
	}

	if n := len(q.IDs); n > 0 && n <= maxFilterValues {
		all = append(all, bson.D{t.idIn(q.IDs)})
	}
	return bson.D{{Key: "$and", Value: all}}
}
