package store

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/store/internal/jsontext"
)

// Names of attributes with a meaning of their own.
const (
	// AttributeKind is what the row is about, for example the aggregate's type.
	AttributeKind = "kind"
	// AttributeType is the type of the event, for example OrderPaid.
	AttributeType = "type"
	// AttributeTime is when the event happened, as RFC 3339 in UTC.
	AttributeTime = "time"
)

// AttributeUnreadable says why the source could not read a row as its layout says, for example
// because a message is not JSON. Such a row is not sent: it becomes FAILED with this reason.
const AttributeUnreadable = "sluicebox.unreadable"

// Attribute is a named value of a row beside its payload.
type Attribute struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Attributes are the attributes of a row, in the order of the layout. A column that is NULL
// gives none.
type Attributes []Attribute

// Get returns the value of an attribute.
func (a Attributes) Get(name string) (value string, ok bool) {
	for i := range a {
		if a[i].Name == name {
			return a[i].Value, true
		}
	}
	return "", false
}

// Bytes returns the memory used by the names and values.
func (a Attributes) Bytes() (sum int) {
	for i := range a {
		sum += len(a[i].Name) + len(a[i].Value)
	}
	return sum
}

// AttributeColumn is a column that gives a row attributes.
type AttributeColumn struct {
	Column string
	// Name is the name of the attribute. It is empty if Spread is set.
	Name string
	// Spread makes each member of a JSON object an attribute of its own. A column with any
	// other content gives one attribute with the name of the column.
	Spread bool
}

// Key is the configuration key that names the column.
func (c *AttributeColumn) Key() string {
	switch c.Name {
	case AttributeKind, AttributeType, AttributeTime:
		return "columns." + c.Name
	}
	return "columns.attributes"
}

// HasAttribute reports whether rows of the layout can have an attribute. A column that is
// spread may give any.
func (l *Layout) HasAttribute(name string) bool {
	return slices.ContainsFunc(l.Attributes, func(c AttributeColumn) bool { return c.Spread || c.Name == name })
}

// KindColumn returns the column of the kind, in the lane or as an attribute, "" if none.
func (l *Layout) KindColumn() string {
	for i := range l.Attributes {
		if l.Attributes[i].Name == AttributeKind {
			return l.Attributes[i].Column
		}
	}
	return l.Columns.Kind
}

// ReadKind returns the attribute kind of a row whose kind column holds text, nil for NULL.
// There is none if the kind belongs to the lane.
func (l *Layout) ReadKind(text []byte) Attributes {
	return l.ReadAttributes(func(i int) []byte {
		if l.Attributes[i].Name == AttributeKind {
			return text
		}
		return nil
	})
}

// ReadAttributes returns the attributes of a row. text returns the content of a column, nil
// for NULL, by its index in l.Attributes. Every reader of a row calls it, so that the log and
// the table give a row the same attributes.
//
//   - Each byte that is not UTF-8 becomes U+FFFD, as does U+0000.
//   - The value of a spread member is the characters of a string, and the JSON text of
//     anything else. A member that is null gives none.
//   - Of two attributes with one name, the first counts. A column that is spread comes last.
//   - The attribute time becomes RFC 3339 in UTC if it is a time; a time without a zone is
//     UTC, and a number counts the seconds, milliseconds, microseconds or nanoseconds
//     since 1970. Otherwise there is none.
func (l *Layout) ReadAttributes(text func(i int) []byte) Attributes {
	if len(l.Attributes) == 0 {
		return nil
	}
	all := make(Attributes, 0, len(l.Attributes))
	add := func(name, value string) {
		if name == AttributeTime {
			at, ok := parseTime(value)
			if !ok {
				return
			}
			value = at.UTC().Format(time.RFC3339Nano)
		}
		if _, taken := all.Get(name); !taken {
			all = append(all, Attribute{name, value})
		}
	}
	for i := range l.Attributes {
		c := &l.Attributes[i]
		value := text(i)
		switch {
		case value == nil:
		case c.Spread:
			spread(value, c.Column, add)
		default:
			add(c.Name, cleanText(value))
		}
	}
	return all
}

// spread adds the members of the JSON object in text.
func spread(text []byte, column string, add func(name, value string)) {
	value := bytes.TrimLeft(text, jsontext.Space)
	if !json.Valid(text) || value[0] != '{' {
		add(column, cleanText(text))
		return
	}
	for name, member := range jsontext.Members(value) {
		if v := groupOfJSON(member); v.Valid && string(name) != AttributeUnreadable { // which is not the service's to set
			add(cleanText(name), v.Name)
		}
	}
}

// cleanText returns text as UTF-8 without U+0000, which some databases cannot store.
func cleanText(text []byte) string {
	s := string(text)
	if strings.IndexByte(s, 0) < 0 && utf8.ValidString(s) {
		return s
	}
	return strings.ReplaceAll(string([]rune(s)), "\x00", string(utf8.RuneError))
}

// parseTime parses a time as text, in the forms in which databases write it.
func parseTime(text string) (at time.Time, ok bool) {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return epochTime(n), true
	}
	text = strings.Replace(text, "T", " ", 1)
	for _, form := range []string{
		"2006-01-02 15:04:05.999999999Z07:00", "2006-01-02 15:04:05.999999999Z07", "2006-01-02 15:04:05.999999999",
		"2006-01-02",
	} {
		if at, err := time.Parse(form, text); err == nil {
			return at, true
		}
	}
	return time.Time{}, false
}

// epochTime is the time that lies n units after 1970. The unit is the one that puts it before
// the year 5138, when seconds take a twelfth digit.
func epochTime(n int64) time.Time {
	const limit = 1e11
	switch size := max(n, -n); {
	case size < limit:
		return time.Unix(n, 0)
	case size < limit*1e3:
		return time.UnixMilli(n)
	case size < limit*1e6:
		return time.UnixMicro(n)
	}
	return time.Unix(0, n)
}
