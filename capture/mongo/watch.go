package mongo

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/mongo/document"
)

// Watch sends every change of the outbox collections from now on; see capture.Watcher. It reads a
// change stream as Tap does. An update has the changed fields alone, so neither the server looks
// documents up, nor do the collections need pre-images. The events name a document by its _id, so
// that is the id of every change.
func (s *Source) Watch(ctx context.Context, out chan<- capture.Batch, begun func()) error {
	s.plan, s.watching = newWatchPlan(&s.cfg), true
	return s.Tap(ctx, out, begun)
}

// Fields of the events of a watch.
const (
	fieldKey     = "documentKey"
	fieldUpdate  = "updateDescription"
	fieldUpdated = "updatedFields"
	fieldRemoved = "removedFields"
)

const (
	kindUpdate = "update"
	kindDelete = "delete"
)

// newWatchPlan is newPlan for a watch.
func newWatchPlan(cfg *Config) *plan {
	p := newPlan(cfg)
	fields := []string{"_id"}
	for i := range cfg.Outboxes {
		l := &cfg.Outboxes[i].Layout
		fields = append(append(fields, document.HeadFields(l)...), l.StatusColumns()...)
	}
	p.match = bson.D{
		{Key: fieldKind, Value: bson.D{{Key: "$in", Value: bson.A{kindInsert, kindUpdate, kindReplace, kindDelete, kindDrop, kindRename, kindDropDatabase, kindInvalidate}}}},
		{Key: "$or", Value: bson.A{
			bson.D{{Key: fieldFrom + ".coll", Value: bson.D{{Key: "$in", Value: slices.Sorted(maps.Keys(p.readers))}}}},
			bson.D{{Key: fieldKind, Value: bson.D{{Key: "$in", Value: bson.A{kindRename, kindDropDatabase, kindInvalidate}}}}},
		}},
	}
	p.hash = hashOf(p.match)
	p.fullProjection = append(projectOf(fields, nil, nil), bson.E{Key: fieldKey + "._id", Value: 1},
		bson.E{Key: fieldUpdate + "." + fieldUpdated, Value: 1}, bson.E{Key: fieldUpdate + "." + fieldRemoved, Value: 1})
	p.limitedProjection = p.fullProjection
	return p
}

// addChanges adds the changes of an event to the batch, one per outbox over its collection.
func (st *stream) addChanges(ctx context.Context, e *event, now time.Time) error {
	kind := map[string]capture.ChangeKind{kindInsert: capture.Inserted, kindUpdate: capture.Updated, kindReplace: capture.Updated, kindDelete: capture.Deleted}[e.kind]
	id, err := document.ID(e.raw.Lookup(fieldKey, "_id"))
	for _, r := range st.src.plan.readers[e.collection] {
		if err != nil {
			return &fault.RowError{Schema: st.db.Name(), Table: e.collection, Err: fmt.Errorf("field _id: %w", err)}
		}
		ch := capture.Change{
			Kind: kind, ID: id, Captured: now, Lane: store.LaneKey{Outbox: r.outbox.Name, Kind: r.outbox.Kind},
			Txn: store.Txn(uint64(e.place.at.T)<<32 | uint64(e.place.at.I)), // of all events of a transaction
		}
		if _, precise := e.raw.Lookup(fieldTime).TimeOK(); precise {
			ch.Committed = e.at
		}
		if kind == capture.Inserted {
			ch.Lane = r.Lane(e.document)
		}
		if kind != capture.Deleted {
			ch.Status = r.outbox.Layout.StatusOf(e.field)
		}
		st.batch.Changes, st.last = append(st.batch.Changes, ch), e.place
	}
	if len(st.batch.Changes) >= st.src.cfg.MaxBatchRows {
		return st.flush(ctx)
	}
	return nil
}

// field returns the text of a field after the change. known is false if an update did not change it.
func (e *event) field(name string) (text []byte, known bool) {
	if e.kind != kindUpdate {
		return textOf(document.Lookup(e.document, name)), true
	}
	updated, _ := e.raw.Lookup(fieldUpdate, fieldUpdated).DocumentOK()
	elements, err := updated.Elements()
	if err != nil {
		return nil, false
	}
	for _, el := range elements {
		switch rest, below := strings.CutPrefix(name, el.Key()+"."); {
		case el.Key() == name:
			return textOf(el.Value()), true
		case below:
			doc, _ := el.Value().DocumentOK()
			return textOf(document.Lookup(doc, rest)), true
		}
	}
	removed, _ := e.raw.Lookup(fieldUpdate, fieldRemoved).ArrayOK()
	values, err := removed.Values()
	if err != nil {
		return nil, false
	}
	for _, v := range values {
		if gone, _ := v.StringValueOK(); within(name, gone) {
			return nil, true
		}
	}
	return nil, false
}

// textOf returns the text of a value, nil if it is absent.
func textOf(v bson.RawValue) []byte {
	if document.Absent(v) {
		return nil
	}
	return document.AppendText([]byte{}, v)
}
