package mongo

import (
	"context"
	"iter"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/lanekinds"
	"github.com/sluicebox/sluicebox/store/ledger"
)

const (
	// maxSpillRows bounds the rows that one transaction spills or deletes, so that claims
	// and outcomes do not wait long for it.
	maxSpillRows = 2000
	// maxSpillBytes bounds the texts and payloads of such a transaction.
	maxSpillBytes = 16 << 20
	// maxQueuedContent bounds the payload and the attributes stored with a row: a document is
	// limited to 16 MiB, and JSON may be longer than BSON. A claim reads content above the
	// limit from the collection again.
	maxQueuedContent = 15 << 20
	// keyBatchSize is how many keys the server returns per batch.
	keyBatchSize = 50_000
)

// The indices of sluicebox_queue besides that of the _id. Queries name theirs, because the
// fields of both begin alike.
const (
	laneIndex = "lane" // the rows of a lane, and the lanes
	rowIndex  = "id"   // whether a row is spilled
)

// queueKey is the _id of a row in a queue. The _id index finds a row by its number, and
// orders the rows of a queue.
type queueKey struct {
	Relay  string `bson:"relay"`
	Queue  string `bson:"queue"`
	N      int64  `bson:"n"`
	Outbox string `bson:"outbox"`
}

// queueDocument is a row in sluicebox_queue.
type queueDocument struct {
	Key         queueKey       `bson:"_id"`
	Lane        bson.Binary    `bson:"lane"`
	ID          string         `bson:"id"`
	Kind        string         `bson:"kind"`
	Group       *string        `bson:"group"`
	RetryCount  int64          `bson:"retryCount"`
	PayloadSize int64          `bson:"payloadSize"`
	Committed   *bson.DateTime `bson:"committedAt"`
	Payload     *bson.Binary   `bson:"payload"` // empty differs from missing
	Attributes  string         `bson:"attributes,omitempty"`
}

func laneValue(lane store.LaneHash) bson.Binary { return bson.Binary{Data: lane[:]} }

func (d *queueDocument) lane() (hash store.LaneHash) {
	copy(hash[:], d.Lane.Data)
	return hash
}

// queued returns the document of a row.
func queued(key queueKey, it *store.Item, lane store.LaneHash) queueDocument {
	d := queueDocument{
		Key: key, Lane: laneValue(lane), ID: it.ID, Kind: it.Kind, RetryCount: int64(it.RetryCount), PayloadSize: int64(it.PayloadSize),
	}
	if it.Group.Valid {
		d.Group = &it.Group.Name
	}
	if !it.Committed.IsZero() {
		at := bson.NewDateTimeFromTime(it.Committed)
		d.Committed = &at
	}
	if attributes := ledger.EncodeAttributes(it.Attributes); it.Payload != nil && len(it.Payload)+len(attributes) <= maxQueuedContent {
		d.Payload, d.Attributes = &bson.Binary{Data: it.Payload}, string(attributes)
	}
	return d
}

// item returns the row as it was enqueued.
func (d *queueDocument) item() (it store.Item, err error) {
	it = store.Item{
		Ref: store.Ref{Outbox: d.Key.Outbox, ID: d.ID}, Kind: d.Kind, RetryCount: int(d.RetryCount),
		PayloadSize: int(d.PayloadSize), Seq: store.Seq(d.Key.N),
	}
	if d.Group != nil {
		it.Group = store.GroupOf(*d.Group)
	}
	if d.Committed != nil {
		it.Committed = d.Committed.Time().UTC()
	}
	if d.Payload != nil {
		it.Payload = d.Payload.Data
	}
	if d.Attributes != "" {
		it.Attributes, err = ledger.DecodeAttributes([]byte(d.Attributes))
	}
	return it, err
}

// rows yields the matching rows of queues.
func (r *reader) rows(ctx context.Context, filter bson.D, opts *options.FindOptionsBuilder) iter.Seq2[*queueDocument, error] {
	return decoded[queueDocument](ownQueue, r.docs(ctx, ownQueue, filter, opts))
}

// outboxFilter is the filter for the rows of an outbox, by the fields that begin the indices.
func (r *reader) outboxFilter(queue, outbox string) bson.D {
	return bson.D{{Key: "_id.relay", Value: r.relay}, {Key: "_id.queue", Value: queue}, {Key: "_id.outbox", Value: outbox}}
}

// laneFilter is the filter for the rows of a lane by their numbers.
func (r *reader) laneFilter(queue, outbox string, lane store.LaneHash, n bson.D) bson.D {
	return append(r.outboxFilter(queue, outbox), bson.E{Key: "lane", Value: laneValue(lane)}, bson.E{Key: "_id.n", Value: n})
}

