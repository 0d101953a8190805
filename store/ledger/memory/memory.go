// Package memory is a ledger.Backend in memory, for tests.
package memory

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
)

// Database holds the records and queues of relays. It is safe for concurrent use.
type Database struct {
	mu     sync.RWMutex
	relays map[string]*relay
}

// relay is the data of one relay.
type relay struct {
	epoch   store.Epoch
	leader  *Backend
	records map[recordKey]record
	queues  map[string][]store.Item // ordered by number, then by outbox
}

type recordKey struct{ kind, key string }

type record struct {
	body    []byte
	version int64
}

// New returns an empty database.
func New() *Database { return &Database{relays: map[string]*relay{}} }

// Backend returns a new store of a relay.
func (db *Database) Backend(name string) *Backend {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.relays[name] == nil {
		db.relays[name] = &relay{records: map[recordKey]record{}, queues: map[string][]store.Item{}}
	}
	return &Backend{db: db, relay: db.relays[name]}
}

// Backend implements ledger.Backend.
type Backend struct {
	db    *Database
	relay *relay
}

// AcquireLeadership makes the backend the leader of its relay, as store.Leadership does.
func (b *Backend) AcquireLeadership(context.Context) (store.Epoch, error) {
	b.db.mu.Lock()
	defer b.db.mu.Unlock()
	b.relay.epoch++
	b.relay.leader = b
	return b.relay.epoch, nil
}

// Update implements ledger.Backend.
func (b *Backend) Update(ctx context.Context, epoch store.Epoch, _ ledger.Durability, do func(context.Context, ledger.Tx) error) error {
	return b.write(ctx, func(tx *tx) error {
		if b.relay.leader != b || b.relay.epoch != epoch {
			return store.ErrNotLeader
		}
		return do(ctx, tx)
	})
}

// Request implements ledger.Backend.
func (b *Backend) Request(ctx context.Context, do func(context.Context, ledger.Tx, int64) error) error {
	return b.write(ctx, func(tx *tx) error {
		if err := tx.Put(ctx, ledger.RelayKind, ledger.Record{Key: ledger.Requests, Body: []byte("{}")}); err != nil {
			return err
		}
		return do(ctx, tx, b.relay.records[recordKey{ledger.RelayKind, ledger.Requests}].version)
	})
}

// write runs do and undoes its changes if it fails.
func (b *Backend) write(ctx context.Context, do func(*tx) error) error {
	b.db.mu.Lock()
	defer b.db.mu.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	tx := &tx{reader: reader{b.relay}, now: time.Now()}
	err := do(tx)
	if err != nil {
		for _, undo := range slices.Backward(tx.undo) {
			undo()
		}
	}
	return err
}

// View implements ledger.Backend.
func (b *Backend) View(ctx context.Context, do func(context.Context, ledger.Reader) error) error {
	b.db.mu.RLock()
	defer b.db.mu.RUnlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return do(ctx, reader{b.relay})
}

// reader implements ledger.Reader. The caller holds the lock of the database.
type reader struct{ *relay }

// Get implements ledger.RecordReader.
func (r reader) Get(_ context.Context, kind string, keys ...string) (bodies [][]byte, err error) {
	for _, key := range keys {
		bodies = append(bodies, bytes.Clone(r.records[recordKey{kind, key}].body))
	}
	return bodies, nil
}

// List implements ledger.RecordReader.
func (r reader) List(_ context.Context, kind, prefix string, limit int, take func(ledger.Record) error) error {
	var list []ledger.Record
	for k, rec := range r.records {
		if k.kind == kind && strings.HasPrefix(k.key, prefix) {
			list = append(list, ledger.Record{Key: k.key, Body: bytes.Clone(rec.body)})
		}
	}
	slices.SortFunc(list, func(a, b ledger.Record) int { return cmp.Compare(a.Key, b.Key) })
	if limit > 0 && len(list) > limit {
		list = list[:limit]
	}
	for _, rec := range list {
		if err := take(rec); err != nil {
			return err
		}
	}
	return nil
}

// Range implements ledger.QueueReader.
func (r reader) Range(_ context.Context, queue string, from []store.SpilledRange, each int) ([][]store.Item, error) {
	lists := make([][]store.Item, len(from))
	for i, f := range from {
		for _, it := range r.queues[queue] {
			if len(lists[i]) < each && it.Seq > f.After && it.Outbox == f.Outbox && it.Lane().Hash() == f.Lane {
				it.Payload, it.Attributes = bytes.Clone(it.Payload), slices.Clone(it.Attributes)
				lists[i] = append(lists[i], it)
			}
		}
	}
	return lists, nil
}

