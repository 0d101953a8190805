package template_test

import (
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/template"
	"github.com/sluicebox/sluicebox/store"
)

func message() *sink.Message {
	return &sink.Message{
		ID: "7", Kind: "order", Group: store.GroupOf("a/b"),
		Attributes: store.Attributes{{Name: "type", Value: "Paid"}, {Name: "tenant", Value: "t 1"}, {Name: "empty"}},
	}
}

func asIs(s string) string { return s }

func TestText(t *testing.T) {
	for text, want := range map[string]string{
		"":                                  "",
		"plain":                             "plain",
		"{id}":                              "7",
		"x.{kind}.{type}.{group}":           "x.order.Paid.a/b",
		"{attr.tenant}{attr.tenant}-{id}é":  "t 1t 1-7é",
		"{{id}} {{{id}}} }}{{":              "{id} {7} }{",
		"[{attr.empty}]":                    "[]",
		"{attr.type}":                       "Paid",
		"https://h/{attr.tenant}?g={group}": "https://h/t 1?g=a/b",
	} {
		tpl, err := template.Parse(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if got, missing := tpl.Text(message(), asIs); got != want || missing != "" {
			t.Errorf("%q: %q, missing %q; want %q", text, got, missing, want)
		}
	}
}

func TestEscape(t *testing.T) {
	tpl := template.MustParse("/x y/{group}/{attr.tenant}")
	if got, _ := tpl.Text(message(), url.PathEscape); got != "/x y/a%2Fb/t%201" {
		t.Errorf("%q: only values are escaped", got)
	}
}

func TestMissingValue(t *testing.T) {
	m := message()
	m.Group, m.Kind = store.Group{}, ""
	for text, want := range map[string]string{
		"{id} {attr.nope}": "attr.nope", "{group}": "group", "{kind}": "kind", "{id}": "", "plain": "",
	} {
		tpl := template.MustParse(text)
		if got, missing := tpl.Text(m, asIs); missing != want || missing != "" && got != "" {
			t.Errorf("%q: %q, missing %q, want %q", text, got, missing, want)
		}
	}
	// A kind that has a column is the attribute; else it is the outbox's.
	m.Kind, m.Attributes = "outbox", store.Attributes{{Name: "kind", Value: "column"}}
	tpl := template.MustParse("{kind}")
	if got, _ := tpl.Text(m, asIs); got != "column" {
		t.Errorf("kind %q", got)
	}
}

func TestInvalidTemplate(t *testing.T) {
	for text, want := range map[string]string{
		"a{id":      "has a { without a } at character 2; write {{ for a brace",
		"é}":        "has a } without a { at character 2; write }} for a brace",
		"é{typ}":    "has {typ} at character 2, did you mean {type}?",
		"{tenant}":  "has {tenant} at character 1, which is no field; the fields are {id}, {kind}, {group}, {type}, {attr.NAME}",
		"{}":        "has {} at character 1, which is no field",
		"{attr.}":   "has {attr.} at character 1, which is no field",
		"{a{id}b}":  "has {a{id} at character 1, did you mean {id}?",
		"{id}{id}}": "has a } without a { at character 9",
	} {
		if _, err := template.Parse(text); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

func TestAttributes(t *testing.T) {
	tpl := template.MustParse("{id}{type}{attr.a}{attr.b}{attr.a}{group}")
	if got := tpl.Attributes(); !slices.Equal(got, []string{"type", "a", "b"}) || tpl.Fixed() {
		t.Errorf("attributes %q, fixed %t", got, tpl.Fixed())
	}
	if tpl := template.MustParse("a"); !tpl.Fixed() {
		t.Error("a text without fields is not fixed")
	}
}

// A text that parses gives itself again where each field stands for itself.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"a{id}b", "{{}}", "{attr.x.y}", "{", "}", "{type}{group}{kind}"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		tpl, err := template.Parse(text)
		if err != nil {
			return
		}
		m := &sink.Message{ID: "{id}", Group: store.GroupOf("{group}"), Kind: "{kind}", Attributes: store.Attributes{{Name: "type", Value: "{type}"}}}
		for _, name := range tpl.Attributes() {
			if name != "type" && name != "kind" {
				m.Attributes = append(m.Attributes, store.Attribute{Name: name, Value: "{attr." + name + "}"})
			}
		}
		got, missing := tpl.Text(m, func(s string) string { return s })
		want := strings.NewReplacer("{{", "{", "}}", "}", "{attr.type}", "{type}", "{attr.kind}", "{kind}").Replace(text)
		if strings.Contains(text, "{attr.") {
			return // names may have braces of their own
		}
		if missing != "" || got != want {
			t.Errorf("%q gives %q, missing %q", text, got, missing)
		}
	})
}
