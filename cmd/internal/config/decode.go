package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/sluicebox/sluicebox/cmd/internal/notices"
	"github.com/sluicebox/sluicebox/cmd/internal/shards"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// decoder decodes Settings from a file and variables.
type decoder struct {
	*report
	resolver
	overrides       map[string]string        // SLUICEBOX_* variables
	knownVariables  map[string]bool          // variables that match a key
	defaultDelivery Delivery                 // defaults of the sinks' delivery keys
	references      map[string][]sink.Secret // replacements in the URL and headers, by sink
	unreadable      map[string]problems      // unreadable referenced files, by sink
}

func newDecoder(file string, environ []string, readFile func(string) ([]byte, error)) *decoder {
	all := make(map[string]string, len(environ))
	d := &decoder{
		report:         newReport(file),
		overrides:      map[string]string{},
		knownVariables: map[string]bool{},
		references:     map[string][]sink.Secret{},
		unreadable:     map[string]problems{},
	}

	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		all[name] = value
		if overrides(name) {
			d.overrides[name] = value
		}
	}

	d.resolver = resolver{
		lookup:   func(name string) (string, bool) { v, ok := all[name]; return v, ok },
		readFile: readFile,
	}
	return d
}

// overrides reports whether a variable overrides a key of the configuration.
func overrides(name string) bool {
	return strings.HasPrefix(name, variablePrefix) && !strings.HasPrefix(name, testVariablePrefix) && name != FileVariable
}

// Overrides reports whether a variable among environ overrides a key of the configuration.
func Overrides(environ []string) bool {
	return slices.ContainsFunc(environ, func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return overrides(name)
	})
}

// decodeSettings decodes the settings from the root of the document.
func (d *decoder) decodeSettings(root *yaml.Node) Settings {
	s := Default()
	v := reflect.ValueOf(&s).Elem()
	nodes := d.mappingEntries("", root)
	fields := fieldsOf(v.Type())
	d.failUnknownKeys("", nodes, v, fields)
	for _, f := range fields {
		if f.typ == reflect.TypeFor[map[string]Sink]() {
			d.defaultDelivery = s.Dispatch.Delivery // decoded already, because fields are in order
		}
		d.decodeKey(f.name, nodes[f.name], v.FieldByIndex(f.index), f)
	}
	return s
}

// noteReference keeps a replacement in the URL or a header of a sink, which no detail shows.
func (d *decoder) noteReference(path, value string) {
	if rest, ok := strings.CutPrefix(path, "sinks."); ok && value != "" {
		name, key, _ := strings.Cut(rest, ".")
		if key == "url" || strings.HasPrefix(key, "headers.") {
			d.references[name] = append(d.references[name], sink.Secret(value))
		}
	}
}

// setReferences hands the replacements to the sinks, in an order that does not depend on that
// of the headers: equal configurations are equal sinks.
func (d *decoder) setReferences(s *Settings) {
	for name, to := range s.Sinks {
		if to.References = d.references[name]; len(to.References) > 0 {
			slices.Sort(to.References)
			s.Sinks[name] = to
		}
	}
}

// failReference reports an unresolved reference. An unreadable file in a sink's key only
// keeps that sink from being opened.
func (d *decoder) failReference(path string, err error) {
	d.fail(path, "%s", err)
	sink := ""
	if rest, ok := strings.CutPrefix(path, "sinks."); ok {
		sink, _, _ = strings.Cut(rest, ".")
	} else if strings.HasPrefix(path, "flowcatalyst.") {
		sink = presetSink
	}
	if unread := (*unreadableFileError)(nil); sink != "" && errors.As(err, &unread) {
		last := len(d.problems) - 1
		d.unreadable[sink] = append(d.unreadable[sink], d.problems[last])
		d.problems = d.problems[:last]
	}
}

// mappingEntry is a key of a mapping with its value. Both are nil if the file does not
// have the key.
type mappingEntry struct{ key, value *yaml.Node }

