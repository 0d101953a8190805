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
	// recordNumberField is where the server shows a document's record number: it numbers them as
	// they are inserted. No query can sort by it.
	recordNumberField = "$recordId"
	// maxTies and maxTieBytes bound how many documents of one order-by are put in order.
	// What follows is read in the order of the ids.
	maxTies     = 10_000
	maxTieBytes = 16 << 20
)

// ties puts documents that are equal in order-by into the order of their insertion. Those
// whose _id is an ObjectId are in it: the sort goes by that.
type ties struct {
	table *table
	last  []byte // what the documents at hand have in order-by
	list  []tie
	bytes int
}

type tie struct {
	recordNumber int64
	item         store.Item
}

// needsSort reports whether documents have to be put in order.
func (t *ties) needsSort() bool {
	l := &t.table.Layout
	return l.Columns.ID == "_id" && !slices.Contains(l.OrderBy, "_id")
}

// startsNewRun reports whether a document is not to be put in order with those at hand: these have
// to be taken first.
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

// drain returns the documents at hand in order.
func (t *ties) drain() []tie {
	list := t.list
	t.list, t.bytes = nil, 0
	slices.SortStableFunc(list, func(a, b tie) int { return cmp.Compare(a.recordNumber, b.recordNumber) })
	return list
}
