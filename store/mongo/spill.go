package mongo

import (
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/lanekinds"
)

const (
	// maxSpillRows bounds the rows that one transaction spills or deletes, so that claims
	// and outcomes do not wait long for it.
	maxSpillRows = 2000
	// maxSpillBytes bounds the payload bytes of such a transaction.
	maxSpillBytes = 16 << 20
)

// spilledKey is the _id of a spilled row. A lane is a range of the _id index.
type spilledKey struct {
	Relay  string      `bson:"relay"`
	Outbox string      `bson:"outbox"`
	Lane   bson.Binary `bson:"lane"`
	Seq    int64       `bson:"seq"`
}

// spilledDocument is a row in sluicebox_parked.
type spilledDocument struct {
	Key         spilledKey     `bson:"_id"`
	ID          string         `bson:"id"`
	Kind        string         `bson:"kind"`
	Group       *string        `bson:"group"`
	RetryCount  int64          `bson:"retryCount"`
	PayloadSize int64          `bson:"payloadSize"`
	Committed   *bson.DateTime `bson:"committedAt"`
	Payload     *bson.Binary   `bson:"payload"` // empty differs from missing
}

// Spill implements store.Spiller, in transactions of bounded size. Commit times are
// truncated to milliseconds.
func (s *Store) Spill(ctx context.Context, epoch store.Epoch, items []store.Item) error {
	for i := range items {
		if err := s.validateSpill(&items[i]); err != nil {
			return fmt.Errorf("spill rows: %w", err)
		}
	}

	for len(items) > 0 {
		n, size := 0, 0
		for n < min(len(items), maxSpillRows) {
			if size += len(s.spilledPayload(&items[n])); n > 0 && size > maxSpillBytes {
				break
			}
			n++
		}
		some := items[:n]
		items = items[n:]
		if err := s.runAsLeader(ctx, epoch, func(ctx context.Context, on *conn) error { return s.spillRows(ctx, on, some) }); err != nil {
			return fmt.Errorf("spill rows: %w", asOwnRefused(err))
		}
	}

	return nil
}

// validateSpill returns an error if a row cannot be spilled.
func (s *Store) validateSpill(it *store.Item) error {
	if _, err := s.outboxes.Find(it.Outbox); err != nil {
		return err
	}
	if it.Seq == 0 {
		return fmt.Errorf("row %q of outbox %s has no seq", it.ID, it.Outbox)
	}
	return nil
}

// maxSpilledPayload bounds a payload stored with its spilled row: a document is limited to
// 16 MiB, and JSON may be longer than BSON.
const maxSpilledPayload = 15 << 20

// spilledPayload returns the payload to store with a spilled row, or nil. A claim reads a
// payload above the limit from the collection again.
func (s *Store) spilledPayload(it *store.Item) []byte {
	if s.outboxes.Lookup(it.Outbox).Layout.State == store.StateNone && len(it.Payload) <= maxSpilledPayload {
		return it.Payload
	}
	return nil
}

// spillRows inserts the rows that are not spilled yet, in the call's transaction.
func (s *Store) spillRows(ctx context.Context, on *conn, items []store.Item) error {
	in, keys := on.ownCollection(ownSpilled), make([]spilledKey, len(items))
	for i := range items {
		keys[i] = spilledKey{s.name, items[i].Outbox, hashOf(items[i].Lane().Hash()), int64(items[i].Seq)}
	}

	existing := map[string]bool{}
	filter := bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: keys}}}}
	err := forEach(ctx, commandTimeout, in, filter, options.Find().SetProjection(project("_id")), func(doc bson.Raw) error {
		existing[string(doc.Lookup("_id").Value)] = true
		return nil
	})
	if err != nil {
		return err
	}

	var docs []spilledDocument
	for i := range items {
		key, err := bson.Marshal(keys[i])
		if err != nil {
			return err
		}
		if !existing[string(key)] {
			existing[string(key)] = true // the call may contain it twice
			docs = append(docs, s.spilledKeyOf(keys[i], &items[i]))
		}
	}

	if len(docs) == 0 {
		return nil
	}

	bound, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	_, err = in.InsertMany(bound, docs)
	return err
}

func (s *Store) spilledKeyOf(key spilledKey, it *store.Item) spilledDocument {
	d := spilledDocument{
		Key: key, ID: it.ID, Kind: it.Kind, Group: groupText(it.Group), RetryCount: int64(it.RetryCount), PayloadSize: int64(it.PayloadSize),
	}
	d.Committed = timeOrNull(it.Committed)
	if payload := s.spilledPayload(it); payload != nil {
		d.Payload = &bson.Binary{Data: payload}
	}
	return d
}

