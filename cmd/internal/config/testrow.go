package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/dispatch/route"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// RowTest says where a row of an outbox would go.
type RowTest struct {
	Item *store.Item

	// Destinations are those of the outbox, in their order.
	Destinations []DestinationTest

	// Unmatched is set if no route matches the row: fail, complete or hold.
	Unmatched string
}

// DestinationTest says whether a row would go to a destination, and why.
type DestinationTest struct {
	Route    string `json:"route,omitempty"` // "" is the only destination of the outbox
	Sink     string `json:"sink"`
	Optional bool   `json:"optional,omitempty"`
	Matched  bool   `json:"matched"`
	Reason   string `json:"reason"`

	// Endpoint is the topic, stream, host or path, where the configuration alone tells it.
	Endpoint string `json:"endpoint,omitempty"`
}

// TestRow finds the destinations of a row of the i-th outbox. The row is a JSON object of its
// columns, or of these members: id, kind, type, group, attributes (an object), tags. The error names
// the fault of the row. TestRow opens no sink and no database.
func (c *Config) TestRow(i int, row []byte) (*RowTest, error) {
	o := &c.Settings.Outboxes[i]
	it, err := c.readRow(i, row)
	if err != nil {
		return nil, err
	}
	test := &RowTest{Item: it}
	if len(o.Routes) == 0 {
		test.Destinations = []DestinationTest{{Sink: o.Sink, Matched: true, Reason: "the only sink of the outbox", Endpoint: c.endpointOf(o.Sink, it)}}
		return test, nil
	}
	router, err := o.Router()
	if err != nil {
		return nil, err // not of a loaded configuration
	}
	for j, reason := range router.Explain(it) {
		r := &o.Routes[j]
		d := DestinationTest{Route: r.Name, Sink: r.Sink, Optional: r.IsOptional(), Matched: reason.Matched, Reason: reason.Text}
		if d.Matched {
			d.Endpoint = c.endpointOf(r.Sink, it)
		}
		test.Destinations = append(test.Destinations, d)
	}
	if router.Match(it) == 0 {
		test.Unmatched = o.unmatched()
	}
	return test, nil
}

// endpointOf returns the endpoint of a sink for a row, "" if the configuration does not tell it.
func (c *Config) endpointOf(name string, it *store.Item) string {
	to := c.Settings.Sinks[name]
	limits := sinkTypes()[to.Type].destination(&to, "").limits(it.OwnKind())
	if limits.EndpointOf == nil {
		return limits.Endpoint
	}
	return limits.EndpointOf(&sink.Message{Outbox: it.Outbox, ID: it.ID, Kind: it.OwnKind(), Group: it.Group, Payload: it.Payload, Attributes: it.Attributes})
}

// Members of a row that are not named after its columns.
const (
	memberID         = "id"
	memberGroup      = "group"
	memberAttributes = "attributes"
	memberTags       = route.DefaultTagsFrom
)

// rowReader reads a row that is written as JSON.
type rowReader struct {
	outbox *Outbox
	layout store.Layout
	values map[string][]byte // of columns
	item   store.Item
	more   store.Attributes // members of columns that are spread
}

// readRow reads a row of the i-th outbox.
func (c *Config) readRow(i int, row []byte) (*store.Item, error) {
	o := &c.Settings.Outboxes[i]
	r := rowReader{outbox: o, layout: o.storeLayout(c.Settings.Source.URL.documents()), values: map[string][]byte{}}
	r.item = store.Item{Ref: store.Ref{Outbox: o.Name}, Kind: o.Kind}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(row, &members); err != nil || members == nil {
		return nil, errors.New(`row is no JSON object; write {"column": "value"} or {"kind": "order", "type": "OrderPaid", "tags": ["a=1"]}`)
	}
	names := slices.Sorted(maps.Keys(members))
	texts, _ := store.ReadMembers(row, names)
	columns := r.columns()
	for k, name := range names {
		if slices.Contains(columns, name) {
			r.values[name] = texts[k]
			continue
		}
		if err := r.member(name, texts[k], columns); err != nil {
			return nil, err
		}
	}
	r.read()
	return &r.item, nil
}

