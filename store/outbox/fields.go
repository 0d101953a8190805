package outbox

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
)

// Field is a column of a new row, or a field of its document, with its value.
type Field struct {
	Column string
	// Value is a string, the payload as []byte, a time.Time, an int64, a bool, or Transaction.
	Value any
	// Key is the field of the Row that the value is from, "" for none.
	Key string
}

// Content reports whether a repeated row must have the same value.
func (f *Field) Content() bool { return f.Key != "" && f.Key != createdKey }

// Transaction is the value of Columns.Transaction: the transaction that inserts the row.
type Transaction struct{}

// Keys of a Row.
const (
	idKey         = "id"
	kindKey       = "kind"
	groupKey      = "group"
	payloadKey    = "payload"
	attributesKey = "attributes"
	createdKey    = "created"
)

// Fields returns the columns of a new row with their values, in a fixed order. An attribute that
// the row lacks has none, so that the table's default fills its column. The error is a *RowError.
func (o *Outbox) Fields(row *Row) ([]Field, error) {
	f := &fields{o: o, l: o.layout, row: row, objects: map[string]map[string]any{}}
	f.add(o.layout.Columns.Payload, row.Payload, payloadKey) // first, because groups may be in it
	if row.ID != "" {
		f.add(o.layout.Columns.ID, row.ID, idKey)
	}
	f.addKind()
	f.addGroup()
	for i := range row.Attributes {
		f.addAttribute(row.Attributes[i].Name, row.Attributes[i].Value, attributesKey+"."+row.Attributes[i].Name)
	}
	f.addObjects()
	f.addTimes()
	f.addState()
	if f.err == nil {
		f.verify()
	}
	if f.err != nil {
		return nil, f.err
	}
	return f.list, nil
}

// fields collects the fields of a row, and the first error.
type fields struct {
	o       *Outbox
	l       *store.Layout
	row     *Row
	list    []Field
	objects map[string]map[string]any // columns that hold JSON objects
	err     error
}

func (f *fields) fail(key, remedy, format string, args ...any) {
	if f.err == nil {
		f.err = &RowError{Key: key, Problem: fmt.Sprintf(format, args...), Remedy: remedy}
	}
}

// field returns the field of a column, nil if the row has none.
func (f *fields) field(column string) *Field {
	if i := slices.IndexFunc(f.list, func(x Field) bool { return x.Column == column }); i >= 0 {
		return &f.list[i]
	}
	return nil
}

// add sets a column. Two keys may name one column, and then have the same value.
func (f *fields) add(column string, value any, key string) {
	if text, ok := value.(string); ok {
		f.requireText(text, key)
	}
	if have := f.field(column); have == nil {
		f.list = append(f.list, Field{column, value, key})
	} else if !bytes.Equal(text(have.Value), text(value)) {
		f.fail(key, "give both the same value", "differs from %s, which is column %s too", have.Key, column)
	}
}

// requireText rejects a text that a relay reads with other characters.
func (f *fields) requireText(text, key string) {
	if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		f.fail(key, "remove them", "has bytes that are not UTF-8, or U+0000, which no text column stores")
	}
}

// text returns a value as the relay reads it, as far as that does not depend on the column.
func text(value any) []byte {
	switch v := value.(type) {
	case []byte:
		return v
	case string:
		return []byte(v)
	}
	return fmt.Append(nil, value)
}

func (f *fields) addKind() {
	c, kind := &f.l.Columns, f.row.Kind
	switch {
	case c.Kind != "":
		if kind = cmp.Or(kind, f.o.of.Kind); kind != "" {
			f.add(c.Kind, kind, kindKey)
		}
	case kind == "":
	case f.l.HasAttribute(store.AttributeKind):
		f.addAttribute(store.AttributeKind, kind, kindKey)
	case kind != f.o.of.Kind:
		f.fail(kindKey, "name a column in columns.kind, or leave Row.Kind empty",
			"layout %s has no column for it, and rows of outbox %s are of kind %q", f.l.Name, f.o.of.Name, f.o.of.Kind)
	}
}

func (f *fields) addGroup() {
	names := f.l.GroupColumns()
	switch parts := f.row.Group; {
	case parts == nil:
	case names == nil:
		f.fail(groupKey, "name one in columns.group, or leave Row.Group nil", "layout %s has no column for it", f.l.Name)
	case len(parts) != len(names):
		f.fail(groupKey, "give a part for each of "+strings.Join(names, ", "), "has %d parts, want %d", len(parts), len(names))
	case len(f.l.GroupPath) == 0:
		for i, name := range names {
			f.add(name, parts[i], groupKey)
		}
	case !f.givesText(names[0]):
		f.addMember(names[0], f.l.GroupPath, parts[0], groupKey)
	}
}

// givesText reports whether the row has the whole text of a column, so that a group inside it can
// only be compared.
func (f *fields) givesText(column string) bool {
	return f.field(column) != nil || slices.ContainsFunc(f.l.Attributes, func(a store.AttributeColumn) bool {
		_, given := f.row.Attributes.Get(a.Name)
		return a.Column == column && !a.Spread && given
	})
}

// addAttribute sets an attribute in the column of its name, or as a member of a column that is
// spread.
func (f *fields) addAttribute(name, value, key string) {
	switch name {
	case store.AttributeTime:
		f.fail(key, "set Row.Created", "is the time of the row")
		return
	case store.AttributeUnreadable:
		f.fail(key, "choose another name", "is a name of the relay's own")
		return
	}
	spread := ""
	for i := range f.l.Attributes {
		a := &f.l.Attributes[i]
		if !a.Spread && a.Name == name {
			f.add(a.Column, value, key)
			return
		}
		if a.Spread && spread == "" {
			spread = a.Column
		}
	}
	if spread == "" {
		f.fail(key, "name one in columns.attributes", "layout %s has no column for it", f.l.Name)
		return
	}
	f.addMember(spread, []string{name}, value, key)
}

