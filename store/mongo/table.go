package mongo

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
	"github.com/sluicebox/sluicebox/store/internal/errortext"
	"github.com/sluicebox/sluicebox/store/mongo/document"
)

// expr is an expression of an operator, for example {$gt: ["$until", "$$NOW"]}.
func expr(operator string, of ...any) bson.D { return bson.D{{Key: operator, Value: bson.A(of)}} }

// table is the collection of an outbox, during one call.
type table struct {
	*store.Outbox
	collection *mongo.Collection
	reader     *document.Reader
}

// table returns the collection of a configured outbox.
func (c *conn) table(o *store.Outbox) *table {
	in := c.db
	if o.Schema != "" {
		in = c.client.Database(o.Schema)
	}
	return &table{o, in.Collection(o.Table), document.New(o)}
}

// path returns the name of the collection with its database.
func (t *table) path() string { return t.collection.Database().Name() + "." + t.collection.Name() }

// id returns the name of the id field.
func (t *table) id() string { return t.Layout.Columns.ID }

// idIn is the filter for documents with one of the ids, of any BSON type.
func (t *table) idIn(ids []string) bson.E {
	keys := make(bson.A, 0, 2*len(ids))
	for _, id := range ids {
		keys = append(keys, document.IDs(id)...)
	}
	return bson.E{Key: t.id(), Value: bson.D{{Key: "$in", Value: keys}}}
}

// oneDocumentEach reports whether documents that an update matched, as many as there are
// ids, are certainly one per id. Two documents may share the text of an id, for example an
// ObjectId and a string, and make up for a missing one. That is excluded if all ids have
// the same type.
func (t *table) oneDocumentEach(ctx context.Context, ids []string) (bool, error) {
	var texts bson.A
	for _, id := range ids {
		if !isSingle(id) {
			texts = append(texts, id)
		}
	}

	if len(ids) == 1 || len(texts) == 0 {
		return true, nil
	}

	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	n, err := t.collection.CountDocuments(ctx, bson.D{{Key: t.id(), Value: bson.D{{Key: "$in", Value: texts}}}})
	return n == 0 || n == int64(len(texts)), err
}

// maxBatchIDs bounds the documents that one command writes, so that it is answered in time.
const maxBatchIDs = 2000

// update updates the documents with the given ids that match a filter of them, in commands of
// bounded size. It returns how many matched.
func (t *table) update(ctx context.Context, ids []string, filter func(ids []string) bson.D, to bson.D) (all int64, err error) {
	for some := range slices.Chunk(ids, maxBatchIDs) {
		n, err := update(ctx, t.collection, filter(some), to)
		if err != nil {
			return all, err
		}
		all += n
	}
	return all, nil
}

// eachOf calls visit for each existing document with one of the ids, also for those of
// other BSON types.
func (t *table) eachOf(ctx context.Context, ids []string, projection bson.D, visit func(id string, doc bson.Raw) error, where ...bson.E) error {
	if len(ids) == 0 {
		return nil
	}
	filter := append(bson.D{t.idIn(ids)}, where...)
	for doc, err := range find(ctx, commandTimeout, t.collection, filter, options.Find().SetProjection(projection)) {
		if err != nil {
			return err
		}
		id, err := document.ID(document.Lookup(doc, t.id()))
		if err != nil {
			continue // no text matches such an id
		}
		if err := visit(id, doc); err != nil {
			return err
		}
	}
	return nil
}

// stateFields are the fields that tell the state of a document, and its id.
func (t *table) stateFields() []string {
	return append([]string{t.id()}, columns.StateColumns(&t.Layout)...)
}

// rowFields are the fields with the id, the lane, the own kind and the retry count of a row.
func (t *table) rowFields() []string {
	return append(document.HeadFields(&t.Layout), t.Layout.KindColumn())
}

// contentFields are the fields with the content of a document.
func (t *table) contentFields() []string {
	return append(document.AttributeFields(&t.Layout), t.Layout.Columns.Payload)
}

// content returns the content of a document that was read with it, nil if it has no payload.
func (t *table) content(doc bson.Raw) ([]byte, store.Attributes) {
	return t.reader.Content(doc, document.Lookup(doc, t.Layout.Columns.Payload))
}

// idsOf returns the ids of the rows at some indexes.
func idsOf(rows []store.ClaimRow, indexes []int) []string {
	ids := make([]string, len(indexes))
	for k, i := range indexes {
		ids[k] = rows[i].ID
	}
	return ids
}

// identified is the filter for documents whose id has a supported type.
func (t *table) identified() bson.E {
	return bson.E{Key: t.id(), Value: bson.D{{Key: "$type", Value: bson.A{"string", "objectId", "int", "long", "double", "binData"}}}}
}

