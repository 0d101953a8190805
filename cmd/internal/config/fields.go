package config

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/store/layouts"
)

// field is one key of a section, as described by its struct tags.
type field struct {
	name       string
	alias      string
	doc        string
	enum       []string
	spellings  []string // other spellings of the values of enum, by position
	empty      string
	conditions []condition
	// placeholder is the printed form of a secret, or "" for the usual placeholder.
	placeholder string
	// omit: the key is not printed without a value.
	omit bool
	// single: one value may stand in place of a list.
	single bool
	// template: the text is a template, in which braces have a meaning.
	template bool

	index []int
	typ   reflect.Type
}

// fieldsOf returns the keys of a section in struct order, including inlined ones.
func fieldsOf(t reflect.Type) []field {
	var fields []field
	for i := range t.NumField() {
		sf := t.Field(i)
		name, option, _ := strings.Cut(sf.Tag.Get("yaml"), ",")
		only := parseConditions(sf.Tag.Get("only"))
		if option == "inline" {
			for _, f := range fieldsOf(sf.Type) {
				f.index = append([]int{i}, f.index...)
				f.conditions = append(f.conditions, only...)
				fields = append(fields, f)
			}
			continue
		}
		if name == "" || name == "-" {
			continue // no key
		}
		fields = append(fields, field{
			name:       name,
			alias:      sf.Tag.Get("alias"),
			doc:        sf.Tag.Get("doc"),
			enum:       enumOf(sf.Tag.Get("enum")),
			spellings:  words(sf.Tag.Get("spellings")),
			empty:      sf.Tag.Get("empty"),
			conditions: only,

			placeholder: sf.Tag.Get("placeholder"),
			omit:        sf.Tag.Get("omit") != "",
			template:    sf.Tag.Get("template") != "",
			single:      sf.Tag.Get("single") != "",

			index: sf.Index,
			typ:   sf.Type,
		})
	}
	return fields
}

// enumOf returns the values that a tag lists. The tag layouts stands for the names of all
// layouts, sinks for the types of sinks.
func enumOf(tag string) []string {
	switch tag {
	case "layouts":
		return layoutNames(func(*layouts.Preset) bool { return true })
	case "sinks":
		return slices.Sorted(maps.Keys(sinkTypes()))
	}
	return words(tag)
}

func words(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

// variants returns the fields of a section by key, in struct order. Several fields may have the
// name of one key; their conditions, the type of a sink for example, decide which applies. Of
// several with the same conditions, the first hides the others.
func variants(fields []field) (keys [][]field) {
	at := map[string]int{}
	for _, f := range fields {
		if i, known := at[f.name]; known {
			hidden := slices.ContainsFunc(keys[i], func(by field) bool { return reflect.DeepEqual(by.conditions, f.conditions) })
			if !hidden {
				keys[i] = append(keys[i], f)
			}
			continue
		}
		at[f.name] = len(keys)
		keys = append(keys, []field{f})
	}
	return keys
}

// chosen returns the variant of a key that applies in section v, which has these fields. If none
// does, it returns the first and false.
func chosen(key, fields []field, v reflect.Value) (f field, applies bool) {
	for _, f := range key {
		if _, _, unmet := f.unmetCondition(v, fields); !unmet {
			return f, true
		}
	}
	return key[0], false
}

// condition is what another key must be: one of the values or, with not, none of them.
type condition struct {
	key    string
	values []string
	not    bool
}

// parseConditions parses a tag such as "type=webhook|log state!=none".
func parseConditions(list string) []condition {
	var all []condition
	for _, text := range strings.Fields(list) {
		key, values, _ := strings.Cut(text, "=")
		key, not := strings.CutSuffix(key, "!")
		all = append(all, condition{key, strings.Split(values, "|"), not})
	}
	return all
}

// accepts reports whether a value of the other key meets the condition.
func (c *condition) accepts(value string) bool { return slices.Contains(c.values, value) != c.not }

// text returns the other key with its values.
func (c *condition) text() string { return c.key + ": " + alternatives(c.values) }

// alternatives joins values for a sentence.
func alternatives(values []string) string {
	last := len(values) - 1
	if last < 1 {
		return strings.Join(values, "")
	}
	return strings.Join(values[:last], ", ") + " or " + values[last]
}

// conditionText describes the conditions of a key on other keys than skip, for the documentation.
func (f *field) conditionText(skip string) string {
	var only []string
	not := ""
	for i := range f.conditions {
		switch c := &f.conditions[i]; {
		case c.not:
			not += " Not with " + c.text() + "."
		case c.key != skip:
			only = append(only, c.text())
		}
	}
	if len(only) == 0 {
		return not
	}
	return " Only with " + strings.Join(only, " and ") + "." + not
}

// unmetCondition returns the first condition that a key of section v does not meet, and the value
// of its key. The section has these fields.
func (f *field) unmetCondition(v reflect.Value, fields []field) (c condition, is string, unmet bool) {
	for _, c := range f.conditions {
		for i := range fields {
			beside := &fields[i]
			if beside.name != c.key {
				continue
			}
			if _, _, other := beside.unmetCondition(v, fields); other {
				continue // the key of another type
			}
			if is := v.FieldByIndex(beside.index).String(); !c.accepts(is) {
				return c, is, true
			}
			break
		}
	}
	return condition{}, "", false
}

// SinkVariable returns the name of the variable that overrides a key of a sink.
func SinkVariable(sink, key string) string { return variableName("sinks." + sink + "." + key) }

// joinKey returns the path of a key in a section.
func joinKey(section, name string) string {
	if section == "" {
		return name
	}
	return section + "." + name
}

// variableName returns the name of the variable that overrides a key. For example,
// dispatch.max-retries is SLUICEBOX_DISPATCH_MAX_RETRIES and outboxes[0].table is
// SLUICEBOX_OUTBOXES_0_TABLE.
func variableName(path string) string {
	name := strings.NewReplacer(".", "_", "-", "_", "[", "_", "]", "").Replace(path)
	return variablePrefix + strings.ToUpper(name)
}
