// Package mongo writes outbox rows as documents of MongoDB.
package mongo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/mongo/document"
	"github.com/sluicebox/sluicebox/store/outbox"
)

// Write writes rows in the transaction of a session, in their order, and returns their ids. db is
// the database of the outbox, unless its Schema names one. A row of a transaction that is
// aborted was never there. After an error, abort. In a callback of [mongo.Session.WithTransaction]
// the session is mongo.SessionFromContext(ctx).
func Write(ctx context.Context, session *mongo.Session, db *mongo.Database, o *outbox.Outbox, rows ...outbox.Row) ([]string, error) {
	refuse := func(err error) error { return fmt.Errorf("write into outbox %s: %w", o.Outbox().Name, err) }
	if !session.TransactionRunning() {
		return nil, refuse(errors.New("the session has no transaction; call StartTransaction or WithTransaction"))
	}
	if len(rows) == 0 {
		return nil, nil
	}
	docs, ids := make([]bson.Raw, len(rows)), make([]string, len(rows))
	for i := range rows {
		row := rows[i]
		if err := o.Complete(ctx, &row); err != nil {
			return nil, refuse(err)
		}
		fields, err := o.Fields(&row)
		if err == nil {
			docs[i], err = encode(o, fields)
		}
		if err != nil {
			return nil, refuse(err)
		}
		ids[i] = row.ID
	}
	result, err := collection(db, o.Outbox()).InsertMany(mongo.NewSessionContext(ctx, session), docs)
	if err != nil {
		return nil, refuse(err)
	}
	for i := range ids {
		if id, ok := result.InsertedIDs[i].(bson.ObjectID); ok && ids[i] == "" {
			ids[i] = id.Hex()
		}
	}
	return ids, nil
}

// collection returns the collection of an outbox.
func collection(db *mongo.Database, o *store.Outbox) *mongo.Collection {
	if o.Schema != "" {
		db = db.Client().Database(o.Schema)
	}
	return db.Collection(o.Table)
}

// maxDocument is the size of the largest document (BSONObjMaxUserSize of the server).
const maxDocument = 16 << 20

// encode returns the document of a row.
func encode(o *outbox.Outbox, fields []outbox.Field) (bson.Raw, error) {
	var doc bson.D
	for i := range fields {
		value, err := value(&o.Outbox().Layout, &fields[i])
		if err != nil {
			return nil, err
		}
		doc = set(doc, strings.Split(fields[i].Column, "."), value)
	}
	raw, err := bson.Marshal(doc)
	switch {
	case err != nil:
		return nil, &outbox.RowError{Problem: err.Error(), Remedy: "rename the member", Err: err}
	case len(raw) > maxDocument:
		return nil, &outbox.RowError{Key: "payload", Problem: fmt.Sprintf("makes a document of %d bytes, at most %d are allowed", len(raw), maxDocument), Remedy: "shorten it"}
	}
	return raw, nil
}

// set sets the value at a path in a document.
func set(doc bson.D, path []string, value any) bson.D {
	i := slices.IndexFunc(doc, func(e bson.E) bool { return e.Key == path[0] })
	if i < 0 {
		i = len(doc)
		doc = append(doc, bson.E{Key: path[0]})
	}
	if len(path) == 1 {
		doc[i].Value = value
	} else {
		in, _ := doc[i].Value.(bson.D)
		doc[i].Value = set(in, path[1:], value)
	}
	return doc
}

// value returns a value in the type that most programs use for it.
func value(l *store.Layout, f *outbox.Field) (any, error) {
	switch v := f.Value.(type) {
	case time.Time:
		if l.TextTimes {
			return document.FormatTime(v), nil
		}
		return bson.NewDateTimeFromTime(v), nil
	case int64:
		if v >= math.MinInt32 && v <= math.MaxInt32 {
			return int32(v), nil
		}
	case []byte:
		if utf8.Valid(v) {
			return string(v), nil
		}
		return bson.Binary{Data: v}, nil
	case string:
		if slices.ContainsFunc(l.Attributes, func(a store.AttributeColumn) bool { return a.Spread && a.Column == f.Column }) {
			return object(v)
		}
	}
	return f.Value, nil
}

// object returns the document for a JSON object of texts and objects, with its members in order.
func object(text string) (bson.D, error) {
	var members map[string]any
	if err := json.Unmarshal([]byte(text), &members); err != nil {
		return nil, err
	}
	return ordered(members), nil
}

func ordered(members map[string]any) bson.D {
	doc := bson.D{}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		if in, ok := members[name].(map[string]any); ok {
			doc = append(doc, bson.E{Key: name, Value: ordered(in)})
		} else {
			doc = append(doc, bson.E{Key: name, Value: members[name]})
		}
	}
	return doc
}
