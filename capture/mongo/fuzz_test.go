package mongo

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/store"
)

// Any position that parses formats back to the same text.
func FuzzPosition(f *testing.F) {
	f.Add("1741186978.1")
	f.Add("1741186978.1/9ae16a3b2f90404f/" + tokenFirst)
	f.Add("1741186978.1/9ae16a3b2f90404f/" + tokenFirst + "/80ff")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parsePosition(store.Position(text))
		if err != nil || text == "" {
			return
		}
		again, err := parsePosition(p.format())
		if err != nil || again != p || p.compare(&again) != 0 {
			t.Errorf("%q became %q, %v", text, p.format(), err)
		}
	})
}

// No event crashes the program.
func FuzzEvent(f *testing.F) {
	for _, doc := range []bson.D{
		{{Key: "_id", Value: bson.D{{Key: "_data", Value: tokenFirst}}}, {Key: "operationType", Value: "insert"}, {Key: "ns", Value: bson.D{{Key: "coll", Value: "a"}}},
			{Key: "fullDocument", Value: bson.D{{Key: "_id", Value: "x"}}}, {Key: "payload0", Value: bson.D{{Key: "value", Value: "y"}}}},
		{{Key: "_id", Value: bson.D{{Key: "_data", Value: tokenTime}}}, {Key: "operationType", Value: "rename"}, {Key: "to", Value: 1}, {Key: "ns", Value: bson.A{}}},
	} {
		raw, err := bson.Marshal(doc)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	p := newPlan(boxes(func(*store.Layout) {}, "a"))
	f.Fuzz(func(_ *testing.T, raw []byte) {
		if bson.Raw(raw).Validate() != nil {
			return // the driver reads only complete documents
		}
		e, err := eventOf(raw, p.hash)
		if err != nil || e.lossReason(p, "shop") != "" {
			return
		}
		_, err = p.items(nil, &e, "shop", time.Time{})
		_ = err // any error will do
	})
}
