// Package documents creates, fills and reads the MongoDB collections of package storetest.
package documents

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest"
)

// callTimeout limits every call, so that a hanging one fails by name.
const callTimeout = time.Minute

// Database implements the document operations of storetest.Database. Its methods fail the
// test on an error.
type Database struct {
	db       *mongo.Database
	outboxes map[string]*store.Outbox
}

// New recreates the collections of the outboxes and drops the relay's collections.
func New(t *testing.T, db *mongo.Database, outboxes ...store.Outbox) *Database {
	t.Helper()
	d := open(db, outboxes)
	ctx, cancel := bound()
	defer cancel()
	for _, name := range d.collections(ctx, t) {
		must(t, d.db.Collection(name).Drop(ctx))
	}

	for _, o := range outboxes {
		must(t, d.db.CreateCollection(ctx, o.Table))
		if id := o.Layout.Columns.ID; id != "_id" {
			unique := mongo.IndexModel{Keys: bson.D{{Key: id, Value: 1}}, Options: options.Index().SetUnique(true)}
			_, err := d.db.Collection(o.Table).Indexes().CreateOne(ctx, unique)
			must(t, err)
		}
	}

	return d
}

// Reset deletes the documents of the outboxes and of the relay's collections, except the
// version that Install checks. It does not drop collections, because the server keeps the
// files of a dropped one open for minutes.
func Reset(t *testing.T, db *mongo.Database, outboxes ...store.Outbox) *Database {
	t.Helper()
	d := open(db, outboxes)
	ctx, cancel := bound()
	defer cancel()
	for _, name := range d.collections(ctx, t) {
		if name == "sluicebox_meta" {
			continue
		}
		_, err := d.db.Collection(name).DeleteMany(ctx, bson.D{})
		must(t, err)
	}
	return d
}

func open(db *mongo.Database, outboxes []store.Outbox) *Database {
	d := &Database{
		db:       db.Client().Database(db.Name(), options.Database().SetWriteConcern(writeconcern.Majority())),
		outboxes: map[string]*store.Outbox{},
	}
	for _, o := range outboxes {
		d.outboxes[o.Name] = &o
	}
	return d
}

// collections returns the names of the outboxes' collections and of the existing relay
// collections.
func (d *Database) collections(ctx context.Context, t *testing.T) []string {
	t.Helper()
	names, err := d.db.ListCollectionNames(ctx, bson.D{{Key: "name", Value: bson.Regex{Pattern: "^sluicebox_"}}})
	must(t, err)
	for _, o := range d.outboxes {
		names = append(names, o.Table)
	}
	return names
}

func bound() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), callTimeout) // the test may be over
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Schemaless implements storetest.Schemaless.
func (d *Database) Schemaless() {}

// Begin implements storetest.Database. No source captures a document of an open
// transaction.
func (d *Database) Begin(t *testing.T, outbox string, rows ...storetest.Row) (store.Txn, func()) {
	t.Helper()
	o := d.outboxes[outbox]
	docs := make([]bson.D, len(rows))
	for i, r := range rows {
		docs[i] = Document(&o.Layout, r)
	}

	session, err := d.db.Client().StartSession()
	must(t, err)
	must(t, session.StartTransaction(options.Transaction().SetWriteConcern(writeconcern.Majority())))
	ctx, cancel := bound()
	defer cancel()
	_, err = d.db.Collection(o.Table).InsertMany(mongo.NewSessionContext(ctx, session), docs)
	must(t, err)
	done := false
	return 0, func() {
		if done {
			return
		}
		done = true
		ctx, cancel := bound()
		defer cancel()
		err := session.CommitTransaction(ctx)
		session.EndSession(ctx)
		must(t, err)
	}
}

// Document returns a pending row as a program would insert it.
func Document(l *store.Layout, r storetest.Row) bson.D {
	c := &l.Columns
	var doc bson.D
	add := func(name string, value any) {
		if name != "" {
			doc = append(doc, bson.E{Key: name, Value: value})
		}
	}
	add(c.ID, r.ID)
	add(c.Payload, r.Payload)
	add(c.Kind, r.Kind)
	if group := storetest.GroupText(l, r.Group); group.Valid {
		add(c.Group, group.String)
	} else if len(r.ID)%2 == 0 { // programs do either
		add(c.Group, nil)
	}

	add(c.Status, stored(l, store.Pending))
	for _, name := range l.OrderBy {
		add(name, at(l, r.Created))
	}

	return doc
}

// at returns a time in the layout's form.
func at(l *store.Layout, t time.Time) any {
	if l.TextTimes {
		return t.UTC().Format("2006-01-02T15:04:05.000000Z07:00") // fixed length, for sorting
	}
	return t
}

// stored returns the value of a status in the status field.
func stored(l *store.Layout, status store.Status) any {
	switch l.State {
	case store.StateNumbers:
		return l.Numbers[status]
	case store.StateBoolean:
		return status == store.Completed
	}
	return l.Words[status]
}

// Set implements storetest.Database.
func (d *Database) Set(t *testing.T, outbox, id string, status store.Status, when time.Time) {
	t.Helper()
	o := d.outboxes[outbox]
	l, c := &o.Layout, &o.Layout.Columns
	var set bson.D
	assign := func(name string, value any) { set = append(set, bson.E{Key: name, Value: value}) }
	switch {
	case l.State == store.StateNone:
	case l.State != store.StateTimestamps:
		assign(c.Status, stored(l, status))
	case status == store.Completed:
		assign(c.Delivered, at(l, when))
	case status == store.Failed:
		assign(c.Failed, at(l, when))
	case c.Failed != "":
		assign(c.Failed, nil)
	}

	if c.Claimed != "" {
		assign(c.Claimed, at(l, when))
	}
	if set == nil {
		return
	}

	ctx, cancel := bound()
	defer cancel()
	_, err := d.db.Collection(o.Table).UpdateOne(ctx, bson.D{{Key: c.ID, Value: id}}, bson.D{{Key: "$set", Value: set}})
	must(t, err)
}

