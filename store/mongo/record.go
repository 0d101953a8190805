package mongo

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
)

// recordKey is the _id of a record.
type recordKey struct {
	Relay string `bson:"relay"`
	Kind  string `bson:"kind"`
	Key   string `bson:"key"`
}

// recordDocument is a record in sluicebox_record. Its body is JSON text.
type recordDocument struct {
	Key     recordKey `bson:"_id"`
	Body    string    `bson:"body"`
	Version int64     `bson:"version"`

	epoch store.Epoch // of the leader that wrote it, if this store did
}

// reader implements ledger.Reader in a session.
type reader struct {
	conn  *conn
	relay string

	readsRecords, foundRecords bool            // whether records were read, and whether there were any
	since                      *bson.Timestamp // a snapshot must include this time; nil once it is known to
}

// docs yields the matching documents of a collection. It fails with errOldSnapshot before the
// first if the snapshot is too old.
func (r *reader) docs(ctx context.Context, name string, filter bson.D, opts *options.FindOptionsBuilder) iter.Seq2[bson.Raw, error] {
	return func(yield func(bson.Raw, error) bool) {
		r.readsRecords = r.readsRecords || name == ownRecord
		for doc, err := range find(ctx, commandTimeout, r.conn.ownCollection(name), filter, opts) {
			if err == nil {
				err = r.checkSnapshot(ctx)
			}
			r.foundRecords = r.foundRecords || err == nil && name == ownRecord
			if !yield(doc, err) || err != nil {
				return
			}
		}
		if err := r.checkSnapshot(ctx); err != nil {
			yield(nil, err)
		}
	}
}

// decoded decodes the documents of a collection.
func decoded[T any](name string, docs iter.Seq2[bson.Raw, error]) iter.Seq2[*T, error] {
	return func(yield func(*T, error) bool) {
		for doc, err := range docs {
			d := new(T)
			if err == nil {
				err = decode(name, doc, d)
			}
			if !yield(d, err) || err != nil {
				return
			}
		}
	}
}

// decode decodes a document of one of the relay's collections.
func decode(name string, doc bson.Raw, into any) error {
	if err := bson.Unmarshal(doc, into); err != nil {
		return fmt.Errorf("in %s: %w", name, err)
	}
	return nil
}

// checkSnapshot returns errOldSnapshot if the session's snapshot is too old.
func (r *reader) checkSnapshot(ctx context.Context) error {
	if r.since == nil {
		return nil
	}
	if mongo.SessionFromContext(ctx).SnapshotTime().Before(*r.since) {
		return errOldSnapshot
	}
	r.since = nil
	return nil
}

// Get implements ledger.RecordReader.
func (r *reader) Get(ctx context.Context, kind string, keys ...string) ([][]byte, error) {
	docs, err := r.read(ctx, kind, keys)
	return bodies(docs), err
}

// read returns records by position, nil for those that do not exist.
func (r *reader) read(ctx context.Context, kind string, keys []string) ([]*recordDocument, error) {
	docs := make([]*recordDocument, len(keys))
	if len(keys) == 0 {
		return docs, nil
	}

	found := map[string]*recordDocument{}
	for d, err := range r.records(ctx, withIDs(r.keys(kind, keys)), options.Find()) {
		if err != nil {
			return nil, err
		}
		found[d.Key.Key] = d
	}
	for i, key := range keys {
		docs[i] = found[key]
	}
	return docs, nil
}

// keys returns the _ids of records.
func (r *reader) keys(kind string, keys []string) []recordKey {
	ids := make([]recordKey, len(keys))
	for i, key := range keys {
		ids[i] = recordKey{r.relay, kind, key}
	}
	return ids
}

// withIDs is the filter for documents with one of the _ids.
func withIDs[K any](ids []K) bson.D {
	return bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}
}

func bodies(docs []*recordDocument) [][]byte {
	list := make([][]byte, len(docs))
	for i, d := range docs {
		if d != nil {
			list[i] = []byte(d.Body)
		}
	}
	return list
}

// records yields the matching records.
func (r *reader) records(ctx context.Context, filter bson.D, opts *options.FindOptionsBuilder) iter.Seq2[*recordDocument, error] {
	return decoded[recordDocument](ownRecord, r.docs(ctx, ownRecord, filter, opts))
}

