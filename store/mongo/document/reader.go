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

// maxKinds bounds how many kinds a Reader keeps the strings of.
const maxKinds = 1024

// Reader makes items of the documents of one outbox. One goroutine at a time uses it.
type Reader struct {
	outbox *store.Outbox
	kinds  map[string]string // so that a kind is one string, however many documents have it
	text   []byte
}

// New returns a reader of an outbox's documents. It keeps the outbox.
func New(o *store.Outbox) *Reader {
	return &Reader{outbox: o, kinds: map[string]string{}}
}

// ProjectedFields returns the names that project some fields, each once and without those
// inside of another one, which the server refuses. Empty names are left out.
func ProjectedFields(names []string) []string {
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == "" })
	slices.Sort(names)
	names = slices.Compact(names)
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return slices.ContainsFunc(names, func(other string) bool { return strings.HasPrefix(name, other+".") })
	})
}

// Head makes an item of a document, without its payload. It shares no memory with the
// document. Txn, Seq and the times are zero. The error names the field; the item has its
// id if that could be read.
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

// group returns the group of a value. With a path, a document or an array is looked
// into as the JSON that it would be sent as.
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

// Payload returns what is sent of a payload's value; nil if there is none. It shares
// no memory with the value.
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

// Count reads how many failures a document records. What is no number is 0.
func Count(v bson.RawValue) int {
	n, ok := v.AsInt64OK()
	if !ok || n < 0 || n > math.MaxInt32 {
		return 0
	}
	return int(n)
}

// textForms are how programs write a time as text; without a zone it is UTC.
func textForms() [4]string {
	return [...]string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999", "2006-01-02 15:04:05.999999999Z07:00", "2006-01-02 15:04:05.999999999"}
}

// Time reads a date, or a text that is a time as RFC 3339 has it. Anything else is
// the zero time.
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
