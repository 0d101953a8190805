package mongo

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/store"
	views "github.com/sluicebox/sluicebox/store/internal/view"
	"github.com/sluicebox/sluicebox/store/ledger"
	"github.com/sluicebox/sluicebox/store/mongo/document"
)

const (
	// maxFilterValues bounds the ids and lanes that a filter excludes. Above it only the
	// program excludes them, as it always does in addition.
	maxFilterValues = 20_000
	// maxLaneConditions bounds the conditions on lanes that a filter compares with each document.
	maxLaneConditions = 200
	// spilledLookupSize is the number of documents per lookup of spilled rows.
	spilledLookupSize = 500
	// minWindow and maxWindow bound how many documents are read at a time, because the
	// server sorts the first few of many faster than all.
	minWindow = 1000
	maxWindow = 100_000
)

// reading is one read of an outbox in a view.
type reading struct {
	*view
	table        *table
	query        store.UnsettledQuery
	to           *views.Pages
	excludeIDs   map[string]struct{}
	excludeLanes map[store.LaneKey]struct{}
	seen         int  // documents read in this window
	full         bool // the caller wants no more
	ties         ties

	waiting []store.Item // waiting for the lookup of spilled rows
	spilled idSet        // all spilled ids, if they were loaded; else nil
	include idSet        // ids to pass on although they are spilled
}

// idSet is a set of ids, stored as 128-bit hashes.
type idSet map[[16]byte]struct{}

func (s idSet) has(id string) bool {
	_, has := s[hashID(id)]
	return has
}

func hashID(id string) [16]byte {
	sum := sha256.Sum256([]byte(id))
	return [16]byte(sum[:16])
}

// Read implements view.Snapshot.
func (v *view) Read(ctx context.Context, o *store.Outbox, q store.UnsettledQuery, to *views.Pages) error {
	t := v.conn.table(o)
	r := &reading{
		view: v, table: t, ties: ties{table: t}, query: q, to: to,
		excludeIDs: make(map[string]struct{}, len(q.ExcludeIDs)), excludeLanes: store.LaneSet(q.ExcludedLanes(o)),
		include: make(idSet, len(q.IncludeSpilled)),
	}

	for _, id := range q.ExcludeIDs {
		r.excludeIDs[id] = struct{}{}
	}
	for _, id := range q.IncludeSpilled {
		r.include[hashID(id)] = struct{}{}
	}

	ctx = mongo.NewSessionContext(ctx, v.session)
	if q.Limit > maxWindow {
		// Before a whole collection is read, because the caller may spill rows meanwhile:
		// each lookup would make the server skip over all of them, too new for the snapshot.
		var err error
		if r.spilled, err = r.spilledIDs(ctx); err != nil {
			return Explain(err)
		}
	}
	return Explain(r.read(ctx))
}

// read reads windows of documents, each larger than the last, until there are enough.
func (r *reading) read(ctx context.Context) error {
	filter := r.filter()
	for from, window := 0, max(minWindow, 2*r.query.Limit); ; from, window = from+window, 2*window {
		if r.query.Limit > maxWindow || window > maxWindow {
			window = 0 // all
		}
		r.seen = 0
		opts := options.Find().SetSort(r.table.order()).SetProjection(r.projection()).SetAllowDiskUse(true).
			SetBatchSize(minWindow).SetSkip(int64(from)).SetLimit(int64(window)).SetShowRecordID(r.ties.needsSort())
		for doc, err := range find(ctx, viewTimeout, r.table.collection, filter, opts) {
			if err == nil {
				err = r.addDocument(ctx, doc)
			}
			if err != nil || r.full {
				return err
			}
		}
		last := window == 0 || r.seen < window
		if last {
			if err := r.flushTies(ctx); err != nil {
				return err
			}
		}
		if err := r.flushWaiting(ctx); err != nil || last || r.full {
			return err
		}
	}
}