// List implements ledger.RecordReader.
func (r *reader) List(ctx context.Context, kind, prefix string, limit int, take func(ledger.Record) error) error {
	ctx, cancel := context.WithTimeout(ctx, viewTimeout)
	defer cancel()
	filter := bson.D{{Key: "_id", Value: bson.D{
		{Key: "$gte", Value: recordKey{r.relay, kind, prefix}}, {Key: "$lt", Value: recordKey{r.relay, kind, prefix + ledger.AfterKeys}},
	}}}
	opts := options.Find().SetSort(byID()).SetLimit(int64(limit))
	for d, err := range r.records(ctx, filter, opts) {
		if err == nil {
			err = take(ledger.Record{Key: d.Key.Key, Body: []byte(d.Body)})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// byID is the order of the _id index, and a projection of it.
func byID() bson.D { return bson.D{{Key: "_id", Value: 1}} }

// errRecordChanged says that a record is not the one that this store wrote last.
var errRecordChanged = errors.New("record changed after this store wrote it")

// writeTx implements ledger.Tx in a transaction. It sends records when the next call reads
// some, or at the end, because each command is a round trip.
type writeTx struct {
	reader
	puts []mongo.WriteModel // not sent yet

	// A replay locks and writes the same record with every batch. So the transaction does not
	// read the record that the last one locked and wrote. It compares the version when it
	// writes the record, and fails with errRecordChanged if another process has changed it.
	last        *atomic.Pointer[recordDocument] // this record; nil to read every record
	locked      *recordDocument                 // the first record that do locked alone
	assumed     bool                            // locked was not read, and its version not compared yet
	wroteLocked bool
}

// tx returns a transaction on the session of the context in which it is used.
func (s *Store) tx(on *conn) *writeTx {
	return &writeTx{reader: reader{conn: on, relay: s.name}}
}

// run runs do and sends its records.
func (t *writeTx) run(ctx context.Context, do func(context.Context, ledger.Tx) error) error {
	if err := do(ctx, t); err != nil {
		return err
	}
	if err := t.flush(ctx); err != nil {
		return err
	}
	if t.assumed {
		return errRecordChanged // do may have left it unchanged because of its content
	}
	return nil
}

// countRequest counts a request and returns its number.
func (t *writeTx) countRequest(ctx context.Context) (int64, error) {
	var d recordDocument
	err := modify(ctx, t.conn.ownCollection(ownRecord), withID(requestsKey(t.relay)), putUpdate("{}"), true, &d)
	return d.Version, err
}

// requestsKey is the _id of the record that counts a relay's requests.
func requestsKey(relay string) recordKey {
	return recordKey{relay, ledger.RelayKind, ledger.Requests}
}

// putUpdate is the update that writes a record.
func putUpdate(body string) bson.D {
	return bson.D{{Key: "$set", Value: bson.D{{Key: "body", Value: body}}}, {Key: "$inc", Value: bson.D{{Key: "version", Value: int64(1)}}}}
}

// Now implements ledger.Tx.
func (t *writeTx) Now(ctx context.Context) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	opts := options.FindOne().SetProjection(bson.D{{Key: "_id", Value: 0}, {Key: nowField, Value: "$$NOW"}})
	d, err := t.conn.ownCollection(ownMeta).FindOne(ctx, withID(versionID), opts).Raw()
	if err != nil {
		return time.Time{}, err
	}
	return d.Lookup(nowField).Time().UTC(), nil
}

// Get implements ledger.RecordReader.
func (t *writeTx) Get(ctx context.Context, kind string, keys ...string) ([][]byte, error) {
	if err := t.flush(ctx); err != nil {
		return nil, err
	}
	return t.reader.Get(ctx, kind, keys...)
}

// List implements ledger.RecordReader.
func (t *writeTx) List(ctx context.Context, kind, prefix string, limit int, take func(ledger.Record) error) error {
	if err := t.flush(ctx); err != nil {
		return err
	}
	return t.reader.List(ctx, kind, prefix, limit, take)
}

// Lock implements ledger.Tx. The server has no lock of a document that is only read. A
// transaction that writes a record conflicts with every other that has written it since the
// first one's snapshot, and one of the two runs again. Transactions of the leader never
// overlap, nor do requests.
func (t *writeTx) Lock(ctx context.Context, kind string, keys ...string) ([][]byte, error) {
	alone := len(keys) == 1 && t.locked == nil
	if alone && t.last != nil {
		if d := t.last.Load(); d != nil && d.Key == (recordKey{t.relay, kind, keys[0]}) {
			t.last.Store(nil) // another attempt reads it
			t.locked, t.assumed = d, true
			return bodies([]*recordDocument{d}), nil
		}
	}
	if err := t.flush(ctx); err != nil {
		return nil, err
	}
	docs, err := t.read(ctx, kind, keys)
	if alone && err == nil {
		t.locked = docs[0]
	}
	return bodies(docs), err
}

// Put implements ledger.Writer.
func (t *writeTx) Put(_ context.Context, kind string, records ...ledger.Record) error {
	for _, rec := range records {
		key, body := recordKey{t.relay, kind, rec.Key}, string(rec.Body)
		filter := withID(key)
		put := mongo.NewUpdateOneModel().SetUpdate(putUpdate(body)).SetUpsert(true)
		if l := t.locked; l != nil && l.Key == key {
			if t.assumed {
				filter = append(filter, bson.E{Key: "version", Value: l.Version})
				put.SetUpsert(false)
			}
			t.locked, t.assumed, t.wroteLocked = &recordDocument{Key: key, Body: body, Version: l.Version + 1}, false, true
		}
		t.puts = append(t.puts, put.SetFilter(filter))
	}
	return nil
}

// flush sends the records that were put.
func (t *writeTx) flush(ctx context.Context) error {
	if len(t.puts) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	done, err := t.conn.ownCollection(ownRecord).BulkWrite(ctx, t.puts, options.BulkWrite().SetOrdered(true))
	if err == nil && done.MatchedCount+done.UpsertedCount < int64(len(t.puts)) {
		return errRecordChanged
	}
	t.puts = nil
	return err
}

// Delete implements ledger.Writer.
func (t *writeTx) Delete(ctx context.Context, kind string, keys ...string) error {
	if len(keys) == 0 {
		return nil
	}
	if err := t.flush(ctx); err != nil {
		return err
	}
	t.wroteLocked = false
	_, err := remove(ctx, t.conn.ownCollection(ownRecord), withIDs(t.keys(kind, keys)))
	return err
}
