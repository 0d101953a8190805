// Package template makes the texts of a message that depend on its row: an address, a header.
// A template is text with fields in braces, for example orders.{kind}.{attr.tenant}:
//
//   - {id}, {kind}, {group}, {type}: the row's id, kind, message group and event type
//   - {attr.NAME}: an attribute of the row
//   - {{ and }}: a brace
//   - with ParsePayload, {payload.NAME}: a member of a payload that is a JSON object
//
// The event type is an attribute too, and the kind may be one.
package template

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// Template is a parsed template. The zero value is the empty text.
type Template struct {
	// Texts and fields take turns, beginning with a text.
	texts  []string
	fields []field
}

// field is a field of a template.
type field struct {
	name      string // as written
	attribute string // the attribute that it stands for, "" for the others
	member    string // the member of the payload, "" for the others
}

// The fields that are no attributes.
const (
	fieldID    = "id"
	fieldGroup = "group"
)

// Prefixes of the fields of any attribute, and of any member of the payload.
const (
	attributePrefix = "attr."
	payloadPrefix   = "payload."
)

// Fields lists the fields for a text of an error.
const Fields = "{id}, {kind}, {group}, {type}, {attr.NAME}"

// Fault says what may be wrong with a text that must not be shown, as the errors of Parse do.
const Fault = "has a brace alone or an unknown field in braces; the fields are " + Fields + "; write {{ and }} for braces"

// Parse parses a template. The error begins with "has" and names the character position.
func Parse(text string) (Template, error) { return parse(text, parseField) }

// ParsePayload is Parse for texts that may have members of the payload.
func ParsePayload(text string) (Template, error) {
	return parse(text, func(name string) (field, error) {
		if member, ok := strings.CutPrefix(name, payloadPrefix); ok && member != "" {
			return field{name: name, member: member}, nil
		}
		return parseField(name)
	})
}

func parse(text string, fieldOf func(name string) (field, error)) (Template, error) {
	var t Template
	var literal strings.Builder
	for rest := text; rest != ""; {
		at := utf8.RuneCountInString(text[:len(text)-len(rest)]) + 1
		brace := strings.IndexAny(rest, "{}")
		switch {
		case brace < 0:
			literal.WriteString(rest)
			rest = ""
		case brace > 0:
			literal.WriteString(rest[:brace])
			rest = rest[brace:]
		case strings.HasPrefix(rest, "{{"), strings.HasPrefix(rest, "}}"):
			literal.WriteByte(rest[0])
			rest = rest[2:]
		case rest[0] == '}':
			return t, fmt.Errorf("has a } without a { at character %d; write }} for a brace", at)
		default:
			name, after, closed := strings.Cut(rest[1:], "}")
			if !closed {
				return t, fmt.Errorf("has a { without a } at character %d; write {{ for a brace", at)
			}
			f, err := fieldOf(name)
			if err != nil {
				return t, fmt.Errorf("has {%s} at character %d, %w", name, at, err)
			}
			t.texts, t.fields = append(t.texts, literal.String()), append(t.fields, f)
			literal.Reset()
			rest = after
		}
	}
	t.texts = append(t.texts, literal.String())
	return t, nil
}

// MustParse is Parse for a text that is known to be valid.
func MustParse(text string) Template {
	t, err := Parse(text)
	if err != nil {
		panic("template: " + err.Error())
	}
	return t
}

func parseField(name string) (field, error) {
	if attribute, ok := strings.CutPrefix(name, attributePrefix); ok && attribute != "" {
		return field{name: name, attribute: attribute}, nil
	}
	switch name {
	case fieldID, fieldGroup:
		return field{name: name}, nil
	case store.AttributeKind, store.AttributeType:
		return field{name: name, attribute: name}, nil
	}
	if near := store.Nearest(name, []string{fieldID, store.AttributeKind, fieldGroup, store.AttributeType}); near != "" {
		return field{}, fmt.Errorf("did you mean {%s}?", near)
	}
	return field{}, errors.New("which is no field; the fields are " + Fields)
}

// Fixed reports whether the template has no fields, so that every message has the same text.
func (t *Template) Fixed() bool { return len(t.fields) == 0 }

// Literals returns the texts between the fields.
func (t *Template) Literals() []string { return t.texts }

// Attributes returns the attributes that the template needs, each once.
func (t *Template) Attributes() (names []string) {
	for _, f := range t.fields {
		if f.attribute != "" && !slices.Contains(names, f.attribute) {
			names = append(names, f.attribute)
		}
	}
	return names
}

// Members returns the members of the payload that the template needs.
func (t *Template) Members() (names []string) {
	for _, f := range t.fields {
		if f.member != "" {
			names = append(names, f.member)
		}
	}
	return names
}

// FieldsOf returns the attributes and the group that the valid template under a key needs.
func FieldsOf(key, text string, required bool) (all []sink.Field) {
	t, err := ParsePayload(text)
	if err != nil {
		panic("template: " + err.Error())
	}
	if t.UsesGroup() {
		all = append(all, sink.Field{Key: key, Required: required})
	}
	for _, name := range t.Attributes() {
		all = append(all, sink.Field{Key: key, Attribute: name, Required: required})
	}
	return all
}

// UsesGroup reports whether the template needs the message group.
func (t *Template) UsesGroup() bool {
	return slices.ContainsFunc(t.fields, func(f field) bool { return f.name == fieldGroup })
}

// usualText is the size in bytes for which Text allocates at once. Subjects, routing keys and addresses
// are seldom longer.
const usualText = 64

// Text returns the text for a message, with each value escaped by escape. missing is the
// first field that has no value in this row, as written in the template; "" if all have one.
func (t *Template) Text(m *sink.Message, escape func(string) string) (text, missing string) {
	if len(t.fields) == 0 && len(t.texts) > 0 {
		return t.texts[0], ""
	}
	var b strings.Builder
	b.Grow(usualText)
	for i := range t.fields {
		value, ok := t.fields[i].value(m)
		if !ok {
			return "", t.fields[i].name
		}
		b.WriteString(t.texts[i])
		b.WriteString(escape(value))
	}
	if len(t.texts) > 0 {
		b.WriteString(t.texts[len(t.fields)])
	}
	return b.String(), ""
}

// value returns the value of the field in a message; false if it has none.
func (f *field) value(m *sink.Message) (value string, ok bool) {
	switch f.name {
	case fieldID:
		return m.ID, true
	case fieldGroup:
		return m.Group.Name, m.Group.Valid
	}
	if f.member != "" {
		text, ok := Member(m.Payload, f.member)
		return string(text), ok
	}
	if f.attribute == store.AttributeKind {
		return m.Kind, m.Kind != ""
	}
	return m.Attributes.Get(f.attribute)
}

// Member returns a member of a payload that is a JSON object, as store.ReadMembers does. ok is false if it
// is absent or null.
func Member(payload []byte, name string) (value []byte, ok bool) {
	values, ok := store.ReadMembers(payload, []string{name})
	if !ok || values[0] == nil {
		return nil, false
	}
	return values[0], true
}
