package template_test

import (
	"fmt"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/template"
	"github.com/sluicebox/sluicebox/store"
)

func message() *sink.Message {
	return &sink.Message{
		ID: "7", Kind: "order", Group: store.GroupOf("a/b c"),
		Attributes: store.Attributes{{Name: "type", Value: "Paid"}, {Name: "tenant", Value: "t 1"}, {Name: "empty"}},
	}
}

func asIs(s string) string { return s }

func TestText(t *testing.T) {
	for text, want := range map[string]string{
		"":                            "",
		"plain":                       "plain",
		"{id}":                        "7",
		"x.{kind}.{group}":            "x.order.a/b c",
		"{id}{id}-{kind}é":            "77-orderé",
		"{{id}} {{{id}}} }}{{":        "{id} {7} }{",
		"https://h/{id}?g={group}&h":  "https://h/7?g=a/b c&h",
		"{kind}.{type}.{attr.type}":   "order.Paid.Paid",
		"{attr.tenant}[{attr.empty}]": "t 1[]",
		"{attr.kind}":                 "order",
	} {
		tpl, err := template.Parse(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if got, missing := tpl.Text(message(), asIs); got != want || missing != "" {
			t.Errorf("%q: %q, missing %q; want %q", text, got, missing, want)
		}
		if tpl.Fixed() != !strings.ContainsAny(strings.NewReplacer("{{", "", "}}", "").Replace(text), "{}") {
			t.Errorf("%q: fixed is %t", text, tpl.Fixed())
		}
	}
	var zero template.Template
	if got, missing := zero.Text(message(), asIs); got != "" || missing != "" {
		t.Errorf("the zero value gives %q, missing %q", got, missing)
	}
}

func TestEscape(t *testing.T) {
	tpl := template.MustParse("/x y/{group}/{id}")
	if got, _ := tpl.Text(message(), url.PathEscape); got != "/x y/a%2Fb%20c/7" {
		t.Errorf("%q: only values are escaped", got)
	}
}

func TestMissingValue(t *testing.T) {
	m := &sink.Message{Attributes: store.Attributes{{Name: "a"}}}
	for text, want := range map[string]string{
		"{id} {group}": "group", "{kind}": "kind", "{id}": "", "plain": "", "{type}": "type", "{attr.id}": "attr.id", "{attr.a}{attr.b}": "attr.b",
		"{attr.group}": "attr.group",
	} {
		tpl := template.MustParse(text)
		if got, missing := tpl.Text(m, asIs); missing != want || missing != "" && got != "" {
			t.Errorf("%q: %q, missing %q, want %q", text, got, missing, want)
		}
	}
}

// Members of the payload are fields only where the caller says so.
func TestParsePayload(t *testing.T) {
	if _, err := template.Parse("{payload.url}"); err == nil || !strings.Contains(err.Error(), "which is no field") {
		t.Errorf("Parse: %v", err)
	}
	if _, err := template.ParsePayload("{payload.}"); err == nil {
		t.Error("a member without a name")
	}
	tpl, err := template.ParsePayload("{id}{payload.a b}{payload.n}")
	if err != nil || !slices.Equal(tpl.Members(), []string{"a b", "n"}) || len(tpl.Attributes()) > 0 || tpl.Fixed() {
		t.Errorf("%q, %q, %v", tpl.Members(), tpl.Attributes(), err)
	}
	for payload, want := range map[string]string{`{"a b": "x", "n": 1.50}`: "7x1.50", `{"a b": "x"}`: "payload.n", "": "payload.a b"} {
		m := message()
		m.Payload = []byte(payload)
		if text, missing := tpl.Text(m, asIs); text+missing != want {
			t.Errorf("%s: %q, missing %q, want %q", payload, text, missing, want)
		}
	}
}

func TestAttributes(t *testing.T) {
	tpl := template.MustParse("{id}{type}{attr.a}{attr.b}{attr.a}{group}{kind}")
	if got := tpl.Attributes(); !slices.Equal(got, []string{"type", "a", "b", "kind"}) {
		t.Errorf("%q", got)
	}
}

func TestInvalidTemplate(t *testing.T) {
	for text, want := range map[string]string{
		"a{id":      "has a { without a } at character 2; write {{ for a brace",
		"é}":        "has a } without a { at character 2; write }} for a brace",
		"é{kynd}":   "has {kynd} at character 2, did you mean {kind}?",
		"{tenant}":  "has {tenant} at character 1, which is no field; the fields are {id}, {kind}, {group}, {type}, {attr.NAME}",
		"{attr.}":   "has {attr.} at character 1, which is no field",
		"é{typ}":    "has {typ} at character 2, did you mean {type}?",
		"{}":        "has {} at character 1, which is no field",
		"{a{id}b}":  "has {a{id} at character 1, did you mean {id}?",
		"{id}{id}}": "has a } without a { at character 9",
	} {
		if _, err := template.Parse(text); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// Members are found among many, without memory for each.
func TestMembersOfALargePayload(t *testing.T) {
	payload := []byte(`{"url": "a"`)
	for n := range 1 << 20 {
		payload = fmt.Appendf(payload, `,"%d":1`, n)
	}
	payload = append(payload, '}')
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got, ok := template.Member(payload, "url")
	runtime.ReadMemStats(&after)
	if string(got) != "a" || !ok {
		t.Errorf("got %q, %t", got, ok)
	}
	live := int64(after.HeapSys) - int64(before.HeapSys)
	t.Logf("a payload of %d MiB took %d MiB", len(payload)>>20, live>>20)
	if live > 64<<20 {
		t.Error("want at most 64 MiB")
	}
}

// A text that parses gives itself again where each field stands for itself.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"a{id}b", "{{}}", "{", "}", "{id}{group}{kind}", "{type}{attr.a b}{{attr.a}}"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		tpl, err := template.Parse(text)
		if err != nil {
			return
		}
		m := &sink.Message{ID: "{id}", Group: store.GroupOf("{group}"), Kind: "{kind}"}
		values := []string{"{{", "{", "}}", "}", "{attr.kind}", "{kind}", "{type}", "<type>"}
		for _, name := range tpl.Attributes() {
			if name != store.AttributeKind {
				m.Attributes = append(m.Attributes, store.Attribute{Name: name, Value: "<" + name + ">"})
				values = append(values, "{attr."+name+"}", "<"+name+">")
			}
		}
		got, missing := tpl.Text(m, asIs)
		if want := strings.NewReplacer(values...).Replace(text); missing != "" || got != want {
			t.Errorf("%q gives %q, missing %q", text, got, missing)
		}
	})
}