// Delete implements storetest.Database.
func (d *Database) Delete(t *testing.T, outbox, id string) {
	t.Helper()
	o := d.outboxes[outbox]
	ctx, cancel := bound()
	defer cancel()
	_, err := d.db.Collection(o.Table).DeleteOne(ctx, bson.D{{Key: o.Layout.Columns.ID, Value: id}})
	must(t, err)
}

// SetRefused implements storetest.Database.
func (d *Database) SetRefused(t *testing.T, job string, n int64) {
	t.Helper()
	ctx, cancel := bound()
	defer cancel()
	must(t, SetFields(ctx, d.db, "suite", "job", job, map[string]any{"refused": n}))
}

// SetFields changes fields of a record of a relay.
func SetFields(ctx context.Context, db *mongo.Database, relay, kind, key string, fields map[string]any) error {
	in := db.Collection("sluicebox_record")
	id := bson.D{{Key: "_id", Value: bson.D{{Key: "relay", Value: relay}, {Key: "kind", Value: kind}, {Key: "key", Value: key}}}}
	doc, err := in.FindOne(ctx, id).Raw()
	if err != nil {
		return err
	}
	var body map[string]any
	if err := json.Unmarshal([]byte(doc.Lookup("body").StringValue()), &body); err != nil {
		return err
	}
	maps.Copy(body, fields)
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	_, err = in.UpdateOne(ctx, id, bson.D{
		{Key: "$set", Value: bson.D{{Key: "body", Value: string(text)}}}, {Key: "$inc", Value: bson.D{{Key: "version", Value: 1}}},
	})
	return err
}

// Read implements storetest.Database.
func (d *Database) Read(t *testing.T, outbox, id string) storetest.RowContent {
	t.Helper()
	o := d.outboxes[outbox]
	ctx, cancel := bound()
	defer cancel()
	doc, err := d.db.Collection(o.Table).FindOne(ctx, bson.D{{Key: o.Layout.Columns.ID, Value: id}}).Raw()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return storetest.RowContent{}
	}
	must(t, err)
	return found(t, &o.Layout, doc)
}

// Outbox returns the outbox with the given name.
func (d *Database) Outbox(name string) *store.Outbox { return d.outboxes[name] }

// found returns the content of a document.
func found(t *testing.T, l *store.Layout, doc bson.Raw) storetest.RowContent {
	t.Helper()
	c := &l.Columns
	f := storetest.RowContent{Exists: true, Claimed: when(t, l, doc, c.Claimed), Settled: when(t, l, doc, c.Settled), Delivered: when(t, l, doc, c.Delivered)}
	if n, ok := field(doc, c.RetryCount).AsInt64OK(); ok {
		f.RetryCount = int(n)
	}

	f.Error, _ = field(doc, c.Error).StringValueOK()
	status := field(doc, c.Status)
	switch l.State {
	case store.StateWords:
		f.Status = statusOf(l.Words, status.StringValue())
	case store.StateNumbers:
		n, ok := status.AsInt64OK()
		if !ok {
			t.Fatalf("the status is %s", status)
		}
		f.Code = int(n)
		if f.Status = statusOf(l.Numbers, f.Code); f.Status == 0 {
			f.Status = store.Failed
		}
	case store.StateBoolean, store.StateTimestamps:
		sent, _ := status.BooleanOK()
		switch {
		case sent, l.State == store.StateTimestamps && !f.Delivered.IsZero():
			f.Status = store.Completed
		case !when(t, l, doc, c.Failed).IsZero():
			f.Status = store.Failed
		case !f.Claimed.IsZero():
			f.Status = store.Processing
		default:
			f.Status = store.Pending
		}
	default:
		f.Status = store.Pending
	}
	f.Receipt = receipt(t, l, doc)
	return f
}

// receipt returns the fields for receipts, which must have the type of the receipt.
func receipt(t *testing.T, l *store.Layout, doc bson.Raw) string {
	t.Helper()
	var texts []string
	for i := range l.Record {
		r := &l.Record[i]
		v := field(doc, r.Column)
		text, isText := v.StringValueOK()
		n, isLong := v.Int64OK()
		switch {
		case v.Type == 0 || v.Type == bson.TypeNull:
			text = "~"
		case isLong && r.Max > 0:
			text = strconv.FormatInt(n, 10)
		case !isText || r.Max > 0:
			t.Fatalf("field %s is %s", r.Column, v)
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ",")
}

func statusOf[V comparable](values map[store.Status]V, value V) store.Status {
	for s, v := range values {
		if v == value {
			return s
		}
	}
	return 0
}

// field returns the value of a dotted field name.
func field(doc bson.Raw, name string) bson.RawValue {
	v, err := doc.LookupErr(strings.Split(name, ".")...)
	if name == "" || err != nil {
		return bson.RawValue{}
	}
	return v
}

// when returns the time in a field, which must have the layout's form.
func when(t *testing.T, l *store.Layout, doc bson.Raw, name string) time.Time {
	t.Helper()
	v := field(doc, name)
	if v.Type == 0 || v.Type == bson.TypeNull {
		return time.Time{}
	}

	if !l.TextTimes {
		at, ok := v.TimeOK()
		if !ok {
			t.Fatalf("field %s is %s, no date", name, v)
		}
		return at.UTC()
	}

	at, err := time.Parse(time.RFC3339Nano, v.StringValue())
	if err != nil {
		t.Fatal(err)
	}

	return at.UTC()
}