// decodeKey decodes one key into v and records its line.
func (d *decoder) decodeKey(path string, g mappingEntry, v reflect.Value, f field) {
	if g.key != nil {
		d.locations[path] = d.nodeLocation(g.key)
	}
	d.decodeValue(path, g.value, v, f)
}

// decodeValue decodes a node into v. n may be nil.
func (d *decoder) decodeValue(path string, n *yaml.Node, v reflect.Value, f field) {
	if n != nil {
		n = resolveAlias(n)
	}
	switch {
	case v.Kind() == reflect.Pointer && v.Type().Elem().Kind() == reflect.Struct:
		d.decodeOptionalSection(path, n, v)
	case v.Kind() == reflect.Pointer:
		d.decodeOptionalValue(path, n, v, f)
	case v.Kind() == reflect.Struct:
		d.decodeSection(path, n, v)
	case v.Kind() == reflect.Slice:
		d.decodeOverridable(path, n, func(n *yaml.Node) { d.decodeList(path, n, v, f) })
	case v.Kind() == reflect.Map:
		d.decodeOverridable(path, n, func(n *yaml.Node) { d.decodeMap(path, n, v, f) })
	default:
		d.decodeScalar(path, n, v, f)
	}
}

// resolveAlias returns the target of an alias.
func resolveAlias(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		return n.Alias
	}
	return n
}

// decodeSection decodes the keys of a mapping. A key is decoded once those before it in the
// struct are: they decide which of its variants applies.
func (d *decoder) decodeSection(path string, n *yaml.Node, v reflect.Value) {
	fields := fieldsOf(v.Type())
	nodes := d.mappingEntries(path, n)
	for _, key := range variants(fields) {
		f, applies := chosen(key, fields, v)
		before := len(d.problems)
		fv := v.FieldByIndex(f.index)
		d.decodeKey(joinKey(path, f.name), nodes[f.name], fv, f)
		if f.alias != "" {
			d.decodeAlias(path, nodes, fv, f)
		}
		if !applies && len(key) > 1 && d.isUndecided(path, &f, v, fields) {
			d.problems = d.problems[:before] // of a variant that may not apply
		}
	}
	d.failUnknownKeys(path, nodes, v, fields)
}

// isUndecided reports whether the key of a field's condition is missing or invalid, so that no
// variant is known to apply.
func (d *decoder) isUndecided(path string, f *field, v reflect.Value, fields []field) bool {
	c, is, _ := f.unmetCondition(v, fields)
	return is == "" || !d.hasNoProblem(joinKey(path, c.key))
}

// decodeAlias decodes a key under its second name.
func (d *decoder) decodeAlias(path string, nodes map[string]mappingEntry, v reflect.Value, f field) {
	first, second := joinKey(path, f.name), joinKey(path, f.alias)
	before := v.Interface()
	d.decodeKey(second, nodes[f.alias], v, f)
	a, hasFirst := d.locations[first]
	b, hasSecond := d.locations[second]
	switch {
	case hasFirst && hasSecond && (a.line > 0) == (b.line > 0):
		d.fail(second, "is another name for %s, which is also given; remove one", f.name)
	case hasFirst && hasSecond && b.line > 0:
		v.Set(reflect.ValueOf(before)) // variables override the file
	case hasSecond:
		d.locations[first] = b
	}
}

// mappingEntries returns the entries of a mapping by key, and reports duplicate keys.
func (d *decoder) mappingEntries(path string, n *yaml.Node) map[string]mappingEntry {
	if !d.expectKind(yaml.MappingNode, path, n, "keys and values") {
		return nil
	}
	nodes := map[string]mappingEntry{}
	d.eachPair(path, n, func(name string, key, value *yaml.Node) { nodes[name] = mappingEntry{key, value} })
	return nodes
}