// filter selects unsettled documents and excludes everything that a filter can decide
// exactly: ids by their values, and lanes whose groups are text.
func (r *reading) filter() bson.D {
	all := bson.A{bson.D{r.table.identified()}}
	if open := r.table.open(); len(open) > 0 {
		all = append(all, open)
	}
	if n := len(r.query.ExcludeIDs); n > 0 && n <= maxFilterValues {
		all = append(all, bson.D{{Key: "$nor", Value: bson.A{bson.D{r.table.idIn(r.query.ExcludeIDs)}}}})
	}
	if n := len(r.excludeLanes); n > 0 && n <= maxFilterValues && len(r.table.Layout.GroupPath) == 0 {
		if list := r.laneConditions(); len(list) > 0 {
			all = append(all, bson.D{{Key: "$nor", Value: list}})
		}
	}
	return bson.D{{Key: "$and", Value: all}}
}

// laneConditions returns the filters for excluded lanes: one for the lanes that differ only in
// the last field of their group. It returns nil if they are too many.
func (r *reading) laneConditions() bson.A {
	type key struct{ kind, parts string }
	l := &r.table.Layout
	last := map[key]bson.A{}  // values of the last field
	before := map[key][]any{} // values of the others
	for k := range r.excludeLanes {
		parts, possible := l.GroupParts(k.Group)
		if !possible {
			continue
		}
		values := make([]any, len(parts))
		for i, p := range parts {
			if p.Valid {
				values[i] = p.Name
			}
		}
		n := len(values) - 1
		same := key{k.Kind, fmt.Sprintf("%#v", values[:n])}
		last[same], before[same] = append(last[same], values[n]), values[:n]
	}
	if len(last) > maxLaneConditions {
		return nil
	}

	list := bson.A{}
	for k, values := range last {
		var lane bson.D
		if name := l.Columns.Kind; name != "" {
			kinds := bson.A{k.kind}
			if k.kind == "" {
				kinds = append(kinds, nil)
			}
			lane = append(lane, oneOf(name, kinds)...)
		}
		if fields := l.GroupColumns(); len(fields) > 0 {
			for i, value := range before[k] {
				lane = append(lane, oneOf(fields[i], bson.A{value})...)
			}
			lane = append(lane, oneOf(fields[len(fields)-1], values)...)
		}
		if lane == nil { // all documents are in one lane
			lane = bson.D{}
		}
		list = append(list, lane)
	}
	return list
}

// oneOf is the filter that a field has one of some values. $in alone would also match an
// array that contains one of them, or documents in an array on the way to the field.
func oneOf(name string, values bson.A) bson.D {
	list := bson.D{{Key: "$type", Value: "array"}}
	filter := bson.D{{Key: name, Value: bson.D{{Key: "$in", Value: values}, {Key: "$not", Value: list}}}}
	for i, c := range name {
		if c == '.' {
			filter = append(filter, bson.E{Key: name[:i], Value: bson.D{{Key: "$not", Value: list}}})
		}
	}
	return filter
}

func (r *reading) projection() bson.D {
	c, size := &r.table.Layout.Columns, r.table.size()
	payload := expr("$cond", expr("$lte", size, r.query.MaxInlinePayload()), "$"+c.Payload, "$$REMOVE")
	fields := append(document.HeadFields(&r.table.Layout), r.table.Layout.OrderBy...)
	if !r.query.NoPayload || r.table.KeepsAttributes() {
		fields = append(fields, document.AttributeFields(&r.table.Layout)...)
	}
	return append(project(fields...), bson.E{Key: sizeField, Value: size}, bson.E{Key: payloadField, Value: payload})
}

// addDocument adds one document.
func (r *reading) addDocument(ctx context.Context, doc bson.Raw) error {
	r.seen++
	it, err := r.table.reader.Head(doc)
	if err != nil {
		return nil // a fractional number: Diagnose reports such ids
	}

	it.PayloadSize = sizeOf(doc)
	it.Payload, it.Attributes = r.table.reader.Content(doc, doc.Lookup(payloadField))
	if it.Payload != nil {
		it.PayloadSize = len(it.Payload) // JSON and BSON lengths differ slightly
	}

	_, isExcluded := r.excludeIDs[it.ID]
	_, inExcludedLane := r.excludeLanes[it.Lane()]
	if isExcluded || inExcludedLane {
		return nil
	}

	if !r.ties.needsSort() {
		return r.addWaiting(ctx, it)
	}

	if r.ties.startsNewRun(doc) {
		if err := r.flushTies(ctx); err != nil {
			return err
		}
	}

	r.ties.add(doc, it)
	return nil
}

