// Package template makes the texts of a message that depend on its row: an address, a header.
// A template is text with fields in braces, for example orders.{kind}:
//
//   - {id}, {kind}, {group}: the row's id, kind and message group
//   - {{ and }}: a brace
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
	texts, fields []string
}

// Fields lists the fields for a text of an error.
const Fields = "{id}, {kind}, {group}"

// Fault says what may be wrong with a text that must not be shown, as the errors of Parse do.
const Fault = "has a brace alone or an unknown field in braces; the fields are " + Fields + "; write {{ and }} for braces"

// Parse parses a template. The error begins with "has" and names the character position.
func Parse(text string) (Template, error) {
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
			if err := checkField(name); err != nil {
				return t, fmt.Errorf("has {%s} at character %d, %w", name, at, err)
			}
			t.texts, t.fields = append(t.texts, literal.String()), append(t.fields, name)
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

func checkField(name string) error {
	known := []string{"id", "kind", "group"}
	if slices.Contains(known, name) {
		return nil
	}
	if near := store.Nearest(name, known); near != "" {
		return fmt.Errorf("did you mean {%s}?", near)
	}
	return errors.New("which is no field; the fields are " + Fields)
}

// Fixed reports whether the template has no fields, so that every message has the same text.
func (t *Template) Fixed() bool { return len(t.fields) == 0 }

// Literals returns the texts between the fields.
func (t *Template) Literals() []string { return t.texts }

// Text returns the text for a message, with each value escaped by escape. missing is the
// first field that has no value in this row; "" if all have one.
func (t *Template) Text(m *sink.Message, escape func(string) string) (text, missing string) {
	var b strings.Builder
	for i, name := range t.fields {
		value, ok := m.ID, true
		switch name {
		case "kind":
			value, ok = m.Kind, m.Kind != ""
		case "group":
			value, ok = m.Group.Name, m.Group.Valid
		}
		if !ok {
			return "", name
		}
		b.WriteString(t.texts[i])
		b.WriteString(escape(value))
	}
	if len(t.texts) > 0 {
		b.WriteString(t.texts[len(t.fields)])
	}
	return b.String(), ""
}
