package mongo

import (
	"context"
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/store"
	views "github.com/sluicebox/sluicebox/store/internal/view"
	"github.com/sluicebox/sluicebox/store/mongo/document"
)

// ReadDelivered implements view.Snapshot. The program, not the server, filters times stored
// as text.
func (v *view) ReadDelivered(ctx context.Context, o *store.Outbox, to *views.DeliveredRows) error {
	t, reader := v.conn.table(o), document.New(o)
	c := &o.Layout.Columns
	fields := append(project(c.ID, c.Kind, c.Group, o.Layout.OrderBy[0]), bson.E{Key: sizeField, Value: t.size()})
	opts := options.Find().SetSort(t.order()).SetProjection(fields).SetAllowDiskUse(true).SetBatchSize(minWindow)
	err := forEach(mongo.NewSessionContext(ctx, v.session), viewTimeout, t.collection, t.deliveredFilter(to), opts, func(doc bson.Raw) error {
		it, err := reader.Head(doc)
		if err != nil {
			return nil // a fractional number: Diagnose reports such ids
		}
		size, _ := doc.Lookup(sizeField).AsInt64OK()
		it.PayloadSize = int(size)
		it.Committed = document.Time(document.Lookup(doc, o.Layout.OrderBy[0]))
		if !to.Add(it) {
			return errStopIteration
		}
		return nil
	})
	if errors.Is(err, errStopIteration) {
		return nil
	}

	return Explain(err)
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
