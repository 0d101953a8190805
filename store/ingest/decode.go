package ingest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/jsontext"
	"github.com/sluicebox/sluicebox/store/outbox"
)

// Limits of a request. Readers of a row compare each of its attributes with the others.
const (
	maxRows          = 1000
	maxAttributes    = 256 // of a row
	maxAttributeName = 255 // bytes
)

// decodePostbox decodes the body of the postbox route: one message.
func decodePostbox(body []byte) ([]outbox.Row, error) {
	text, err := validate(body)
	if err != nil {
		return nil, err
	}
	d := decoder{body: body}
	row := outbox.Row{Group: make([]string, 2)}
	d.object(text, []member{
		{"id", true, d.into(&row.ID)},
		{"tenantId", true, func(value []byte) { row.Group[0] = d.integer(value) }},
		{"partitionId", true, d.into(&row.Group[1])},
		{"type", true, func(value []byte) { row.Kind = d.word(value, "EVENT", "DISPATCH_JOB") }},
		{"payload", true, func(value []byte) { row.Payload = d.text(value) }},
		{"headers", false, func(value []byte) { row.Attributes = d.attributes(value) }},
	})
	if d.err != nil {
		return nil, d.err
	}
	return []outbox.Row{row}, nil
}

// decodeRows decodes the body of the generic route: a list of rows. groups is the number of parts
// of a group.
func decodeRows(body []byte, groups int) ([]outbox.Row, error) {
	text, err := validate(body)
	if err != nil {
		return nil, err
	}
	d := decoder{body: body}
	if text[0] != '[' {
		return nil, d.failAt(text, "must be a list of rows: [{\"id\": …, \"payload\": …}]")
	}
	var rows []outbox.Row
	seen := map[string]int{}
	for value := range jsontext.Elements(text) {
		if len(rows) == maxRows {
			return nil, &fault{status: http.StatusRequestEntityTooLarge, text: fmt.Sprintf("body: more than %d rows; send them in several requests", maxRows)}
		}
		d.row = fmt.Sprintf("[%d]", len(rows))
		row := d.decodeRow(value, groups)
		if first, twice := seen[row.ID]; twice && d.err == nil {
			d.key = "id"
			_ = d.failAt(value, "is that of row [%d]; send each row once", first)
		}
		if d.err != nil {
			return nil, d.err
		}
		seen[row.ID] = len(rows)
		rows = append(rows, row)
	}
	if rows == nil {
		return nil, d.failAt(text, "must have at least one row")
	}
	return rows, nil
}

// decodeRow decodes one row of a list.
func (d *decoder) decodeRow(value []byte, groups int) (row outbox.Row) {
	d.object(value, []member{
		{"id", true, d.into(&row.ID)},
		{"kind", false, d.into(&row.Kind)},
		{"group", false, func(value []byte) { row.Group = d.group(value, groups) }},
		{"payload", true, func(value []byte) { row.Payload = d.payload(value) }},
		{"attributes", false, func(value []byte) { row.Attributes = d.attributes(value) }},
	})
	return row
}

// validate checks that a body is JSON in UTF-8, and returns it from its first value on.
func validate(body []byte) ([]byte, error) {
	if !utf8.Valid(body) {
		at := 0
		for at < len(body) {
			r, size := utf8.DecodeRune(body[at:])
			if r == utf8.RuneError && size == 1 {
				break
			}
			at += size
		}
		return nil, &fault{status: http.StatusBadRequest, text: fmt.Sprintf("body: not UTF-8 at byte %d", at)}
	}
	if json.Valid(body) {
		return bytes.TrimLeft(body, jsontext.Space), nil
	}
	err := json.Unmarshal(body, new(json.RawMessage))
	at := int64(len(body))
	if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
		at = syntax.Offset
	}
	return nil, &fault{status: http.StatusBadRequest, text: fmt.Sprintf("body: not JSON at byte %d: %v", at, err)}
}

// decoder decodes rows of a body that is valid JSON. After its first error the rest is undefined.
// It reads no member whose name differs in case, and none twice, unlike encoding/json.
type decoder struct {
	body []byte
	row  string // the place of the row in a list, for example [3]
	key  string // of the member that is decoded
	err  error
}

// member is a member of an object. It may be absent or null unless it is required.
type member struct {
	name     string
	required bool
	decode   func(value []byte)
}

// failAt records the first error, about the value at the start of text.
func (d *decoder) failAt(text []byte, format string, args ...any) error {
	if d.err == nil {
		where := strings.TrimPrefix(d.row+"."+d.key, ".")
		if d.key == "" {
			where = d.row
		}
		if where == "" {
			where = "body"
		}
		d.err = &fault{status: http.StatusBadRequest, text: fmt.Sprintf("%s: %s (byte %d)", where, fmt.Sprintf(format, args...), len(d.body)-len(text))}
	}
	return d.err
}

// object decodes the object at the start of text.
func (d *decoder) object(text []byte, members []member) {
	d.key = ""
	if text[0] != '{' {
		_ = d.failAt(text, "must be an object")
		return
	}
	var seen []string
	for key, value := range jsontext.Members(text) {
		name := string(key)
		i := slices.IndexFunc(members, func(m member) bool { return m.name == name })
		d.key = name
		switch {
		case i < 0:
			d.key = ""
			_ = d.failAt(value, "unknown field %s", d.unknown(name, members))
		case slices.Contains(seen, name):
			_ = d.failAt(value, "is given twice")
		case value[0] == 'n' && !members[i].required:
		default:
			members[i].decode(value)
		}
		if d.err != nil {
			return
		}
		seen = append(seen, name)
	}
	for i := range members {
		if m := &members[i]; m.required && !slices.Contains(seen, m.name) {
			d.key = m.name
			_ = d.failAt(text, "is required")
		}
	}
}