// failUnknownKeys reports the entries of section v that are none of its keys. A key that does not
// apply there is known; see checkConditions.
func (d *decoder) failUnknownKeys(path string, nodes map[string]mappingEntry, v reflect.Value, fields []field) {
	var known, applicable []string
	for _, key := range variants(fields) {
		f, applies := chosen(key, fields, v)
		names := []string{f.name}
		if f.alias != "" {
			names = append(names, f.alias)
		}
		known = append(known, names...)
		if applies || d.isUndecided(path, &f, v, fields) {
			applicable = append(applicable, names...)
		}
	}
	byPlace := func(a, b string) int {
		x, y := nodes[a].key, nodes[b].key
		return cmp.Or(cmp.Compare(x.Line, y.Line), cmp.Compare(x.Column, y.Column))
	}
	for _, name := range slices.SortedFunc(maps.Keys(nodes), byPlace) {
		if slices.Contains(known, name) {
			continue
		}
		near := store.Nearest(name, applicable)
		d.failAt(d.nodeLocation(nodes[name].key), joinKey(path, name), unknownKeyText(path, name, near, applicable))
		if near != "" {
			d.faultyKeys[joinKey(path, near)] = true // avoids an error about a missing key
		}
	}
}

func unknownKeyText(path, name, near string, known []string) string {
	if near != "" {
		return "unknown key; did you mean " + near + "?"
	}
	for _, f := range fieldsOf(reflect.TypeFor[Dispatch]()) {
		if f.name == name && strings.HasPrefix(path, "sinks.") {
			return "applies to all sinks: set it under dispatch"
		}
	}
	return "unknown key; the keys here are " + strings.Join(known, ", ")
}

// eachPair calls visit for each key of a mapping, and reports duplicate keys and keys
// that are not text.
func (d *decoder) eachPair(path string, n *yaml.Node, visit func(name string, key, value *yaml.Node)) {
	first := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		switch {
		case key.ShortTag() == "!!merge":
			d.failAt(d.nodeLocation(key), path, "merge keys (<<) are not supported; repeat the keys")
		case key.Kind != yaml.ScalarNode:
			d.failAt(d.nodeLocation(key), path, "a key must be a plain word")
		case first[key.Value] > 0:
			d.failAt(d.nodeLocation(key), joinKey(path, key.Value), fmt.Sprintf("is a duplicate of line %d", first[key.Value]))
		default:
			first[key.Value] = key.Line
			visit(key.Value, key, value)
		}
	}
}

// expectKind reports whether a node exists and has a kind, and records an error for
// another kind. A key without a value is an empty section.
func (d *decoder) expectKind(kind yaml.Kind, path string, n *yaml.Node, what string) bool {
	if n == nil || n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		return false
	}
	if n.Kind != kind {
		d.failAt(d.nodeLocation(n), path, "must hold "+what)
		return false
	}
	return true
}

// decodeOverridable decodes a list or a map from its variable, in YAML, or else from the
// file's node.
func (d *decoder) decodeOverridable(path string, n *yaml.Node, decode func(*yaml.Node)) {
	name := variableName(path)
	d.knownVariables[name] = true
	text, ok := d.overrides[name]
	if !ok {
		decode(n)
		return
	}

	d.locations[path] = location{name: name}
	root, err := document(name, []byte(text))
	if err != nil {
		d.failAt(location{name: name}, path, err.Error())
		return
	}

	file := d.file
	d.file = name
	if root != nil {
		decode(resolveAlias(root))
	}

	d.file = file
}

// decodeOptionalSection decodes an optional section. The section exists if the file or a
// variable sets one of its keys.
func (d *decoder) decodeOptionalSection(path string, n *yaml.Node, v reflect.Value) {
	fresh := defaultOf(v.Type().Elem(), d.defaultDelivery)
	if d.isOverridden(path, fresh.Type()) || n != nil {
		d.decodeSection(path, n, fresh)
		v.Set(fresh.Addr())
	}
}

