package store_test

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/store"
)

func TestGroupOfAColumn(t *testing.T) {
	var l store.Layout
	if got := l.Group(nil); got.Valid {
		t.Errorf("group of NULL: got %q, want none", got.Name)
	}
	for _, text := range []string{"", "g", "null", `{"a":1}`, " x "} {
		if got := l.Group([]byte(text)); got != store.GroupOf(text) {
			t.Errorf("%q is the group %#v", text, got)
		}
	}
}

func TestGroupOfAPath(t *testing.T) {
	none := store.Group{}
	for _, c := range []struct {
		path, text string
		want       store.Group
	}{
		{"id", `{"id":"k-1"}`, store.GroupOf("k-1")},
		{"id", ` { "x" : [ {"id":"no"} , "]}" ] , "id" : "k" , "y" : {} } `, store.GroupOf("k")},
		{"customer.id", `{"customer":{"id":"c"},"id":"no"}`, store.GroupOf("c")},
		{"a.b.c", `{"a":{"b":{"c":"deep"}}}`, store.GroupOf("deep")},
		{`"a.b"`, `{"a":{"b":"no"},"a.b":"yes"}`, store.GroupOf("yes")},
		{`"\u0041 \"\\"`, `{"A \"\\":"yes"}`, store.GroupOf("yes")},
		{`""`, `{"":"empty key"}`, store.GroupOf("empty key")},
		{"schlüssel", `{"schl\u00fcssel":"gr\u00fc\u00df \ud83d\ude00 \" \\ \/"}`, store.GroupOf(`grüß 😀 " \ /`)},
		{"id", `{"id":""}`, store.GroupOf("")},
		// Numbers keep their text.
		{"id", `{"id":1}`, store.GroupOf("1")},
		{"id", `{"id":"1"}`, store.GroupOf("1")},
		{"id", `{"id":1.0}`, store.GroupOf("1.0")},
		{"id", `{"id": -0.50e+3 }`, store.GroupOf("-0.50e+3")},
		{"id", `{"id":12345678901234567890}`, store.GroupOf("12345678901234567890")},
		{"id", `{"id":9007199254740993,"x":1}`, store.GroupOf("9007199254740993")},
		{"id", `{"id":true}`, store.GroupOf("true")},
		{"id", `{"id":false }`, store.GroupOf("false")},
		// Objects and lists.
		{"id", `{"id":{ "b" : 1.0, "a" : "x y" } }`, store.GroupOf(`{"b":1.0,"a":"x y"}`)},
		{"id", `{"id":[ 1, [ ] , "]" ]}`, store.GroupOf(`[1,[],"]"]`)},
		// No group.
		{"id", `{"id":null}`, none},
		{"id", `{}`, none},
		{"id", `{"ID":"x","id ":"y"}`, none},
		{"a.b", `{"a":"b"}`, none},
		{"a.b", `{"a":[{"b":1}]}`, none},
		{"a.b", `{"a":null}`, none},
		{"a", `"a"`, none},
		{"a", `null`, none},
		{"a", `7`, none},
		// The last of a key counts.
		{"id", `{"id":"first","id":"last"}`, store.GroupOf("last")},
		{"a.id", `{"a":{"id":"first"},"a":{}}`, none},
		{"id", `{"id":"x","\u0069d":"y"}`, store.GroupOf("y")},
		// Invalid JSON is one group.
		{"id", ``, store.GroupOf("")},
		{"id", `{"id":"k"`, store.GroupOf("")},
		{"id", `{"id":"k"} x`, store.GroupOf("")},
		{"id", `{"id":NaN}`, store.GroupOf("")},
		{"id", "{\"id\":\"line\nbreak\"}", store.GroupOf("")},
		// Characters that no database stores.
		{"id", `{"id":"a\u0000b"}`, store.GroupOf("a\ufffdb")},
		{"id", `{"id":"\ud800"}`, store.GroupOf("\ufffd")},
		{"id", "{\"id\":\"\xff\"}", store.GroupOf("\ufffd")},
	} {
		path, err := store.ParseGroupPath(c.path)
		if err != nil {
			t.Fatal(err)
		}
		l := store.Layout{GroupPath: path}
		if got := l.Group([]byte(c.text)); got != c.want {
			t.Errorf("%s of %s is %#v, want %#v", c.path, c.text, got, c.want)
		}
	}

	l := store.Layout{GroupPath: []string{"id"}}
	if got := l.Group(nil); got.Valid {
		t.Errorf("group of NULL: got %q, want none", got.Name)
	}
}