// item returns the row as it was spilled.
func (d *spilledDocument) item() store.Item {
	it := store.Item{
		Ref: store.Ref{Outbox: d.Key.Outbox, ID: d.ID}, Kind: d.Kind, Group: groupOf(d.Group),
		RetryCount: int(d.RetryCount), PayloadSize: int(d.PayloadSize), Seq: store.Seq(d.Key.Seq),
	}
	it.Committed = timeOrZero(d.Committed)
	if d.Payload != nil {
		it.Payload = append([]byte{}, d.Payload.Data...)
	}
	return it
}

// DeleteSpilled implements store.Spiller, in transactions of bounded size.
func (s *Store) DeleteSpilled(ctx context.Context, epoch store.Epoch, rows []store.SpilledRef) error {
	for i := range rows {
		if _, err := s.outboxes.Find(rows[i].Outbox); err != nil {
			return fmt.Errorf("delete spilled rows: %w", err)
		}
	}
	for some := range slices.Chunk(rows, maxSpillRows) {
		if err := s.runAsLeader(ctx, epoch, func(ctx context.Context, on *conn) error { return s.deleteSpilledRows(ctx, on, some) }); err != nil {
			return fmt.Errorf("delete spilled rows: %w", asOwnRefused(err))
		}
	}
	return nil
}

// deleteSpilledRows deletes spilled rows, in the call's transaction. It finds them by seq
// and checks the id, so that a different row under the same seq is kept.
func (s *Store) deleteSpilledRows(ctx context.Context, on *conn, rows []store.SpilledRef) error {
	seqs, wanted := map[string][]int64{}, make(map[store.SpilledRef]bool, len(rows))
	for _, row := range rows {
		seqs[row.Outbox] = append(seqs[row.Outbox], int64(row.Seq))
		wanted[row] = true
	}

	in := on.ownCollection(ownSpilled)
	var keys []bson.RawValue
	for outbox, list := range seqs {
		filter := bson.D{{Key: "_id.relay", Value: s.name}, {Key: "_id.outbox", Value: outbox}, {Key: "_id.seq", Value: bson.D{{Key: "$in", Value: list}}}}
		err := forEach(ctx, commandTimeout, in, filter, options.Find().SetProjection(project("_id", "id")), func(doc bson.Raw) error {
			seq, _ := doc.Lookup("_id", "seq").AsInt64OK()
			if wanted[store.SpilledRef{Ref: store.Ref{Outbox: outbox, ID: doc.Lookup("id").StringValue()}, Seq: store.Seq(seq)}] {
				keys = append(keys, cloned(doc.Lookup("_id")))
			}
			return nil
		})
		if err != nil {
			return err
		}
	}

	return removeKeys(ctx, in, keys)
}

// cloned returns a copy of a value with its own memory.
func cloned(v bson.RawValue) bson.RawValue {
	return bson.RawValue{Type: v.Type, Value: slices.Clone(v.Value)}
}

// removeKeys deletes the documents with the given _ids.
func removeKeys(ctx context.Context, in *mongo.Collection, keys []bson.RawValue) error {
	if len(keys) == 0 {
		return nil
	}
	_, err := remove(ctx, in, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: keys}}}})
	return err
}

// ReadSpilled implements store.Spiller.
func (s *Store) ReadSpilled(ctx context.Context, from []store.SpilledRange, each int) ([][]store.Item, error) {
	if each <= 0 {
		return nil, fmt.Errorf("read spilled rows: limit %d must be positive", each)
	}

	for i := range from {
		if _, err := s.outboxes.Find(from[i].Outbox); err != nil {
			return nil, fmt.Errorf("read spilled rows: %w", err)
		}
	}

	if len(from) == 0 {
		return nil, nil
	}

	lists := make([][]store.Item, len(from))
	err := s.read(ctx, func(ctx context.Context, on *conn) (err error) {
		for i := range from {
			if lists[i], err = s.readSpilledLane(ctx, on, &from[i], each); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read spilled rows: %w", Explain(err))
	}

	return lists, nil
}

func (s *Store) readSpilledLane(ctx context.Context, on *conn, from *store.SpilledRange, limit int) (items []store.Item, err error) {
	key := func(seq any) bson.D {
		return bson.D{{Key: "relay", Value: s.name}, {Key: "outbox", Value: from.Outbox}, {Key: "lane", Value: hashOf(from.Lane)}, {Key: "seq", Value: seq}}
	}

	filter := bson.D{{Key: "_id", Value: bson.D{{Key: "$gt", Value: key(int64(from.After))}, {Key: "$lt", Value: key(bson.MaxKey{})}}}}
	opts := options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}).SetLimit(int64(limit))
	err = forEach(ctx, commandTimeout, on.ownCollection(ownSpilled), filter, opts, func(doc bson.Raw) error {
		var d spilledDocument
		if err := bson.Unmarshal(doc, &d); err != nil {
			return fmt.Errorf("in %s: %w", ownSpilled, err)
		}
		items = append(items, d.item())
		return nil
	})
	return items, err
}