// isOverridden reports whether a variable sets a key of a section, at any depth.
func (d *decoder) isOverridden(path string, t reflect.Type) bool {
	found := false
	for _, f := range fieldsOf(t) {
		p, section := joinKey(path, f.name), f.typ
		if section.Kind() == reflect.Pointer {
			section = section.Elem()
		}
		if section.Kind() == reflect.Struct {
			found = d.isOverridden(p, section) || found
			continue
		}
		d.knownVariables[variableName(p)] = true
		_, set := d.overrides[variableName(p)]
		found = found || set
	}

	return found
}

// decodeOptionalValue decodes an optional value.
func (d *decoder) decodeOptionalValue(path string, n *yaml.Node, v reflect.Value, f field) {
	_, set := d.overrides[variableName(path)]
	fresh := reflect.New(v.Type().Elem())
	d.decodeScalar(path, n, fresh.Elem(), f)
	if (n != nil || set) && d.hasNoProblem(path) {
		v.Set(fresh)
	}
}

// defaultOf returns a new section or value with default values.
func defaultOf(t reflect.Type, d Delivery) reflect.Value {
	v := reflect.New(t).Elem()
	switch target := v.Addr().Interface().(type) {
	case *FlowCatalyst:
		*target = defaultPreset()
	case *Ingest:
		*target = defaultIngest()
	case *NamedSource:
		target.Source = defaultSource()
	case *notices.Config:
		*target = notices.DefaultConfig()
	case *shards.Config:
		*target = shards.DefaultConfig()
	case *Sink:
		*target = defaultSink(d)
	}
	return v
}

// decodeList decodes the entries of a sequence.
func (d *decoder) decodeList(path string, n *yaml.Node, v reflect.Value, f field) {
	if f.single && n != nil && n.Kind == yaml.ScalarNode {
		element := reflect.New(v.Type().Elem()).Elem()
		if text, ok := d.scalarText(path, n, element); ok {
			d.setValue(path, text, element, field{enum: f.enum})
			v.Set(reflect.Append(v, element))
		}
		return
	}
	if !d.expectKind(yaml.SequenceNode, path, n, "a list, each entry behind a - or all of them in [ ]") {
		return
	}
	for i, entry := range n.Content {
		element := defaultOf(v.Type().Elem(), d.defaultDelivery)
		d.decodeKey(path+"["+strconv.Itoa(i)+"]", mappingEntry{entry, entry}, element, field{enum: f.enum})
		v.Set(reflect.Append(v, element))
	}
}

// decodeMap decodes the entries of a map.
func (d *decoder) decodeMap(path string, n *yaml.Node, v reflect.Value, f field) {
	what := "names, each with its value"
	if v.Type().Elem().Kind() == reflect.Struct {
		what = "names, each with its keys"
	}
	if !d.expectKind(yaml.MappingNode, path, n, what) {
		return
	}
	v.Set(reflect.MakeMap(v.Type()))
	d.eachPair(path, n, func(name string, key, value *yaml.Node) {
		element := defaultOf(v.Type().Elem(), d.defaultDelivery)
		d.decodeKey(joinKey(path, name), mappingEntry{key, value}, element, field{enum: f.enum, template: f.template, single: f.single})
		v.SetMapIndex(reflect.ValueOf(name), element)
	})
}

// checkUnknownVariables reports SLUICEBOX_* variables without a key.
func (d *decoder) checkUnknownVariables() {
	known := make([]string, 0, len(d.knownVariables))
	for name := range d.knownVariables {
		known = append(known, name)
	}
	slices.Sort(known)
	var unknown []string
	for name := range d.overrides {
		if !d.knownVariables[name] && !serviceLink.MatchString(name) {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	for _, name := range unknown {
		text := "no key has this variable"
		switch near := store.Nearest(name, known); {
		case near != "":
			text += "; did you mean " + near + "?"
		case strings.HasPrefix(name, variableName("sinks")+"_"), strings.HasPrefix(name, variableName("outboxes")+"_"):
			text += "; the entry must exist in the file, or in " + variableName("sinks") + " and " + variableName("outboxes") + " as YAML"
		default:
			text += "; see `sluicebox config schema` for the keys, or unset it"
		}
		d.failAt(location{name: name}, "", text)
	}
}