// addMember sets the value at a path in the JSON object of a column.
func (f *fields) addMember(column string, path []string, value, key string) {
	f.requireText(value, key)
	f.requireText(path[len(path)-1], key)
	in := f.objects[column]
	if in == nil {
		in = map[string]any{}
		f.objects[column] = in
	}
	for _, name := range path[:len(path)-1] {
		next, ok := in[name].(map[string]any)
		if !ok {
			next = map[string]any{}
			in[name] = next
		}
		in = next
	}
	last := path[len(path)-1]
	if have, taken := in[last]; taken && have != any(value) {
		f.fail(key, "give both the same value", "differs from another value for member %s of column %s", last, column)
	}
	in[last] = value
}

// addObjects sets the columns that hold JSON objects. The column of a group inside JSON always
// holds one, because tables do not let it be NULL.
func (f *fields) addObjects() {
	if group := f.l.Columns.Group; len(f.l.GroupPath) > 0 && f.objects[group] == nil && f.field(group) == nil {
		f.objects[group] = map[string]any{}
	}
	for _, column := range slices.Sorted(maps.Keys(f.objects)) {
		var object bytes.Buffer
		e := json.NewEncoder(&object)
		e.SetEscapeHTML(false)
		if err := e.Encode(f.objects[column]); err != nil {
			f.fail(attributesKey, "", "column %s: %v", column, err)
		}
		f.add(column, strings.TrimSuffix(object.String(), "\n"), attributesKey)
	}
}

// addTimes sets the columns with the time of the row, and those that the layout fills.
func (f *fields) addTimes() {
	for _, c := range f.l.Filled {
		switch c.Fill {
		case store.FillZero:
			f.add(c.Column, int64(0), "")
		case store.FillSize:
			f.add(c.Column, int64(len(f.row.Payload)), "")
		case store.FillKind:
			f.add(c.Column, f.o.of.Kind, "")
		case store.FillTime:
			f.add(c.Column, f.row.Created.UTC(), createdKey)
		case store.FillMillis:
			f.add(c.Column, f.row.Created.UnixMilli(), createdKey)
		}
	}
	for _, name := range TimeColumns(f.l) {
		if f.field(name) == nil {
			f.add(name, f.row.Created.UTC(), createdKey)
		}
	}
}

// TimeColumns returns the columns with the time of a row, that of the attribute first.
func TimeColumns(l *store.Layout) []string {
	var names []string
	for i := range l.Attributes {
		if l.Attributes[i].Name == store.AttributeTime {
			names = append(names, l.Attributes[i].Column)
		}
	}
	for _, name := range l.OrderBy {
		if name != l.Columns.ID && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// addState sets the columns of a row that nobody has tried.
func (f *fields) addState() {
	c := &f.l.Columns
	if c.Transaction != "" {
		f.add(c.Transaction, Transaction{}, "")
	}
	if f.l.State == store.StateNone {
		return
	}
	if columns.HasStatus(f.l) {
		value := columns.Stored(f.l, store.Pending)
		if n, ok := value.(int); ok {
			value = int64(n)
		}
		f.add(c.Status, value, "")
	}
	if c.RetryCount != "" {
		f.add(c.RetryCount, int64(0), "")
	}
}

// verify reads the row as the relay will, because a group or an attribute may come from JSON that
// the service wrote.
func (f *fields) verify() {
	content := func(column string) []byte {
		if x := f.field(column); x != nil {
			return text(x.Value)
		}
		return nil
	}
	if names := f.l.GroupColumns(); len(f.l.GroupPath) > 0 && f.row.Group != nil {
		if got := f.l.Group(content(names[0])); got != store.GroupOf(f.row.Group[0]) {
			f.fail(groupKey, "write the group there, or leave Row.Group nil", "differs from the one in column %s at %s", names[0], strings.Join(f.l.GroupPath, "."))
		}
	}
	read := f.l.ReadAttributes(func(i int) []byte { return content(f.l.Attributes[i].Column) })
	for i := range f.row.Attributes {
		want := &f.row.Attributes[i]
		if got, _ := read.Get(want.Name); got != want.Value {
			f.fail(attributesKey+"."+want.Name, "give each attribute once, under a name of its own", "another column or attribute has this name too")
		}
	}
}

// ContentColumns returns the columns with the content of a row, whether or not it has a value for
// each.
func ContentColumns(l *store.Layout) []string {
	list := append(l.GroupColumns(), l.Columns.Kind)
	for i := range l.Attributes {
		if l.Attributes[i].Name != store.AttributeTime {
			list = append(list, l.Attributes[i].Column)
		}
	}
	slices.Sort(list)
	return slices.DeleteFunc(slices.Compact(list), func(name string) bool { return name == "" })
}

// ParseCreated returns the time in the text of a time column, zero if it is none.
func ParseCreated(text string) time.Time {
	as := store.Layout{Attributes: []store.AttributeColumn{{Name: store.AttributeTime}}}
	value, _ := as.ReadAttributes(func(int) []byte { return []byte(text) }).Get(store.AttributeTime)
	at, _ := time.Parse(time.RFC3339Nano, value) // "" is no time
	return at
}
