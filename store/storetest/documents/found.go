package documents

import (
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest"
)

// found returns the content of a document.
func found(t *testing.T, l *store.Layout, doc bson.Raw) storetest.RowContent {
	t.Helper()
	c := &l.Columns
	f := storetest.RowContent{Exists: true, Claimed: when(t, l, doc, c.Claimed), Settled: when(t, l, doc, c.Settled)}
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
	case store.StateTimestamps:
		switch {
		case !when(t, l, doc, c.Delivered).IsZero():
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
	return f
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
