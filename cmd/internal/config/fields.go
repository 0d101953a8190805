package config

import (
	"reflect"
	"strings"

	"github.com/sluicebox/sluicebox/store/layouts"
)

// field is one key of a section, as described by its struct tags.
type field struct {
	name       string
	alias      string
	doc        string
	enum       []string
	later      []string
	empty      string
	conditions []condition
	// placeholder is the printed form of a secret, or "" for the usual placeholder.
	placeholder string
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
			later:      words(sf.Tag.Get("later")),
			empty:      sf.Tag.Get("empty"),
			conditions: only,

			placeholder: sf.Tag.Get("placeholder"),
			template:    sf.Tag.Get("template") != "",
			single:      sf.Tag.Get("single") != "",

			index: sf.Index,
			typ:   sf.Type,
		})
	}
	return fields
}

// enumOf returns the values that a tag lists. The tag layouts stands for the names of all
// layouts.
func enumOf(tag string) []string {
	if tag == "layouts" {
		return layoutNames(func(*layouts.Preset) bool { return true })
	}
	return words(tag)
}

func words(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

// condition is the value that another key must have.
type condition struct{ key, value string }

func parseConditions(list string) []condition {
	var all []condition
	for _, text := range strings.Fields(list) {
		key, value, _ := strings.Cut(text, "=")
		all = append(all, condition{key, value})
	}
	return all
}

// conditionText describes the conditions of a key, for the documentation.
func (f *field) conditionText() string {
	if len(f.conditions) == 0 {
		return ""
	}
	texts := make([]string, len(f.conditions))
	for i, c := range f.conditions {
		texts[i] = c.key + ": " + c.value
	}
	return " Only with " + strings.Join(texts, " and ") + "."
}

// unmetCondition returns the first condition that a key of section v does not meet.
func (f *field) unmetCondition(v reflect.Value) (c condition, is string, unmet bool) {
	for _, c := range f.conditions {
		for _, beside := range fieldsOf(v.Type()) {
			if beside.name != c.key {
				continue
			}
			if is := v.FieldByIndex(beside.index).String(); is != c.value {
				return c, is, true
			}
		}
	}
	return condition{}, "", false
}

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
