package document

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/store"
)

// maxKinds bounds the number of kinds whose strings a Reader interns.
const maxKinds = 1024

// Reader turns the documents of one outbox into items. It is not safe for concurrent use.
type Reader struct {
	outbox *store.Outbox
	kinds  map[string]string // interned, so that all documents of a kind share one string
	text   []byte
}

// New returns a reader for the documents of an outbox. It retains o.
func New(o *store.Outbox) *Reader {
	return &Reader{outbox: o, kinds: map[string]string{}}
}

// ProjectedFields returns the names to project for the given fields. Duplicates and empty
// names are removed, and so are fields inside another listed field, because the server
// refuses such a projection.
func ProjectedFields(names []string) []string {
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == "" })
	slices.Sort(names)
	names = slices.Compact(names)
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return slices.ContainsFunc(names, func(other string) bool { return strings.HasPrefix(name, other+".") })
	})
}

// Head returns the item of a document without its payload. The item shares no memory with
// the document; Txn, Seq and the times are zero. An error names the field, and the item
// then has its id if that was readable.
func (r *Reader) Head(doc bson.Raw) (store.Item, error) {
	c := &r.outbox.Layout.Columns
	lane := r.Lane(doc)
	it := store.Item{Ref: store.Ref{Outbox: r.outbox.Name}, Kind: lane.Kind, Group: lane.Group}
	var err error
	if it.ID, err = ID(Lookup(doc, c.ID)); err != nil {
		return it, fmt.Errorf("field %s: %w", c.ID, err)
	}
	if c.RetryCount != "" {
		it.RetryCount = Count(Lookup(doc, c.RetryCount))
	}
	return it, nil
}

// Lane returns the lane of a document.
func (r *Reader) Lane(doc bson.Raw) store.LaneKey {
	c := &r.outbox.Layout.Columns
	lane := store.LaneKey{Outbox: r.outbox.Name, Kind: r.outbox.Kind}
	if c.Kind != "" {
		lane.Kind = r.kind(Lookup(doc, c.Kind))
	}
	if c.Group != "" {
		lane.Group = r.group(Lookup(doc, c.Group))
	}
	return lane
}

func (r *Reader) kind(v bson.RawValue) string {
	r.text = AppendText(r.text[:0], v)
	if kind, ok := r.kinds[string(r.text)]; ok {
		return kind
	}
	kind := string(r.text)
	if len(r.kinds) < maxKinds {
		r.kinds[kind] = kind
	}
	return kind
}

// group returns the group of a value. With a group path it searches a document or array in
// its JSON form.
func (r *Reader) group(v bson.RawValue) store.Group {
	if Absent(v) {
		return store.Group{}
	}
	if len(r.outbox.Layout.GroupPath) == 0 {
		r.text = AppendText(r.text[:0], v)
		return store.GroupOf(string(r.text))
	}
	return r.outbox.Layout.Group(Payload(v))
}

// Payload returns the payload bytes of a value; nil if the field is missing. It shares no
// memory with the value.
func Payload(v bson.RawValue) []byte {
	switch v.Type {
	case 0:
		return nil
	case bson.TypeNull, bson.TypeUndefined:
		return []byte{}
	case bson.TypeString:
		return []byte(v.StringValue())
	case bson.TypeBinary:
		if subtype, data := v.Binary(); subtype != bson.TypeBinaryUUID {
			return append([]byte{}, data...)
		}
		return AppendText([]byte{}, v)
	}

	// JSON is about as long as BSON.
	return AppendJSON(make([]byte, 0, len(v.Value)), v)
}

// Count returns the number of failures that a document records; 0 if it is not a number.
func Count(v bson.RawValue) int {
	n, ok := v.AsInt64OK()
	if !ok || n < 0 || n > math.MaxInt32 {
		return 0
	}
	return int(n)
}

// textForms returns the accepted text forms of a time; without a zone it is UTC.
func textForms() [4]string {
	return [...]string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999", "2006-01-02 15:04:05.999999999Z07:00", "2006-01-02 15:04:05.999999999"}
}

// Time returns the time of a date or of text in one of these forms; the zero time
// otherwise.
func Time(v bson.RawValue) time.Time {
	switch v.Type {
	case bson.TypeDateTime:
		return v.Time().UTC()
	case bson.TypeString:
		text := v.StringValue()
		for _, form := range textForms() {
			if t, err := time.Parse(form, text); err == nil {
				return t.UTC()
			}
		}
	}
	return time.Time{}
}
