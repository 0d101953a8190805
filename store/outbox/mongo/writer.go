package mongo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/sluicebox/sluicebox/store"
	relay "github.com/sluicebox/sluicebox/store/mongo"
	"github.com/sluicebox/sluicebox/store/mongo/document"
	"github.com/sluicebox/sluicebox/store/outbox"
	"github.com/sluicebox/sluicebox/store/outbox/internal/batch"
)

// Writer implements outbox.Writer. A row is on disk on a majority of the members when Write
// returns. Rows of one call are no transaction: some may be read before the others.
type Writer struct {
	url, application string
	clock            batch.Clock

	mu     sync.Mutex
	db     *mongo.Database // nil until the first call
	closed bool
}

// NewWriter returns a writer for the database of a URL; see ParseURL of store/mongo. It opens no
// connection. application names its sessions on the server.
func NewWriter(url, application string) (outbox.Writer, error) {
	if err := relay.ValidateURL(url); err != nil {
		return nil, err
	}
	return &Writer{url: url, application: application}, nil
}

// Write implements outbox.Writer.
func (w *Writer) Write(ctx context.Context, of *store.Outbox, rows []outbox.Row) ([]outbox.Written, error) {
	o, err := batch.Prepare(of)
	if err != nil {
		return nil, err
	}
	all, err := w.write(ctx, of, o, rows)
	if err != nil {
		return nil, fmt.Errorf("write into outbox %s: %w", of.Name, relay.Explain(err))
	}
	return all, nil
}

func (w *Writer) write(ctx context.Context, of *store.Outbox, o *outbox.Outbox, rows []outbox.Row) ([]outbox.Written, error) {
	db, err := w.database()
	if err != nil {
		return nil, err
	}
	in := collection(db, of)
	return batch.Write(ctx, o, &w.clock, rows, func(ctx context.Context, rows []batch.Row) ([]outbox.Written, error) {
		return write(ctx, in, o, rows)
	})
}

// database returns the database, with a client that it makes once.
func (w *Writer) database() (*mongo.Database, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, errors.New("writer closed")
	}
	if w.db == nil {
		opts, name, err := relay.ParseURL(w.url, w.application)
		if err != nil {
			return nil, err
		}
		majority, onDisk := writeconcern.Majority(), true
		majority.Journal = &onDisk
		client, err := mongo.Connect(opts.SetWriteConcern(majority).SetRetryWrites(true))
		if err != nil {
			return nil, err
		}
		w.db = client.Database(name)
	}
	return w.db, nil
}

// Close implements outbox.Writer.
func (w *Writer) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed = true; w.db != nil {
		ctx, cancel := context.WithTimeout(context.Background(), store.CloseTimeout)
		defer cancel()
		_ = w.db.Client().Disconnect(ctx) // what is acknowledged stays
		w.db = nil
	}
}

// maxAttempts bounds how often a document is inserted that was there and is gone.
const maxAttempts = 3

// write inserts the documents of rows, and compares those that are there.
func write(ctx context.Context, in *mongo.Collection, o *outbox.Outbox, rows []batch.Row) ([]outbox.Written, error) {
	all, docs := make([]outbox.Written, len(rows)), make([]bson.Raw, len(rows))
	var todo []int
	for i := range rows {
		if docs[i], all[i].Err = encode(o, rows[i].Fields); all[i].Err == nil {
			all[i].Created = createdOf(o, docs[i])
			todo = append(todo, i)
		}
	}
	for range maxAttempts {
		there, err := insert(ctx, in, docs, todo, all)
		if err != nil || len(there) == 0 {
			return all, err
		}
		if todo, err = compare(ctx, in, o, docs, there, all); err != nil {
			return nil, err
		}
	}
	for _, i := range todo {
		if all[i].Err == nil {
			all[i].Err = &outbox.RowError{Key: "id", Problem: "another program writes and deletes it at the same time", Remedy: "write it again"}
		}
	}
	return all, nil
}

// insert inserts the documents at some indexes, and returns those that are there. The server waits
// for the majority also for them.
func insert(ctx context.Context, in *mongo.Collection, docs []bson.Raw, at []int, all []outbox.Written) (there []int, err error) {
	if len(at) == 0 {
		return nil, nil
	}
	some := make([]bson.Raw, len(at))
	for k, i := range at {
		some[k] = docs[i]
	}
	_, err = in.InsertMany(ctx, some, options.InsertMany().SetOrdered(false))
	var failed mongo.BulkWriteException
	if !errors.As(err, &failed) || failed.WriteConcernError != nil {
		return nil, err
	}
	for _, e := range failed.WriteErrors {
		if i := at[e.Index]; mongo.IsDuplicateKeyError(e.WriteError) {
			all[i].Err = &outbox.RowError{Problem: e.Message, Remedy: "give the row another value", Err: e.WriteError}
			there = append(there, i)
		} else {
			all[i].Err = &outbox.RowError{Problem: e.Message, Remedy: "send a document that the collection takes", Err: e.WriteError}
		}
	}
	return there, nil
}

// compare compares documents with those of their ids. It returns the indexes of those that are
// gone; such a row may also be a duplicate of another unique index, whose error it keeps.
func compare(ctx context.Context, in *mongo.Collection, o *outbox.Outbox, docs []bson.Raw, at []int, all []outbox.Written) (gone []int, err error) {
	idField := o.Outbox().Layout.Columns.ID
	keys := make(bson.A, len(at))
	for k, i := range at {
		keys[k] = document.Lookup(docs[i], idField)
	}
	cursor, err := in.Find(ctx, bson.D{{Key: idField, Value: bson.D{{Key: "$in", Value: keys}}}})
	if err != nil {
		return nil, err
	}
	var found []bson.Raw
	if err := cursor.All(ctx, &found); err != nil {
		return nil, err
	}
	for _, i := range at {
		id := document.Lookup(docs[i], idField)
		k := slices.IndexFunc(found, func(doc bson.Raw) bool { return document.Lookup(doc, idField).Equal(id) })
		if k < 0 {
			gone = append(gone, i)
			continue
		}
		same := sameContent(&o.Outbox().Layout, docs[i], found[k])
		all[i] = outbox.Written{Created: createdOf(o, found[k]), Repeated: same, Conflict: !same}
	}
	return gone, nil
}

// sameContent compares the values of two documents, with their types. NULL is no value.
func sameContent(l *store.Layout, a, b bson.Raw) bool {
	for _, name := range append(outbox.ContentColumns(l), l.Columns.Payload) {
		x, y := document.Lookup(a, name), document.Lookup(b, name)
		if absent := document.Absent(x) && document.Absent(y); !absent && !x.Equal(y) {
			return false
		}
	}
	return true
}

// createdOf returns the time of a document, zero if there is none.
func createdOf(o *outbox.Outbox, doc bson.Raw) time.Time {
	names := outbox.TimeColumns(&o.Outbox().Layout)
	if len(names) == 0 {
		return time.Time{}
	}
	v := document.Lookup(doc, names[0])
	if at, ok := v.TimeOK(); ok {
		return at.UTC()
	}
	text, _ := v.StringValueOK()
	return outbox.ParseCreated(strings.TrimSpace(text))
}