// SpilledLanes implements store.SpillStore. It reads only the _id index.
func (s *Store) SpilledLanes(ctx context.Context, take func(store.SpilledLane)) error {
	err := s.read(ctx, func(ctx context.Context, on *conn) error {
		for _, name := range s.outboxes.Names() {
			if err := s.countLanes(ctx, on, name, take); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read spilled lanes: %w", Explain(err))
	}
	return nil
}

// spilledRange is the filter for an outbox's spilled rows after a lane.
func (s *Store) spilledRange(outbox string, after any) bson.D {
	key := func(lane any) bson.D {
		return bson.D{{Key: "relay", Value: s.name}, {Key: "outbox", Value: outbox}, {Key: "lane", Value: lane}, {Key: "seq", Value: bson.MaxKey{}}}
	}
	return bson.D{{Key: "_id", Value: bson.D{{Key: "$gt", Value: key(after)}, {Key: "$lt", Value: key(bson.MaxKey{})}}}}
}

func (s *Store) countLanes(ctx context.Context, on *conn, outbox string, take func(store.SpilledLane)) error {
	ctx, cancel := context.WithTimeout(ctx, viewTimeout)
	defer cancel()
	in, byID := on.ownCollection(ownSpilled), bson.D{{Key: "_id", Value: 1}}
	kinds, err := lanekinds.FindKinds(func(after store.LaneHash) (lane store.LaneHash, kind string, found bool, err error) {
		opts := options.Find().SetSort(byID).SetLimit(1)
		err = forEach(ctx, commandTimeout, in, s.spilledRange(outbox, hashOf(after)), opts, func(doc bson.Raw) error {
			found = true
			_, hash := doc.Lookup("_id", "lane").Binary()
			copy(lane[:], hash)
			kind = doc.Lookup("kind").StringValue()
			return nil
		})
		return lane, kind, found, err
	})
	if err != nil {
		return err
	}

	// Grouping on the server would read every document.
	l := store.SpilledLane{Outbox: outbox}
	opts := options.Find().SetSort(byID).SetProjection(byID).SetBatchSize(keyBatchSize)
	err = forEach(ctx, commandTimeout, in, s.spilledRange(outbox, bson.MinKey{}), opts, func(doc bson.Raw) error {
		_, hash := doc.Lookup("_id", "lane").Binary()
		if l.Rows > 0 && string(hash) != string(l.Hash[:]) {
			take(l)
			l.Rows = 0
		}
		copy(l.Hash[:], hash)
		l.Kind = kinds[l.Hash.Kind()]
		l.Rows++
		return nil
	})

	if err == nil && l.Rows > 0 {
		take(l)
	}

	return err
}

// keyBatchSize is how many keys the server returns per batch.
const keyBatchSize = 50_000

// DeleteSpilledAfter implements store.SpillStore, in transactions of bounded size. After an
// error some of the rows may be deleted.
func (s *Store) DeleteSpilledAfter(ctx context.Context, epoch store.Epoch, after store.Seq) (int, error) {
	all := 0
	for _, name := range s.outboxes.Names() {
		for n := maxSpillRows; n == maxSpillRows; {
			err := s.runAsLeader(ctx, epoch, func(ctx context.Context, on *conn) (err error) {
				n, err = s.deleteSpilledBatch(ctx, on, name, after)
				return err
			})
			if err != nil {
				return all, fmt.Errorf("delete spilled rows after seq: %w", Explain(err))
			}
			all += n
		}
	}
	return all, nil
}

// deleteSpilledBatch deletes some rows of an outbox after a seq and returns how many.
func (s *Store) deleteSpilledBatch(ctx context.Context, on *conn, outbox string, after store.Seq) (int, error) {
	filter := bson.D{{Key: "_id.relay", Value: s.name}, {Key: "_id.outbox", Value: outbox}, {Key: "_id.seq", Value: bson.D{{Key: "$gt", Value: int64(after)}}}}
	var keys []bson.RawValue
	opts := options.Find().SetProjection(project("_id")).SetLimit(maxSpillRows)
	err := forEach(ctx, commandTimeout, on.ownCollection(ownSpilled), filter, opts, func(doc bson.Raw) error {
		keys = append(keys, cloned(doc.Lookup("_id")))
		return nil
	})
	if err != nil {
		return 0, err
	}
	return len(keys), removeKeys(ctx, on.ownCollection(ownSpilled), keys)
}