// status returns the stored value of a status.
func (t *table) status(to store.Status) any { return stored(columns.Stored(&t.Layout, to)) }

// stored returns a value of the status field in its BSON type.
func stored(value any) any {
	if n, ok := value.(int); ok {
		return number(n)
	}
	return value
}

// number returns a number in the BSON type that most programs use for it.
func number(n int) any {
	if n >= math.MinInt32 && n <= math.MaxInt32 {
		return int32(n)
	}
	return int64(n)
}

// is is the filter for documents whose status is one of these, as far as the layout stores
// them. Without the field a document of StateBoolean is not delivered.
func (t *table) is(statuses ...store.Status) bson.D {
	values := bson.A{}
	for _, s := range statuses {
		switch {
		case !t.Layout.Stores(s) || s == store.Processing && t.Layout.State == store.StateBoolean: // the latter is a time beside false
		case s == store.Pending && t.Layout.State == store.StateBoolean:
			values = append(values, false, nil)
		case s == store.Failed && t.Layout.State == store.StateNumbers:
			for _, n := range t.Layout.FailedCodes() {
				values = append(values, number(n))
			}
		default:
			values = append(values, t.status(s))
		}
	}
	return bson.D{{Key: t.Layout.Columns.Status, Value: bson.D{{Key: "$in", Value: values}}}}
}

// open is the filter for documents that are pending or processing.
func (t *table) open() bson.D {
	switch t.Layout.State {
	case store.StateNone:
		return bson.D{}
	case store.StateTimestamps:
		var filter bson.D
		for _, name := range columns.StateColumns(&t.Layout) {
			filter = append(filter, bson.E{Key: name, Value: nil})
		}
		return filter
	}
	return t.is(store.Pending, store.Processing)
}

// failed is the filter for FAILED documents, except those also marked delivered.
func (t *table) failed() bson.D {
	c := &t.Layout.Columns
	switch {
	case !t.Layout.Stores(store.Failed):
		return bson.D{{Key: "$expr", Value: false}}
	case t.Layout.State == store.StateTimestamps:
		return bson.D{{Key: c.Failed, Value: bson.D{{Key: "$ne", Value: nil}}}, {Key: c.Delivered, Value: nil}}
	}
	return t.is(store.Failed)
}

// deadLetter is the filter for dead letters; see columns.State.DeadLetter.
func (t *table) deadLetter(named bool) bson.D {
	if named && !t.Layout.Stores(store.Failed) {
		return t.open()
	}
	return t.failed()
}

// delivered is the filter for COMPLETED documents.
func (t *table) delivered() bson.D {
	if t.Layout.State == store.StateTimestamps {
		return bson.D{{Key: t.Layout.Columns.Delivered, Value: bson.D{{Key: "$ne", Value: nil}}}}
	}
	return t.is(store.Completed)
}

// statusOf returns the status of a document, read with its state; 0 if the layout does not
// name it.
func (t *table) statusOf(doc bson.Raw) store.Status {
	l, v := &t.Layout, document.Lookup(doc, t.Layout.Columns.Status)
	switch l.State {
	case store.StateNone:
		return store.Pending
	case store.StateTimestamps:
		switch {
		case !document.Absent(document.Lookup(doc, l.Columns.Delivered)):
			return store.Completed
		case l.Columns.Failed != "" && !document.Absent(document.Lookup(doc, l.Columns.Failed)):
			return store.Failed
		}
		return store.Pending
	case store.StateBoolean:
		switch sent, is := v.BooleanOK(); {
		case is && sent:
			return store.Completed
		case is || document.Absent(v):
			return store.Pending
		}
		return 0
	}

	n, isNumber := v.AsFloat64OK()
	word, isWord := v.StringValueOK()
	for s := store.Pending; s <= store.Failed; s++ {
		switch {
		case !l.Stores(s):
		case l.State == store.StateNumbers && isNumber && n == float64(l.Numbers[s]), l.State == store.StateWords && isWord && word == l.Words[s]:
			return s
		}
	}
	if l.State == store.StateNumbers && isNumber && l.Stores(store.Failed) && slices.ContainsFunc(l.FailedCodes(), func(code int) bool { return n == float64(code) }) {
		return store.Failed
	}
	return 0
}

// isOpen reports whether a document, read with its state, is pending or processing.
func (t *table) isOpen(doc bson.Raw) bool {
	s := t.statusOf(doc)
	return s == store.Pending || s == store.Processing
}

// order is the sort order: the layout's order-by, then _id, which grows with time if
// drivers or servers generate it, then the id.
func (t *table) order() bson.D {
	return keys(t.ordered())
}

