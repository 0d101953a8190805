package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/layouts"
)

// Page returns the reference of all keys and layouts in Markdown, with the sections in
// the order of a file.
func Page() []byte {
	var b strings.Builder
	b.WriteString(`# Configuration

One YAML file. Keys are in kebab-case, and an unknown key is an error that names its line.
This page is generated: ` + "`make docs`" + ` writes it from the program. The
[glossary](operating.md#glossary) explains the words.

- **Variables.** Every key that has one value can also be set by an environment variable,
  which wins over the file: ` + "`dispatch.max-retries`" + ` by ` + "`" + variableName("dispatch.max-retries") + "`" + `, the
  table of the first outbox by ` + "`" + variableName("outboxes[0].table") + "`" + `.
- **References.** A value may contain ` + "`${env:NAME}`" + ` or ` + "`${file:/path}`" + `. Write ` + "`$${`" + ` for the
  characters ` + "`${`" + `. A sink reads its files again when they change.
- **Durations** are such as ` + "`250ms`, `30s`, `36h` or `7d`" + `; **sizes** such as ` + "`64MiB`" + `.
- ` + "`sluicebox config check`" + ` prints the file as the program understands it, without
  secrets. ` + "`sluicebox config schema`" + ` prints a JSON Schema for your editor.

`)
	page := referencePage{&b, map[reflect.Type]string{}}
	page.section("", reflect.ValueOf(Default()))
	page.layouts()
	return []byte(strings.TrimRight(b.String(), "\n") + "\n")
}

// referencePage renders the page.
type referencePage struct {
	out  *strings.Builder
	seen map[reflect.Type]string // path of each section rendered so far
}

// inner is a section below another.
type inner struct {
	path  string
	value reflect.Value
}

// section renders the table of a section's keys, then those of its types, if it has some, then
// its subsections.
func (p *referencePage) section(path string, v reflect.Value) {
	title := "`" + path + "`"
	if path == "" {
		title = "The whole file"
	}
	var common []field
	byType := map[string][]field{}
	fields := slices.Concat(variants(fieldsOf(v.Type()))...)
	slices.SortFunc(fields, func(a, b field) int { return slices.Compare(a.index, b.index) }) // as in the struct
	for _, f := range fields {
		types := f.types()
		if types == nil {
			common = append(common, f)
		}
		for _, t := range types {
			byType[t] = append(byType[t], f)
		}
	}
	fmt.Fprintf(p.out, "## %s\n\n", title)
	sections := p.keys(path, v, common)
	for _, t := range slices.Sorted(maps.Keys(byType)) {
		fmt.Fprintf(p.out, "### `%s` with `%s: %s`\n\n", path, typeKey, t)
		sections = append(sections, p.keys(path, v, byType[t])...)
	}
	for _, s := range sections {
		p.section(s.path, s.value)
	}
}

// typeKey is the key that other keys depend on in a section with several types.
const typeKey = "type"

// types returns the types of a section in which a key applies, nil for all.
func (f *field) types() []string {
	for i := range f.conditions {
		if c := &f.conditions[i]; c.key == typeKey && !c.not {
			return c.values
		}
	}
	return nil
}

// keys renders the table of some keys of a section. It returns their sections that are to be
// rendered.
func (p *referencePage) keys(path string, v reflect.Value, fields []field) (sections []inner) {
	p.out.WriteString("| Key | Default | Meaning |\n|---|---|---|\n")
	for _, f := range fields {
		value := v.FieldByIndex(f.index)
		section, suffix := sectionOf(value)
		shown, meaning := defaultText(value), f.doc+f.conditionText(typeKey)
		if section.IsValid() {
			at, shownAlready := p.seen[section.Type()]
			if !shownAlready {
				at = joinKey(path, f.name) + suffix
				p.seen[section.Type()] = at
				sections = append(sections, inner{at, section})
			}
			shown, meaning = "", meaning+" See ["+at+"](#"+anchor(at)+")."
		}
		if len(f.enum) > 0 {
			meaning += " One of `" + strings.Join(f.enum, "`, `") + "`."
		}
		if f.alias != "" {
			meaning += " Also `" + f.alias + "`."
		}
		fmt.Fprintf(p.out, "| `%s` | %s | %s |\n", f.name, shown, strings.ReplaceAll(meaning, "|", `\|`))
	}
	p.out.WriteString("\n")
	return sections
}

// sectionOf returns the section that a key holds, with the suffix of a list or a map for
// its path. It returns the zero Value if the key holds something else.
func sectionOf(v reflect.Value) (section reflect.Value, suffix string) {
	t := v.Type()
	switch t.Kind() {
	case reflect.Slice:
		suffix, t = "[]", t.Elem()
	case reflect.Map:
		suffix, t = ".NAME", t.Elem()
	case reflect.Pointer:
		t = t.Elem()
	}

	if t.Kind() != reflect.Struct {
		return reflect.Value{}, ""
	}
	if v.Type() == t {
		return v, ""
	}

	return defaultOf(t, Default().Dispatch.Delivery), suffix
}

