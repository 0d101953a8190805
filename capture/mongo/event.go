package mongo

import (
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/mongo/document"
)

// Event types (https://www.mongodb.com/docs/v6.0/reference/change-events/#operation-types).
const (
	kindInsert       = "insert"
	kindReplace      = "replace"
	kindDrop         = "drop"
	kindRename       = "rename"
	kindDropDatabase = "dropDatabase"
	kindInvalidate   = "invalidate"
)

// event is a change stream event as projected by the pipeline.
type event struct {
	place      oplogPosition
	kind       string
	collection string
	to         string // new name of a rename
	at         time.Time
	document   bson.Raw
	raw        bson.Raw // the complete event
}

// eventOf parses an event in one pass. The event shares raw's memory.
func eventOf(raw bson.Raw, pipeline string) (event, error) {
	elements, err := raw.Elements()
	if err != nil {
		return event{}, fmt.Errorf("parse event: %w", err)
	}

	e := event{raw: raw}
	var token bson.Raw
	for _, el := range elements {
		v := el.Value()
		switch el.Key() {
		case fieldToken:
			token, _ = v.DocumentOK()
		case fieldKind:
			e.kind, _ = v.StringValueOK()
		case fieldFrom:
			e.collection = collectionOf(v)
		case fieldTo:
			e.to = collectionOf(v)
		case fieldTime:
			e.at, _ = v.TimeOK()
		case fieldDocument:
			e.document, _ = v.DocumentOK()
			err = document.Validate(e.document)
		default: // payloads
			if limited, is := v.DocumentOK(); is {
				err = document.Validate(limited)
			}
		}
		if err != nil {
			return event{}, fmt.Errorf("parse event: %w", err)
		}
	}

	if e.place, err = parseToken(token, pipeline); err != nil {
		return e, err
	}

	if e.at.IsZero() {
		e.at = time.Unix(int64(e.place.at.T), 0)
	}

	return e, nil
}

func collectionOf(namespace bson.RawValue) string {
	doc, _ := namespace.DocumentOK()
	name, _ := doc.Lookup("coll").StringValueOK()
	return name
}

// items appends the items that the event's document yields, one per outbox over its
// collection.
func (p *plan) items(list []store.Item, e *event, database string, now time.Time) ([]store.Item, error) {
	for _, r := range p.readers[e.collection] {
		it, err := r.Head(e.document)
		if err != nil {
			return list, &fault.RowError{Schema: database, Table: e.collection, ID: it.ID, Err: err}
		}
		it.Committed, it.Captured = e.at, now
		value := document.Lookup(e.document, r.outbox.Layout.Columns.Payload)
		if limited, _ := e.raw.Lookup(r.payload).DocumentOK(); limited != nil {
			value = limited.Lookup(fieldValue)
			if size, large := limited.Lookup(fieldSize).AsInt64OK(); large {
				it.PayloadSize = int(size)
				list = append(list, it)
				continue
			}
		}
		it.Payload, it.Attributes = r.Content(e.document, value) // nil if missing, which the claim refuses
		it.PayloadSize = len(it.Payload)
		list = append(list, it)
	}

	return list, nil
}

// lossReason describes an event that removes or replaces a collection of an outbox; "" for
// other events.
func (e *event) lossReason(p *plan, database string) string {
	ours := func(name string) bool { return len(p.readers[name]) > 0 }
	switch {
	case e.kind == kindDrop && ours(e.collection):
		return fmt.Sprintf("collection %s.%s was dropped", database, e.collection)
	case e.kind == kindRename && ours(e.to):
		return fmt.Sprintf("collection %s.%s replaced %s; its documents were inserted under the old name", database, e.collection, e.to)
	case e.kind == kindRename && ours(e.collection):
		return fmt.Sprintf("collection %s.%s was renamed to %s", database, e.collection, e.to)
	case e.kind == kindDropDatabase:
		return fmt.Sprintf("database %s was dropped", database)
	case e.kind == kindInvalidate:
		return "change stream was invalidated: its database is gone"
	}
	return ""
}