// Range implements ledger.QueueReader.
func (r *reader) Range(ctx context.Context, queue string, from []store.SpilledRange, each int) ([][]store.Item, error) {
	lists := make([][]store.Item, len(from))
	opts := options.Find().SetSort(bson.D{{Key: "_id.n", Value: 1}}).SetLimit(int64(each)).SetHint(laneIndex)
	for i := range from {
		f := &from[i]
		filter := r.laneFilter(queue, f.Outbox, f.Lane, bson.D{{Key: "$gt", Value: int64(f.After)}})
		for d, err := range r.rows(ctx, filter, opts) {
			if err != nil {
				return nil, err
			}
			it, err := d.item()
			if err != nil {
				return nil, err
			}
			lists[i] = append(lists[i], it)
		}
	}
	return lists, nil
}

// scanFilter is the filter of a scan, by the _id index.
func (r *reader) scanFilter(q *ledger.Scan) bson.D {
	key := func(n any, outbox ...bson.E) bson.D {
		return append(bson.D{{Key: "relay", Value: r.relay}, {Key: "queue", Value: q.Queue}, {Key: "n", Value: n}}, outbox...)
	}
	after := key(q.After, bson.E{Key: "outbox", Value: bson.MaxKey{}})
	filter := bson.D{{Key: "_id", Value: bson.D{{Key: "$gt", Value: after}, {Key: "$lt", Value: key(bson.MaxKey{})}}}}
	if q.Outboxes != nil {
		filter = append(filter, bson.E{Key: "_id.outbox", Value: bson.D{{Key: "$in", Value: q.Outboxes}}})
	}
	return filter
}

// Scan implements ledger.QueueReader. To find heads, it walks the rows by number and checks
// for each new lane whether it has earlier rows.
func (r *reader) Scan(ctx context.Context, q ledger.Scan) (rows []store.Item, err error) {
	opts := options.Find().SetSort(byID()).SetProjection(bson.D{{Key: "payload", Value: 0}, {Key: "attributes", Value: 0}})
	if !q.Heads {
		opts.SetLimit(int64(q.Limit))
	}
	known := map[string]bool{} // lanes
	for doc, err := range r.docs(ctx, ownQueue, r.scanFilter(&q), opts) {
		if err != nil {
			return nil, err
		}
		if q.Heads { // most rows are none, and are not decoded
			_, hash := doc.Lookup("lane").Binary()
			lane := string(hash) + doc.Lookup("_id", "outbox").StringValue()
			if known[lane] {
				continue
			}
			known[lane] = true
		}
		var d queueDocument
		if err := decode(ownQueue, doc, &d); err != nil {
			return nil, err
		}
		if q.Heads {
			began, err := r.laneBegan(ctx, &d, q.After)
			if err != nil {
				return nil, err
			}
			if began {
				continue
			}
		}
		it, err := d.item()
		if err != nil {
			return nil, err
		}
		if rows = append(rows, it); len(rows) == q.Limit {
			break
		}
	}
	return rows, nil
}

// laneBegan reports whether the row's lane also has rows up to n.
func (r *reader) laneBegan(ctx context.Context, d *queueDocument, n int64) (began bool, err error) {
	if n <= 0 {
		return false, nil
	}
	opts := options.Find().SetLimit(1).SetProjection(byID()).SetHint(laneIndex)
	filter := r.laneFilter(d.Key.Queue, d.Key.Outbox, d.lane(), bson.D{{Key: "$lte", Value: n}})
	for _, err := range r.docs(ctx, ownQueue, filter, opts) {
		return err == nil, err
	}
	return false, nil
}

// Lanes implements ledger.QueueReader. It reads only the index, besides one document for
// each kind. Grouping on the server would read every document.
func (r *reader) Lanes(ctx context.Context, queue, outbox string, take func(store.SpilledLane)) error {
	ctx, cancel := context.WithTimeout(ctx, viewTimeout)
	defer cancel()
	byLane := bson.D{{Key: "lane", Value: 1}, {Key: "_id.n", Value: 1}}
	kinds, err := lanekinds.FindKinds(func(after store.LaneHash) (lane store.LaneHash, kind string, found bool, err error) {
		filter := append(r.outboxFilter(queue, outbox), bson.E{Key: "lane", Value: bson.D{{Key: "$gt", Value: laneValue(after)}}})
		opts := options.Find().SetSort(byLane).SetLimit(1).SetProjection(project("lane", "kind")).SetHint(laneIndex)
		for d, err := range r.rows(ctx, filter, opts) {
			return d.lane(), d.Kind, err == nil, err
		}
		return lane, "", false, nil
	})
	if err != nil {
		return err
	}

	l := store.SpilledLane{Outbox: outbox}
	opts := options.Find().SetSort(byLane).SetProjection(project("lane")).SetBatchSize(keyBatchSize).SetHint(laneIndex)
	for doc, err := range r.docs(ctx, ownQueue, r.outboxFilter(queue, outbox), opts) {
		if err != nil {
			return err
		}
		_, hash := doc.Lookup("lane").Binary()
		if l.Rows > 0 && string(hash) != string(l.Hash[:]) {
			take(l)
			l.Rows = 0
		}
		copy(l.Hash[:], hash)
		l.Kind = kinds[l.Hash.Kind()]
		l.Rows++
	}
	if l.Rows > 0 {
		take(l)
	}
	return nil
}