// ordered returns the fields of order.
func (t *table) ordered() []string {
	return columns.Order(&t.Layout, func(a, b string) bool { return a == b }, "_id")
}

// time returns a time in the layout's form. Both forms have milliseconds.
func (t *table) time(at time.Time) any {
	if t.Layout.TextTimes {
		return document.FormatTime(at)
	}
	return bson.NewDateTimeFromTime(at)
}

// before is the filter that the time in a field is before at.
func (t *table) before(name string, at time.Time) bson.E {
	bound := bson.NewDateTimeFromTime(at)
	if !t.Layout.TextTimes {
		return bson.E{Key: name, Value: bson.D{{Key: "$lt", Value: bound}}}
	}
	when := bson.D{{Key: "$dateFromString", Value: bson.D{
		{Key: "dateString", Value: "$" + name}, {Key: "onError", Value: nil}, {Key: "onNull", Value: nil},
	}}}
	return bson.E{Key: "$expr", Value: expr("$and", expr("$gt", when, nil), expr("$lt", when, bound))}
}

// set returns the update that assigns values to fields, taken from value. A skipped value
// leaves its field unchanged. Without values the update changes nothing.
func set(to []columns.Assignment, value func(columns.Assignment) any) bson.D {
	var fields bson.D
	for _, a := range to {
		var v any
		switch a.Value {
		case columns.Null:
		case columns.Zero:
			v = int32(0)
		case columns.Blank:
			v = ""
		default:
			if v = value(a); v == any(skipped{}) {
				continue
			}
		}
		fields = append(fields, bson.E{Key: a.Column, Value: v})
	}

	if fields == nil {
		return bson.D{{Key: "$setOnInsert", Value: bson.D{{Key: "_id", Value: 0}}}} // applies to upserts only
	}
	return bson.D{{Key: "$set", Value: fields}}
}

// skipped marks a field that is not written.
type skipped struct{}

// errorText sanitises an error text for storage; an empty text is skipped.
func errorText(text string) any {
	if text == "" {
		return skipped{}
	}
	return errortext.Sanitize(text, 0, false)
}

// project is the projection of fields, ignoring empty names.
func project(fields ...string) bson.D {
	projection := bson.D{{Key: "_id", Value: 0}}
	for _, name := range document.ProjectedFields(fields) {
		if name == "_id" {
			projection[0].Value = 1
			continue
		}
		projection = append(projection, bson.E{Key: name, Value: 1})
	}

	if len(projection) == 1 { // an empty projection would return every field
		projection[0].Value = 1
	}
	return projection
}

// sizeField is the projected field with the payload size, and nowField that with the
// server's time. No layout has such names.
const (
	sizeField = "sluicebox payload size"
	// payloadField is the projected payload, which is left out above a size limit.
	payloadField = "sluicebox payload"
	nowField     = "sluicebox now"
)

// size is an expression for the payload length in bytes. It is exact for text and binary
// data; for other types it is the BSON size.
func (t *table) size() any {
	payload := "$" + t.Layout.Columns.Payload
	branch := func(then any, types ...any) bson.D {
		is := expr("$in", bson.D{{Key: "$type", Value: payload}}, types)
		return bson.D{{Key: "case", Value: is}, {Key: "then", Value: then}}
	}
	return bson.D{{Key: "$switch", Value: bson.D{
		{Key: "branches", Value: bson.A{
			branch(bson.D{{Key: "$strLenBytes", Value: payload}}, "string"),
			branch(bson.D{{Key: "$binarySize", Value: payload}}, "binData"),
			branch(0, "missing", "null", "undefined"),
		}},
		{Key: "default", Value: bson.D{{Key: "$bsonSize", Value: bson.D{{Key: "payload", Value: payload}}}}},
	}}}
}

// sizeOf returns the payload size that was projected with a document.
func sizeOf(doc bson.Raw) int {
	size, _ := doc.Lookup(sizeField).AsInt64OK()
	return int(size)
}

// twinError reports two documents whose ids have the same text.
func (t *table) twinError(id string) error {
	return &store.RefusedError{Err: fmt.Errorf("outbox %s: two documents of %s have id %q with different types; give one another %s", t.Name, t.path(), id, t.id())}
}

// payloadError reports a document without a payload.
func (t *table) payloadError(id string) error {
	return &store.RefusedError{Err: fmt.Errorf("outbox %s: document %q of %s has no payload field %s; name another in layout %s, or set the field (null is an empty payload)",
		t.Name, id, t.path(), t.Layout.Columns.Payload, t.Layout.Name)}
}
