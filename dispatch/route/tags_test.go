package route_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/dispatch/route"
	"github.com/sluicebox/sluicebox/store"
)

func TestTags(t *testing.T) {
	for text, want := range map[string][]string{
		"":                                      nil,
		"  ":                                    nil,
		"a":                                     {"a"},
		"a=1, b ,,c":                            {"a=1", "b", "c"},
		"{}":                                    nil,
		"{a,b=2}":                               {"a", "b=2"},
		`{"a b","x,y","{z}",""}`:                {"a b", "x,y", "{z}", ""},
		`{"q\"q","b\\s","\\","\"a"}`:            {`q"q`, `b\s`, `\`, `"a`},
		`{a,NULL,null,"NULL"}`:                  {"a", "NULL"},
		"{{a,b},{c,d}}":                         {"a", "b", "c", "d"},
		"[0:1]={a,b}":                           {"a", "b"},
		"{a":                                    {"{a"},
		"{a}}":                                  {"{a}}"},
		"{a}b":                                  {"{a}b"},
		`{"a":"b"}`:                             {`{"a":"b"}`},
		"[]":                                    nil,
		`["a","b=2"]`:                           {"a", "b=2"},
		"[ \"a\" ,\n\"b\" ]":                    {"a", "b"},
		`["a\"b","\u00e9",1,true,null,{"k":1}]`: {`a"b`, "é", "1", "true", `{"k":1}`},
		"[a]":                                   {"[a]"},
		`["a"`:                                  {`["a"`},
	} {
		if got := route.AppendTags(nil, text); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
	if got := route.AppendTags([]string{"x"}, "{a"); !slices.Equal(got, []string{"x", "{a"}) {
		t.Errorf("tags are not appended: %q", got)
	}
}

// arrayText writes tags as PostgreSQL does (array_out).
func arrayText(tags []string) string {
	var parts []string
	for _, tag := range tags {
		if tag == "" || strings.EqualFold(tag, "NULL") || strings.ContainsAny(tag, "{},\"\\ \t\n\r\v\f") {
			tag = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(tag) + `"`
		}
		parts = append(parts, tag)
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// FuzzTags: any text has tags, and tags written as an array of PostgreSQL or of JSON are read
// again.
func FuzzTags(f *testing.F) {
	for _, text := range []string{"", "a", "a,b=1", "{a,b}", `{"a\"b",NULL}`, `["a"]`, `["a\u0000",1]`, "[0:1]={a}", `{"a":1}`, "{{a},{b}}", "{\"", "[\"\\"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		tags := route.AppendTags(nil, text)
		if got := route.AppendTags(nil, arrayText(tags)); !slices.Equal(got, tags) {
			t.Errorf("array %s: got %q, want %q", arrayText(tags), got, tags)
		}
		encoded, err := json.Marshal(tags)
		if err != nil {
			t.Fatal(err)
		}
		var want []string // json replaces what is not UTF-8
		if err := json.Unmarshal(encoded, &want); err != nil {
			t.Fatal(err)
		}
		if len(tags) > 0 {
			if got := route.AppendTags(nil, string(encoded)); !slices.Equal(got, want) {
				t.Errorf("JSON %s: got %q, want %q", encoded, got, want)
			}
		}
	})
}

// naive is the definition of a rule, without a parser: the tags are given.
func naive(r *route.Rule, it *store.Item, tags map[string][]string) bool {
	value := func(name string) string { v, _ := it.Attributes.Get(name); return v }
	from := r.TagsFrom
	if from == "" {
		from = "tags"
	}
	has := func(want string) bool {
		for _, tag := range tags[from] {
			key, _, _ := strings.Cut(tag, "=")
			if tag == want || !strings.Contains(want, "=") && key == want {
				return true
			}
		}
		return false
	}
	ok := (len(r.Kind) == 0 || slices.Contains(r.Kind, it.OwnKind())) && (len(r.Type) == 0 || slices.Contains(r.Type, value("type")))
	for name, values := range r.Attributes {
		ok = ok && slices.Contains(values, value(name))
	}
	for _, tag := range r.TagsAll {
		ok = ok && has(tag)
	}
	for _, tag := range r.TagsExact {
		ok = ok && slices.Contains(tags[from], tag)
	}
	return ok && (len(r.TagsAny) == 0 || slices.ContainsFunc(r.TagsAny, has))
}

// TestMatchesAsDefined compares Match, Explain and Covers with the definition.
func TestMatchesAsDefined(t *testing.T) {
	words := rapid.SampledFrom([]string{"a", "b", "c"})
	tag := rapid.SampledFrom([]string{"a", "b", "c", "a=1", "a=2", "b=1", "a b=1", `q"x`})
	some := func(of *rapid.Generator[string]) *rapid.Generator[[]string] { return rapid.SliceOfN(of, 0, 2) }
	encode := []func([]string) string{arrayText, func(tags []string) string { text, _ := json.Marshal(tags); return string(text) },
		func(tags []string) string { return strings.Join(tags, ", ") }}
	rapid.Check(t, func(t *rapid.T) {
		rules := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) route.Rule {
			r := route.Rule{
				Kind: some(words).Draw(t, "kind"), Type: some(words).Draw(t, "type"),
				TagsAll: some(tag).Draw(t, "all"), TagsAny: some(tag).Draw(t, "any"), TagsExact: some(tag).Draw(t, "exact"),
			}
			if rapid.Bool().Draw(t, "attribute") {
				r.Attributes = map[string][]string{"x": rapid.SliceOfN(words, 1, 2).Draw(t, "values")}
			}
			if len(r.TagsAll)+len(r.TagsAny)+len(r.TagsExact) > 0 {
				r.TagsFrom = rapid.SampledFrom([]string{"", "tags", "labels"}).Draw(t, "from")
			}
			return r
		}), 1, 4).Draw(t, "rules")
		tags := map[string][]string{}
		it := row(words.Draw(t, "lane"))
		add := func(name, value string) {
			it.Attributes = append(it.Attributes, store.Attribute{Name: name, Value: value})
		}
		for _, name := range []string{"kind", "type", "x"} {
			if rapid.Bool().Draw(t, name) {
				add(name, words.Draw(t, "value"))
			}
		}
		for _, name := range []string{"tags", "labels"} {
			tags[name] = rapid.SliceOfN(tag, 0, 3).Draw(t, name)
			add(name, rapid.SampledFrom(encode).Draw(t, "form")(tags[name]))
		}

		var want store.LegSet
		for i := range rules {
			if naive(&rules[i], it, tags) {
				want |= 1 << i
			}
			for j := range rules {
				if rules[i].Covers(&rules[j]) && naive(&rules[j], it, tags) && !naive(&rules[i], it, tags) {
					t.Errorf("%+v covers %+v, but only the second matches %+v", rules[i], rules[j], it)
				}
			}
		}
		r, err := route.Compile(rules, false)
		if err != nil {
			t.Fatal(err)
		}
		check(t, r, it, want)
		if r, err = route.Compile(rules, true); err == nil {
			check(t, r, it, want&-want)
		}
	})
}

// check compares a router with the routes that a row takes.
func check(t *rapid.T, r *route.Router, it *store.Item, want store.LegSet) {
	if got := r.Match(it); got != want {
		t.Errorf("%+v: got routes %b, want %b", it, got, want)
	}
	for i, reason := range r.Explain(it) {
		if reason.Matched != (want>>i&1 == 1) || reason.Text == "" {
			t.Errorf("%+v: route %d is explained as %+v, want matched %t", it, i, reason, !reason.Matched)
		}
	}
}
