package document

import (
	"fmt"
	"math"
	"slices"
	"strconv"
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
	return &Reader{outbox: o, kinds: map[string]string{}, text: make([]byte, 0, 64)}
}

// HeadFields returns the fields that Head reads. An empty name stands for no field.
func HeadFields(l *store.Layout) []string {
	return append([]string{l.Columns.ID, l.Columns.Kind, l.Columns.RetryCount}, l.GroupColumns()...)
}

// AttributeFields returns the fields that Content reads beside the payload.
func AttributeFields(l *store.Layout) []string {
	names := make([]string, len(l.Attributes))
	for i := range l.Attributes {
		names[i] = l.Attributes[i].Column
	}
	return names
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

// Head returns the item of a document without its content. The item shares no memory with
// the document; Txn, Seq and the times are zero. An error names the field, and the item
// then has its id if that was readable.
func (r *Reader) Head(doc bson.Raw) (store.Item, error) {
	c, lane := &r.outbox.Layout.Columns, r.Lane(doc)
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
	k := store.LaneKey{Outbox: r.outbox.Name, Kind: r.outbox.Kind}
	if column := r.outbox.Layout.Columns.Kind; column != "" {
		k.Kind = r.kind(Lookup(doc, column))
	}
	if r.outbox.Layout.Columns.Group != "" {
		k.Group = r.group(doc)
	}
	return k
}

// Content returns the payload of a value, which may lie beside the document, and the attributes
// of the document. Both are nil if the value is missing, unless the outbox keeps its attributes.
// They share no memory with either.
func (r *Reader) Content(doc bson.Raw, payload bson.RawValue) ([]byte, store.Attributes) {
	body := payloadOf(payload)
	if body == nil && !r.outbox.KeepsAttributes() {
		return nil, nil
	}
	return body, r.outbox.Layout.ReadAttributes(func(i int) []byte { return r.attribute(doc, i) })
}

// KindAttributes returns the attribute kind of a document, see store.Layout.ReadKind.
func (r *Reader) KindAttributes(doc bson.Raw) store.Attributes {
	l := &r.outbox.Layout
	return l.ReadKind(r.part(Lookup(doc, l.KindColumn())))
}

// attribute returns the text of a field with an attribute, nil if it is absent.
func (r *Reader) attribute(doc bson.Raw, i int) []byte {
	c := &r.outbox.Layout.Attributes[i]
	v := Lookup(doc, c.Column)
	if c.Name != store.AttributeTime {
		return r.part(v)
	}
	switch v.Type {
	case bson.TypeTimestamp:
		seconds, _ := v.Timestamp()
		r.text = strconv.AppendUint(r.text[:0], uint64(seconds), 10)
		return r.text
	case bson.TypeDateTime:
		if ms := v.DateTime(); ms < firstDate || ms > lastDate {
			return nil // its number could be taken for another time
		}
	}
	return r.part(v)
}

// part returns the text of a value until the next call, nil if the value is absent.
func (r *Reader) part(v bson.RawValue) []byte {
	if Absent(v) {
		return nil
	}
	r.text = AppendText(r.text[:0], v)
	return r.text
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

// group returns the group of a document. With a group path it searches a document or array in
// its JSON form.
func (r *Reader) group(doc bson.Raw) store.Group {
	l := &r.outbox.Layout
	if len(l.GroupPath) > 0 {
		if v := Lookup(doc, l.Columns.Group); !Absent(v) {
			return l.Group(payloadOf(v))
		}
		return store.Group{}
	}
	return l.GroupOfColumns(func(i int) []byte {
		name := l.Columns.Group
		if i > 0 {
			name = l.GroupRest[i-1]
		}
		return r.part(Lookup(doc, name))
	})
}

// payloadOf returns the payload bytes of a value; nil if the field is missing. It shares no
// memory with the value.
func payloadOf(v bson.RawValue) []byte {
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