// queueKey returns the _id of a row.
func (t *writeTx) queueKey(queue, outbox string, n int64) queueKey {
	return queueKey{t.relay, queue, n, outbox}
}

// rowsOf reads rows by their _ids, with some of their fields.
func (t *writeTx) rowsOf(ctx context.Context, keys []queueKey, fields ...string) (map[queueKey]*queueDocument, error) {
	found := map[queueKey]*queueDocument{}
	if len(keys) == 0 {
		return found, nil
	}
	opts := options.Find().SetProjection(project(append(fields, "_id", "id", "lane")...))
	for d, err := range t.rows(ctx, withIDs(keys), opts) {
		if err != nil {
			return nil, err
		}
		found[d.Key] = d
	}
	return found, nil
}

// Enqueue implements ledger.Writer. It reads the rows in the queue first, because a duplicate
// key aborts the transaction. Commit times are truncated to milliseconds. It stores no Txn,
// because the log shows no document that a claim might not see.
func (t *writeTx) Enqueue(ctx context.Context, queue string, rows []store.Item) (int, error) {
	keys := make([]queueKey, len(rows))
	for i := range rows {
		keys[i] = t.queueKey(queue, rows[i].Outbox, int64(rows[i].Seq))
	}
	known, err := t.rowsOf(ctx, keys)
	if err != nil {
		return 0, err
	}

	var docs []queueDocument
	for i := range rows {
		it, lane := &rows[i], rows[i].Lane().Hash()
		is, exists := known[keys[i]]
		switch {
		case !exists:
			doc := queued(keys[i], it, lane)
			known[keys[i]] = &doc // the call may contain it twice
			docs = append(docs, doc)
		case is.ID != it.ID || is.lane() != lane:
			return 0, ledger.NumberTaken(it)
		}
	}
	if len(docs) == 0 {
		return 0, nil
	}

	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	_, err = t.conn.ownCollection(ownQueue).InsertMany(ctx, docs)
	return len(docs), err
}

// Dequeue implements ledger.Writer.
func (t *writeTx) Dequeue(ctx context.Context, queue string, refs []ledger.Ref, removed func(int, *store.Item)) (int, error) {
	keys := make([]queueKey, len(refs))
	for i := range refs {
		keys[i] = t.queueKey(queue, refs[i].Outbox, refs[i].N)
	}
	var fields []string
	if removed != nil {
		fields = []string{"kind", "group"}
	}
	found, err := t.rowsOf(ctx, keys, fields...)
	if err != nil {
		return 0, err
	}

	var gone []queueKey
	for i := range refs {
		ref, row := &refs[i], found[keys[i]]
		if row == nil || ref.Lane == (store.LaneHash{}) && row.ID != ref.ID || ref.Lane != (store.LaneHash{}) && row.lane() != ref.Lane {
			continue
		}
		delete(found, keys[i])
		gone = append(gone, keys[i])
		if removed != nil {
			it, err := row.item()
			if err != nil {
				return 0, err
			}
			removed(i, &it)
		}
	}
	return len(gone), t.removeRows(ctx, gone)
}

func (t *writeTx) removeRows(ctx context.Context, keys []queueKey) error {
	if len(keys) == 0 {
		return nil
	}
	_, err := remove(ctx, t.conn.ownCollection(ownQueue), withIDs(keys))
	return err
}

// Clear implements ledger.Writer. The index has the numbers and outboxes of the rows.
func (t *writeTx) Clear(ctx context.Context, q ledger.Scan) (n int, last int64, err error) {
	var gone []queueKey
	opts := options.Find().SetSort(byID()).SetLimit(int64(q.Limit)).SetProjection(byID())
	for d, err := range t.rows(ctx, t.scanFilter(&q), opts) {
		if err != nil {
			return 0, 0, err
		}
		gone, last = append(gone, d.Key), d.Key.N
	}
	return len(gone), last, t.removeRows(ctx, gone)
}
