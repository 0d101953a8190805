package store_test

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/store"
)

// read returns the attributes of a row with these texts, "NULL" for NULL.
func read(columns []store.AttributeColumn, texts ...string) store.Attributes {
	l := store.Layout{Attributes: columns}
	return l.ReadAttributes(func(i int) []byte {
		if texts[i] == "NULL" {
			return nil
		}
		return []byte(texts[i])
	})
}

func TestReadAttributes(t *testing.T) {
	columns := []store.AttributeColumn{
		{Column: "event_type", Name: store.AttributeType}, {Column: "tenant", Name: "tenant"}, {Column: "headers", Spread: true},
	}
	type list = store.Attributes
	for _, tt := range []struct {
		name  string
		texts []string
		want  list
	}{
		{"values", []string{"Paid", "t1", `{"a": "b", "n": 1.50, "o": {"x": [1, 2]}, "t": true}`},
			list{{"type", "Paid"}, {"tenant", "t1"}, {"a", "b"}, {"n", "1.50"}, {"o", `{"x":[1,2]}`}, {"t", "true"}}},
		{"NULL and null give none", []string{"NULL", "", `{"a": null, "b": ""}`}, list{{"tenant", ""}, {"b", ""}}},
		{"the first of a name counts", []string{"Paid", "t1", `{"tenant": "t2", "a": 1, "a": 2}`}, list{{"type", "Paid"}, {"tenant", "t1"}, {"a", "1"}}},
		{"the mark of a source", []string{"NULL", "NULL", `{"sluicebox.unreadable": "x", "a": 1}`}, list{{"a", "1"}}},
		{"no object", []string{"NULL", "NULL", `["a"]`}, list{{"headers", `["a"]`}}},
		{"no JSON", []string{"NULL", "NULL", `a=b`}, list{{"headers", `a=b`}}},
		{"an empty text", []string{"NULL", "NULL", ""}, list{{"headers", ""}}},
		{"white space", []string{"NULL", "NULL", " \n{ \"a\" : 1 } "}, list{{"a", "1"}}},
		{"a time in JSON", []string{"NULL", "NULL", `{"time": "2026-11-24 01:02:03+01"}`}, list{{"time", "2026-11-24T00:02:03Z"}}},
		{"no time in JSON", []string{"NULL", "NULL", `{"time": "soon", "a": "b"}`}, list{{"a", "b"}}},
		{"bytes", []string{"a\x00b\xff\xfec", "NULL", "{\"\\u0000\": \"\\u0000\xff\"}"}, list{{"type", "a�b��c"}, {"�", "��"}}},
	} {
		if got := read(columns, tt.texts...); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	if got := read(nil); got != nil {
		t.Errorf("a layout without attributes: %q", got)
	}
}

// A time has the same attribute, whatever the database and the column's type.
func TestTimeAttribute(t *testing.T) {
	for text, want := range map[string]string{
		"2026-11-24 01:02:03":              "2026-11-24T01:02:03Z",
		"2026-11-24 01:02:03.123456":       "2026-11-24T01:02:03.123456Z",
		"2026-11-24 01:02:03.5+05:30":      "2026-11-23T19:32:03.5Z",
		"2026-11-24 01:02:03+00":           "2026-11-24T01:02:03Z",
		"2026-11-24 01:02:03-08":           "2026-11-24T09:02:03Z",
		"2026-11-24T01:02:03.25Z":          "2026-11-24T01:02:03.25Z",
		"2026-11-24T01:02:03.25+01:00":     "2026-11-24T00:02:03.25Z",
		"2026-11-24":                       "2026-11-24T00:00:00Z",
		"1795482123":                       "2026-11-24T01:02:03Z",
		"1795482123004":                    "2026-11-24T01:02:03.004Z",
		"1795482123004005":                 "2026-11-24T01:02:03.004005Z",
		"1795482123004005006":              "2026-11-24T01:02:03.004005006Z",
		"infinity":                         "",
		"0000-00-00 00:00:00":              "",
		"":                                 "",
		"2026-11-24 01:02:03 Europe/Paris": "",
	} {
		got, _ := read([]store.AttributeColumn{{Column: "at", Name: store.AttributeTime}}, text).Get("time")
		if got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// Any bytes give attributes of valid text.
func FuzzReadAttributes(f *testing.F) {
	f.Add([]byte(`{"a": "b", "c": {"d": [null]}}`))
	f.Add([]byte("{\"\x00\": \"\xff\"}"))
	f.Add([]byte("2026-11-24 01:02:03+00"))
	f.Fuzz(func(t *testing.T, text []byte) {
		columns := []store.AttributeColumn{{Column: "t", Name: store.AttributeTime}, {Column: "a", Name: "a"}, {Column: "s", Spread: true}}
		all := read(columns, string(text), string(text), string(text))
		for _, a := range all {
			if !utf8.ValidString(a.Name) || !utf8.ValidString(a.Value) || strings.ContainsRune(a.Name+a.Value, 0) {
				t.Errorf("%q gives %q", text, a)
			}
		}
	})
}