// flushTies passes on the documents that were sorted.
func (r *reading) flushTies(ctx context.Context) error {
	for _, t := range r.ties.drain() {
		if err := r.addWaiting(ctx, t.item); err != nil {
			return err
		}
	}
	return nil
}

// addWaiting queues a document for the lookup of spilled rows.
func (r *reading) addWaiting(ctx context.Context, it store.Item) error {
	if r.waiting = append(r.waiting, it); len(r.waiting) < spilledLookupSize {
		return nil
	}
	return r.flushWaiting(ctx)
}

// spilledIDs returns the ids of the outbox's spilled rows, or of those that match. It reads
// only the index.
func (r *reading) spilledIDs(ctx context.Context, match ...bson.E) (idSet, error) {
	opts, ids := options.Find().SetProjection(project("id")).SetHint(rowIndex), idSet{}
	for _, name := range r.table.SpilledAs() {
		filter := append((&reader{relay: r.store.name}).outboxFilter(ledger.SpilledQueue, name), match...)
		for doc, err := range find(ctx, viewTimeout, r.conn.ownCollection(ownQueue), filter, opts) {
			if err != nil {
				return nil, err
			}
			ids[hashID(doc.Lookup("id").StringValue())] = struct{}{}
		}
	}
	return ids, nil
}

// flushWaiting passes on the queued documents that are not spilled.
func (r *reading) flushWaiting(ctx context.Context) error {
	waiting, spilled := r.waiting, r.spilled
	r.waiting = nil
	if len(waiting) == 0 {
		return nil
	}

	if spilled == nil {
		ids := make([]string, len(waiting))
		for i := range waiting {
			ids[i] = waiting[i].ID
		}
		var err error
		if spilled, err = r.spilledIDs(ctx, bson.E{Key: "id", Value: bson.D{{Key: "$in", Value: ids}}}); err != nil {
			return err
		}
	}

	for _, it := range waiting {
		if len(spilled) > 0 && spilled.has(it.ID) && !r.include.has(it.ID) {
			continue
		}
		if r.full = r.full || !r.to.Add(it); r.full {
			break
		}
	}

	return nil
}

const (
	// recordNumberField is the field in which the server returns a document's record
	// number, which grows with each insert. No query can sort by it.
	recordNumberField = "$recordId"
	// maxTies and maxTieBytes bound how many documents with equal order-by are sorted here.
	// Beyond these bounds the next run is sorted separately, so ids decide the order
	// between runs.
	maxTies     = 10_000
	maxTieBytes = 16 << 20
)

// ties puts documents with equal order-by into insertion order. It applies to documents
// whose _id is not an ObjectId, because the query already sorts ObjectIds in insertion
// order.
type ties struct {
	table *table
	last  []byte // order-by values of the current documents
	list  []tie
	bytes int
}

type tie struct {
	recordNumber int64
	item         store.Item
}

// needsSort reports whether documents with equal order-by must be sorted here.
func (t *ties) needsSort() bool {
	l := &t.table.Layout
	return l.Columns.ID == "_id" && !slices.Contains(l.OrderBy, "_id")
}

// startsNewRun reports whether the caller must drain the current documents before it adds
// this one.
func (t *ties) startsNewRun(doc bson.Raw) bool {
	var by []byte
	for _, name := range t.table.Layout.OrderBy {
		value := document.Lookup(doc, name)
		by = append(append(by, byte(value.Type)), value.Value...)
	}
	if bytes.Equal(by, t.last) && len(t.list) < maxTies && t.bytes < maxTieBytes {
		return false
	}
	t.last = by
	return len(t.list) > 0
}

func (t *ties) add(doc bson.Raw, it store.Item) {
	n := tie{item: it}
	if doc.Lookup("_id").Type != bson.TypeObjectID {
		n.recordNumber, _ = doc.Lookup(recordNumberField).AsInt64OK()
	}
	t.list, t.bytes = append(t.list, n), t.bytes+len(it.Payload)
}

// drain returns the current documents in insertion order and removes them.
func (t *ties) drain() []tie {
	list := t.list
	t.list, t.bytes = nil, 0
	slices.SortStableFunc(list, func(a, b tie) int { return cmp.Compare(a.recordNumber, b.recordNumber) })
	return list
}