// TestGroupIsACopy: the result does not share memory with the reused input buffer.
func TestGroupIsACopy(t *testing.T) {
	for _, value := range []string{`"text"`, "12", "[1]"} {
		text := []byte(`{"id":` + value + `}`)
		l := store.Layout{GroupPath: []string{"id"}}
		got := l.Group(text)
		clear(text)
		if got != store.GroupOf(strings.Trim(value, `"`)) {
			t.Errorf("after its buffer was cleared, the group of %s is %q", value, got.Name)
		}
	}
}

func TestParseGroupPath(t *testing.T) {
	for text, want := range map[string][]string{
		"id": {"id"}, "customer.id": {"customer", "id"}, "a-b._c.9": {"a-b", "_c", "9"}, "größe.名": {"größe", "名"},
		`"a.b".c`: {"a.b", "c"}, `a."b c"`: {"a", "b c"}, `""`: {""}, `"\"\\"`: {`"\`}, `"$"."*"`: {"$", "*"},
	} {
		if got, err := store.ParseGroupPath(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}

	for text, want := range map[string]string{
		"":         "at character 1, a key is missing",
		".a":       "at character 1, a key is missing",
		"a.":       "at character 3, a key is missing",
		"ü..b":     "at character 3, a key is missing",
		"$.a":      "at character 1, begin with the first key, without $",
		"a[0].b":   "at character 2, an array cannot be entered",
		"a.*":      "at character 3, an array cannot be entered",
		"a b":      `at character 2, unexpected ' '`,
		" a":       `at character 1, unexpected ' '`,
		`a."b`:     "at character 3, a quoted key has no closing quote",
		`"a\"`:     "at character 1, a quoted key has no closing quote",
		`"a\x"`:    "at character 1, a quoted key is not a JSON string",
		`"a"b`:     `at character 4, unexpected 'b'`,
		`a"b"`:     `at character 2, unexpected '"'`,
		"a,b":      `at character 2, unexpected ','`,
		"a.b\x00c": `at character 4, unexpected '\x00'`,
	} {
		if got, err := store.ParseGroupPath(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
	}
}

// FuzzGroup compares Group with the result of encoding/json.
func FuzzGroup(f *testing.F) {
	for _, text := range []string{
		`{"customer":{"id":"c"}}`, `{"customer":{"id":12345678901234567890}}`, `{"customer":{"id":{"a":[1, 2.0]}}}`,
		`{"customer":{"id":null}}`, `{"customer":[]}`, `{"customer":{"id":1},"customer":{"id":"\u0000\ud83d"}}`,
		`null`, `"x"`, ``, `{`, "\ufeff{}", ` [ {"customer" : "]"} ] `, "{\"customer\":{\"id\":\"\xff\"}}", `{"a\"":1,"customer":{"\u0069d":-1e-9}}`,
	} {
		f.Add([]byte(text), "customer.id")
	}

	f.Add([]byte("{\"customer\":{\"id\":{\"a\xff\":[\"\xfe\xc3\"]}}}"), "customer.id")
	f.Add([]byte(`{"a.b":{"":true}}`), `"a.b".""`)
	f.Fuzz(func(t *testing.T, text []byte, path string) {
		keys, err := store.ParseGroupPath(path)
		if err != nil {
			return
		}

		l := store.Layout{GroupPath: keys}
		before := bytes.Clone(text)
		got, want := l.Group(text), reference(before, keys)
		if got != want {
			t.Errorf("%s of %q is %#v, want %#v", path, before, got, want)
		}
		if !bytes.Equal(text, before) {
			t.Error("Group changed its input")
		}
		if strings.ContainsRune(got.Name, 0) || !utf8.ValidString(got.Name) {
			t.Errorf("group %q has characters that no database stores", got.Name)
		}

		var spread bytes.Buffer // white space does not change the group
		if json.Indent(&spread, before, "\t", " ") == nil && l.Group(spread.Bytes()) != got {
			t.Errorf("white space changes the group of %q", before)
		}
	})
}

func reference(text []byte, keys []string) store.Group {
	if !json.Valid(text) {
		return store.GroupOf("")
	}

	value := json.RawMessage(text)
	for _, key := range keys {
		var object map[string]json.RawMessage
		if json.Unmarshal(value, &object) != nil || object[key] == nil {
			return store.Group{}
		}
		value = object[key]
	}

	var s *string
	if json.Unmarshal(value, &s) == nil {
		if s == nil {
			return store.Group{}
		}
		return store.GroupOf(strings.ReplaceAll(*s, "\x00", "\ufffd"))
	}

	var compact bytes.Buffer
	if err := json.Compact(&compact, value); err != nil {
		panic(err)
	}

	return store.GroupOf(string([]rune(compact.String())))
}

func BenchmarkGroup(b *testing.B) {
	text := []byte(`{"customer":{"name":"x","id":"customer-1"},"lines":[` + strings.Repeat(`{"sku":"a-1","n":1.5},`, 40) + `{}]}`)
	l := store.Layout{GroupPath: []string{"customer", "id"}}
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if !l.Group(text).Valid {
			b.Fatal("no group")
		}
	}
}

// TestGroupOfColumns: rows share a group over several columns only if they share all texts,
// and each group gives its texts back.
func TestGroupOfColumns(t *testing.T) {
	for _, c := range []struct {
		texts []any // string, or nil for NULL
		want  string
	}{
		{[]any{"customer", "7"}, "customer/7"},
		{[]any{"a/b", "c"}, `a\/b/c`},
		{[]any{"a", "b/c"}, `a/b\/c`},
		{[]any{`a\`, `/`}, `a\\/\/`},
		{[]any{"", ""}, "/"},
		{[]any{nil, "7"}, `\N/7`},
		{[]any{`\N`, "7"}, `\\N/7`},
		{[]any{"customer", nil}, `customer/\N`},
		{[]any{"a", "b", "c"}, "a/b/c"},
	} {
		l := store.Layout{GroupRest: make([]string, len(c.texts)-1)}
		got := l.GroupOfColumns(func(i int) []byte {
			if c.texts[i] == nil {
				return nil
			}
			return []byte(c.texts[i].(string))
		})
		if got != store.GroupOf(c.want) {
			t.Errorf("%q: group %q, want %q", c.texts, got, c.want)
		}
		parts, ok := l.GroupParts(got)
		if !ok || len(parts) != len(c.texts) {
			t.Fatalf("%q: parts %v, %t", c.texts, parts, ok)
		}
		for i, p := range parts {
			if text, _ := c.texts[i].(string); p.Valid != (c.texts[i] != nil) || p.Name != text {
				t.Errorf("%q: part %d is %+v", c.texts, i, p)
			}
		}
	}
	two := store.Layout{GroupRest: []string{"b"}}
	if g := two.GroupOfColumns(func(int) []byte { return nil }); g.Valid {
		t.Errorf("group %q of a row without values", g)
	}
	for _, name := range []string{"a", "a/b/c", `a\x/b`, `\N/\N`, `a/b\`} {
		if parts, ok := two.GroupParts(store.GroupOf(name)); ok {
			t.Errorf("%q gives %v, but no row has that group", name, parts)
		}
	}
}

func FuzzGroupOfColumns(f *testing.F) {
	f.Add("a", "b")
	f.Add(`\N`, `/\`)
	two := store.Layout{GroupRest: []string{"b"}}
	f.Fuzz(func(t *testing.T, a, b string) {
		texts := []string{a, b}
		g := two.GroupOfColumns(func(i int) []byte { return []byte(texts[i]) })
		parts, ok := two.GroupParts(g)
		if !ok || parts[0] != store.GroupOf(a) || parts[1] != store.GroupOf(b) {
			t.Errorf("%q, %q became %q, and that %+v", a, b, g, parts)
		}
	})
}