// columns returns the columns that the relay reads of a row.
func (r *rowReader) columns() []string {
	names := append([]string{r.layout.Columns.ID, r.layout.Columns.Kind, r.layout.Columns.Payload}, r.layout.GroupColumns()...)
	for _, a := range r.layout.Attributes {
		names = append(names, a.Column)
	}
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(name string) bool { return name == "" })
}

// member takes a member that is no column.
func (r *rowReader) member(name string, text []byte, columns []string) error {
	switch name {
	case memberID:
		r.item.ID = string(text)
	case memberGroup:
		if text != nil {
			r.item.Group = store.GroupOf(string(text))
		}
	case store.AttributeKind:
		return r.kind(text)
	case store.AttributeType, store.AttributeTime:
		return r.attribute(name, text)
	case memberTags:
		return r.attribute(memberTags, text)
	case memberAttributes:
		var members map[string]json.RawMessage
		if err := json.Unmarshal(text, &members); err != nil {
			return errors.New(`attributes is no JSON object; write {"attributes": {"tenant": "a"}}`)
		}
		names := slices.Sorted(maps.Keys(members))
		texts, _ := store.ReadMembers(text, names)
		for i, attribute := range names {
			if err := r.attribute(attribute, texts[i]); err != nil {
				return err
			}
		}
	default:
		known := slices.Concat(columns, []string{memberID, store.AttributeKind, store.AttributeType, memberGroup, memberAttributes, memberTags})
		remedy := "the relay reads " + strings.Join(columns, ", ") + "; or write id, kind, type, group, attributes, tags"
		if near := store.Nearest(name, known); near != "" {
			remedy = "did you mean " + near + "?"
		}
		return fmt.Errorf("row has %s, which the relay does not read; %s", name, remedy)
	}
	return nil
}

// kind takes the kind of the row.
func (r *rowReader) kind(text []byte) error {
	if column := r.layout.KindColumn(); column != "" {
		r.values[column] = text
		return nil
	}
	if string(text) != r.outbox.Kind {
		return fmt.Errorf("kind is %s, but each row of the outbox is of kind %s; remove it", text, r.outbox.Kind)
	}
	return nil
}

// attribute takes an attribute of the row.
func (r *rowReader) attribute(name string, text []byte) error {
	column := slices.IndexFunc(r.layout.Attributes, func(a store.AttributeColumn) bool { return a.Name == name })
	switch {
	case name == store.AttributeKind:
		return r.kind(text)
	case column >= 0:
		r.values[r.layout.Attributes[column].Column] = text
	case !r.layout.HasAttribute(name):
		return fmt.Errorf("rows of the outbox have no attribute %s; %s", name, attributeRemedy(&r.layout, name))
	case text != nil:
		r.more = append(r.more, store.Attribute{Name: name, Value: string(text)})
	}
	return nil
}

// read reads the item from the values of the columns, as a source does.
func (r *rowReader) read() {
	l := &r.layout
	it := &r.item
	if id, ok := r.values[l.Columns.ID]; ok {
		it.ID = string(id)
	}
	if kind, ok := r.values[l.Columns.Kind]; ok && l.Columns.Kind != "" {
		it.Kind = string(kind)
	}
	it.Payload = r.values[l.Columns.Payload]
	groups := l.GroupColumns()
	if slices.ContainsFunc(groups, func(column string) bool { return r.values[column] != nil }) {
		it.Group = l.GroupOfColumns(func(i int) []byte { return r.values[groups[i]] })
	}
	it.Attributes = slices.DeleteFunc(l.ReadAttributes(func(i int) []byte { return r.values[l.Attributes[i].Column] }), func(a store.Attribute) bool {
		_, replaced := r.more.Get(a.Name)
		return replaced
	})
	it.Attributes = append(it.Attributes, r.more...)
}