// unknown quotes the name of an unknown field, with the field that may be meant.
func (d *decoder) unknown(name string, members []member) string {
	known := make([]string, len(members))
	for i := range members {
		known[i] = members[i].name
	}
	const longest = 64
	if near := store.Nearest(name, known); near != "" {
		return fmt.Sprintf("%q; did you mean %s?", name, near)
	}
	if len(name) > longest {
		name = strings.ToValidUTF8(name[:longest], "") + "…"
	}
	return fmt.Sprintf("%q; the fields are %s", name, strings.Join(known, ", "))
}

// into decodes a text that is not empty.
func (d *decoder) into(to *string) func(value []byte) {
	return func(value []byte) {
		*to = string(d.text(value))
		if *to == "" {
			_ = d.failAt(value, "must not be empty")
		}
	}
}

// text returns the characters of a string. A database stores no U+0000 in a text, and half a
// surrogate pair is no character.
func (d *decoder) text(value []byte) []byte {
	if value[0] != '"' {
		_ = d.failAt(value, "must be a string")
		return nil
	}
	quoted := value[:jsontext.StringEnd(value)]
	characters := jsontext.Unquote(quoted)
	if at := bytes.IndexByte(characters, 0); at >= 0 {
		_ = d.failAt(value, "has U+0000 at its byte %d, which no database keeps in a text", at)
	}
	if bytes.ContainsRune(characters, utf8.RuneError) && halfSurrogate(quoted) {
		_ = d.failAt(value, "has half a surrogate pair, which is no character")
	}
	return characters
}

// halfSurrogate reports whether a JSON string has an escaped surrogate without its other half.
func halfSurrogate(quoted []byte) bool {
	for i := 0; i < len(quoted); i++ {
		if quoted[i] != '\\' {
			continue
		}
		if i++; quoted[i] != 'u' {
			continue
		}
		switch unit := strings.ToLower(string(quoted[i+1 : i+5])); {
		case unit[0] != 'd' || unit[1] < '8':
			i += 4
		case unit[1] < 'c' && lowSurrogate(quoted[i+5:]):
			i += 10
		default:
			return true
		}
	}
	return false
}

// lowSurrogate reports whether text begins with the escape of a second half.
func lowSurrogate(text []byte) bool {
	const escape = `\udc00`
	if len(text) < len(escape) {
		return false
	}
	unit := strings.ToLower(string(text[:len(escape)]))
	return strings.HasPrefix(unit, `\ud`) && unit[3] >= 'c' && unit[3] <= 'f'
}

// integer returns the digits of a number that fits 64 bits.
func (d *decoder) integer(value []byte) string {
	var n int64
	if err := json.Unmarshal(value[:jsontext.ValueEnd(value)], &n); err != nil || value[0] == 'n' {
		_ = d.failAt(value, "must be a whole number of at most 64 bits")
	}
	return fmt.Sprint(n)
}

// word returns one of some words.
func (d *decoder) word(value []byte, words ...string) string {
	word := string(d.text(value))
	if !slices.Contains(words, word) {
		_ = d.failAt(value, "must be %s", strings.Join(words, " or "))
	}
	return word
}

// payload returns the characters of a string, or the JSON text of an object or a list as it is.
func (d *decoder) payload(value []byte) []byte {
	switch value[0] {
	case '{', '[':
		return value[:jsontext.ValueEnd(value)]
	case '"':
		return d.text(value)
	}
	_ = d.failAt(value, "must be a string, an object or a list")
	return nil
}

// group returns the parts of a group: a string, or a list where the group has several parts.
func (d *decoder) group(value []byte, parts int) (group []string) {
	if value[0] == '[' {
		for part := range jsontext.Elements(value) {
			group = append(group, string(d.text(part)))
		}
	} else {
		group = append(group, string(d.text(value)))
	}
	if len(group) != parts {
		_ = d.failAt(value, "has %d parts; the groups of this outbox have %d", len(group), parts)
	}
	return group
}

// attributes returns the members of an object: of a string its characters, and of anything else
// its JSON text.
func (d *decoder) attributes(value []byte) (all store.Attributes) {
	if value[0] != '{' {
		_ = d.failAt(value, "must be an object")
		return nil
	}
	of := d.key
	seen := map[string]bool{}
	for key, member := range jsontext.Members(value) {
		name := string(key)
		d.key = of + "." + name
		switch {
		case name == "" || len(name) > maxAttributeName || strings.ContainsRune(name, 0) || strings.ContainsRune(name, utf8.RuneError):
			d.key = of
			_ = d.failAt(member, "has a name that is empty, longer than %d bytes, or with U+0000 or U+FFFD", maxAttributeName)
		case len(seen) == maxAttributes:
			d.key = of
			_ = d.failAt(member, "has more than %d members", maxAttributes)
		case seen[name]:
			_ = d.failAt(member, "is given twice")
		case member[0] == 'n':
		case member[0] == '"':
			all = append(all, store.Attribute{Name: name, Value: string(d.text(member))})
		default:
			all = append(all, store.Attribute{Name: name, Value: string(member[:jsontext.ValueEnd(member)])})
		}
		if d.err != nil {
			return nil
		}
		seen[name] = true
	}
	return all
}