// defaultText returns a key's default for a table, or "" if there is none.
func defaultText(v reflect.Value) string {
	switch v.Kind() {
	case reflect.Slice, reflect.Map, reflect.Pointer, reflect.Struct:
		return ""
	}
	text := renderScalar(v, field{}).Value
	if text == "" {
		return ""
	}
	return "`" + text + "`"
}

// anchor returns the link target that common hosts generate for a heading of code.
func anchor(path string) string {
	keep := func(r rune) rune {
		if r == '-' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return -1
	}
	return strings.Map(keep, strings.ToLower(path))
}

// layouts renders the columns and status values of each layout.
func (p *referencePage) layouts() {
	p.out.WriteString("## Layouts\n\nA layout names the columns of an outbox table and the values of its status. `custom` takes\n" +
		"them from the configuration. A column that a layout names must exist. [layouts.md](layouts.md)\n" +
		"says how to use the tables of other projects, and `sluicebox init --outbox NAME` prints the\n" +
		"statements that create one.\n\n")
	for _, preset := range layouts.All() {
		fmt.Fprintf(p.out, "### `%s`\n\n%s\n\n", preset.Name, preset.Doc)
		both := preset.Tables != nil && preset.Documents != nil
		for _, documents := range []bool{false, true} {
			if l := preset.Layout(documents); l != nil {
				p.layout(l, documents, both)
			}
		}
	}
}

// attributesKey is the key of the attributes without a key of their own.
const attributesKey = "columns.attributes"

// layout writes the columns and status values of a layout.
func (p *referencePage) layout(l *store.Layout, documents, both bool) {
	switch {
	case documents:
		p.out.WriteString("MongoDB:\n\n")
	case both:
		p.out.WriteString("Tables:\n\n")
	}
	p.out.WriteString("| Key | Column |\n|---|---|\n")
	var keys []string
	columns := map[string][]string{}
	for _, c := range l.NamedColumns() {
		if columns[c.Key] == nil {
			keys = append(keys, c.Key)
		}
		columns[c.Key] = append(columns[c.Key], c.Column)
	}
	at := 0
	for _, a := range l.Attributes {
		if a.Key() != attributesKey {
			continue
		}
		if a.Spread {
			columns[attributesKey][at] += spreadSuffix
		}
		at++
	}
	for _, key := range keys {
		text := strings.Join(columns[key], ", ")
		if len(columns[key]) > 1 {
			text = "[" + text + "]"
		}
		fmt.Fprintf(p.out, "| `%s` | `%s` |\n", key, text)
	}
	if len(l.GroupPath) > 0 {
		fmt.Fprintf(p.out, "| `group-path` | `%s` |\n", strings.Join(l.GroupPath, "."))
	}
	after := "A delivered row is kept."
	if l.DeleteDelivered {
		after = "A delivered row is deleted."
	}
	if values := stateText(l); values != "" {
		after = values + " " + after
	}
	fmt.Fprintf(p.out, "\n%s%s\n\n", after, uncountedReasons(l))
}

// stateText says how a layout stores the state of a row.
func stateText(l *store.Layout) string {
	switch l.State {
	case store.StateNone:
		return "The table keeps no state."
	case store.StateTimestamps:
		return "A row is delivered once it has a time of delivery."
	}
	return "Status: " + statusValues(l) + "."
}

// uncountedReasons says when a layout's FAILED after an answer that never counts occurs.
func uncountedReasons(l *store.Layout) string {
	if len(l.FailedNumbers) == 0 {
		return ""
	}
	return " A 401, 403, 502, 503, 504 or no answer makes a row FAILED only with " +
		"`dispatch.give-up-after` or `dispatch.retry.compat`: otherwise the row waits."
}

// statusValues lists the values of a layout's status column.
func statusValues(l *store.Layout) string {
	var values []string
	for _, s := range []store.Status{store.Pending, store.Processing, store.Completed, store.Failed} {
		if !l.Stores(s) {
			continue
		}
		switch l.State {
		case store.StateWords:
			values = append(values, fmt.Sprintf("%s is `%s`", s, l.Words[s]))
		case store.StateNumbers:
			values = append(values, fmt.Sprintf("%s is `%d`", s, l.Numbers[s]))
		}
	}
	for _, r := range []struct {
		reason store.Reason
		text   string
	}{
		{store.ReasonBadRequest, "after a 400 or another 4xx"}, {store.ReasonUnauthorized, "after a 401"},
		{store.ReasonForbidden, "after a 403"}, {store.ReasonGateway, "after a 502, 503, 504 or no answer"},
		{store.ReasonInternal, "otherwise"},
	} {
		if n, has := l.FailedNumbers[r.reason]; has {
			values = append(values, fmt.Sprintf("FAILED is `%d` %s", n, r.text))
		}
	}
	return strings.Join(values, ", ")
}
