package mongo

import (
	"bytes"
	"cmp"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/mongo/document"
)

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