// Scan implements ledger.QueueReader.
func (r reader) Scan(_ context.Context, q ledger.Scan) (list []store.Item, err error) {
	started := map[store.LaneKey]bool{}
	for _, it := range r.queues[q.Queue] {
		behind := q.Heads && started[it.Lane()]
		started[it.Lane()] = true
		if len(list) < q.Limit && int64(it.Seq) > q.After && !behind && (q.Outboxes == nil || slices.Contains(q.Outboxes, it.Outbox)) {
			it.DropContent()
			list = append(list, it)
		}
	}
	return list, nil
}

// Lanes implements ledger.QueueReader.
func (r reader) Lanes(_ context.Context, queue, outbox string, take func(store.SpilledLane)) error {
	lanes := map[store.LaneHash]store.SpilledLane{}
	for _, it := range r.queues[queue] {
		if it.Outbox == outbox {
			hash := it.Lane().Hash()
			lanes[hash] = store.SpilledLane{Outbox: outbox, Kind: it.Kind, Hash: hash, Rows: lanes[hash].Rows + 1}
		}
	}
	for l := range maps.Values(lanes) {
		take(l)
	}
	return nil
}

// tx implements ledger.Tx.
type tx struct {
	reader
	now  time.Time
	undo []func()
}

// Now implements ledger.Tx.
func (t *tx) Now(context.Context) (time.Time, error) { return t.now, nil }

// Lock implements ledger.Tx. The lock of the database is the lock of the record.
func (t *tx) Lock(ctx context.Context, kind string, keys ...string) ([][]byte, error) {
	return t.Get(ctx, kind, keys...)
}

// Put implements ledger.Writer.
func (t *tx) Put(_ context.Context, kind string, records ...ledger.Record) error {
	for _, rec := range records {
		key := recordKey{kind, rec.Key}
		t.keepRecord(key)
		t.records[key] = record{bytes.Clone(rec.Body), t.records[key].version + 1}
	}
	return nil
}

// Delete implements ledger.Writer.
func (t *tx) Delete(_ context.Context, kind string, keys ...string) error {
	for _, key := range keys {
		t.keepRecord(recordKey{kind, key})
		delete(t.records, recordKey{kind, key})
	}
	return nil
}

// keepRecord lets undo restore a record.
func (t *tx) keepRecord(key recordKey) {
	before, found := t.records[key]
	t.undo = append(t.undo, func() {
		if delete(t.records, key); found {
			t.records[key] = before
		}
	})
}

// keepQueue lets undo restore a queue, whose slice is replaced and never changed.
func (t *tx) keepQueue(queue string) {
	before := t.queues[queue]
	t.undo = append(t.undo, func() { t.queues[queue] = before })
}

func byNumber(a, b store.Item) int {
	return cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.Outbox, b.Outbox))
}

// Enqueue implements ledger.Writer.
func (t *tx) Enqueue(_ context.Context, queue string, rows []store.Item) (added int, err error) {
	t.keepQueue(queue)
	all := slices.Clone(t.queues[queue])
	for _, it := range rows {
		at, exists := slices.BinarySearchFunc(all, it, byNumber)
		if exists {
			if all[at].ID != it.ID || all[at].Lane() != it.Lane() {
				return 0, ledger.NumberTaken(&it)
			}
			continue
		}
		it.Payload, it.Attributes = bytes.Clone(it.Payload), slices.Clone(it.Attributes)
		it.Captured, it.Txn = time.Time{}, 0
		all = slices.Insert(all, at, it)
		added++
	}
	t.queues[queue] = all
	return added, nil
}

// Dequeue implements ledger.Writer.
func (t *tx) Dequeue(_ context.Context, queue string, refs []ledger.Ref, removed func(int, *store.Item)) (n int, err error) {
	t.keepQueue(queue)
	all := slices.Clone(t.queues[queue])
	for i, ref := range refs {
		at, exists := slices.BinarySearchFunc(all, store.Item{Ref: store.Ref{Outbox: ref.Outbox}, Seq: store.Seq(ref.N)}, byNumber)
		if !exists {
			continue
		}
		row := all[at]
		if ref.Lane == (store.LaneHash{}) && row.ID != ref.ID || ref.Lane != (store.LaneHash{}) && row.Lane().Hash() != ref.Lane {
			continue
		}
		all = slices.Delete(all, at, at+1)
		n++
		if removed != nil {
			removed(i, &row)
		}
	}
	t.queues[queue] = all
	return n, nil
}

// Clear implements ledger.Writer.
func (t *tx) Clear(ctx context.Context, q ledger.Scan) (n int, last int64, err error) {
	rows, err := t.Scan(ctx, q)
	if err != nil || len(rows) == 0 {
		return 0, 0, err
	}
	refs := make([]ledger.Ref, len(rows))
	for i := range rows {
		refs[i] = ledger.Ref{Ref: rows[i].Ref, N: int64(rows[i].Seq)}
	}
	n, err = t.Dequeue(ctx, q.Queue, refs, nil)
	return n, refs[n-1].N, err
}
