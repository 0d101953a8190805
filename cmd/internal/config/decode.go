package config

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// place is where a value came from.
type place struct {
	name string // file:line or a variable
	line int    // 0 for a variable
}

// decoder fills Settings from a file and variables and collects what is wrong.
type decoder struct {
	resolver
	file      string
	overrides map[string]string // SLUICEBOX_* variables
	consulted map[string]bool   // the variables that some key has
	at        map[string]place  // where each key that was given came from
	written   map[string]string // keys that the preset stands for, as they are written
	faulty    map[string]bool   // the keys that have a problem
	delivery  Delivery          // what sinks begin with
	problems  problems
	unread    map[string]problems // by sink, of files that may be there later
}

func newDecoder(file string, environ []string, readFile func(string) ([]byte, error)) *decoder {
	all := make(map[string]string, len(environ))
	d := &decoder{
		file:      file,
		overrides: map[string]string{},
		consulted: map[string]bool{},
		at:        map[string]place{},
		written:   map[string]string{},
		faulty:    map[string]bool{},
		unread:    map[string]problems{},
	}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		all[name] = value
		if strings.HasPrefix(name, prefix) && !strings.HasPrefix(name, testPrefix) && name != FileVariable {
			d.overrides[name] = value
		}
	}
	d.resolver = resolver{
		lookup:   func(name string) (string, bool) { v, ok := all[name]; return v, ok },
		readFile: readFile,
	}
	return d
}

// settings reads everything from the root of the document.
func (d *decoder) settings(root *yaml.Node) Settings {
	s := Default()
	v := reflect.ValueOf(&s).Elem()
	nodes := d.keys("", root, fieldsOf(v.Type()))
	for _, f := range fieldsOf(v.Type()) {
		if f.typ == reflect.TypeFor[map[string]Sink]() {
			d.delivery = s.Dispatch.Delivery // read by now: fields come in order
		}
		d.give(f.name, nodes[f.name], v.FieldByIndex(f.index), f)
	}
	return s
}

// fail records a fault of a key at its own place.
func (d *decoder) fail(path, format string, args ...any) {
	path = d.original(path)
	d.failAt(d.placeOf(path), path, fmt.Sprintf(format, args...))
}

// unresolved records a reference that stands for nothing. One of a sink to a file that
// cannot be read keeps that sink from being opened, and nothing else from working.
func (d *decoder) unresolved(path string, err error) {
	d.fail(path, "%s", err)
	sink := ""
	if rest, ok := strings.CutPrefix(path, "sinks."); ok {
		sink, _, _ = strings.Cut(rest, ".")
	} else if strings.HasPrefix(path, "flowcatalyst.") {
		sink = presetSink
	}
	if unread := (*unreadError)(nil); sink != "" && errors.As(err, &unread) {
		last := len(d.problems) - 1
		d.unread[sink] = append(d.unread[sink], d.problems[last])
		d.problems = d.problems[:last]
	}
}

func (d *decoder) failAt(p place, path, text string) {
	d.faulty[path] = true
	d.problems = append(d.problems, Problem{Where: p.name, Key: path, Text: text, line: p.line})
}

// original returns the key that the file has for one that the preset made.
func (d *decoder) original(path string) string {
	if written, ok := d.written[path]; ok {
		return written
	}
	return path
}

// placeOf returns where a key came from, or, for one that was not given, its
// section.
func (d *decoder) placeOf(path string) place {
	for {
		if p, ok := d.at[path]; ok {
			return p
		}
		cut := strings.LastIndexAny(path, ".[")
		if cut < 0 {
			return place{name: d.file}
		}
		path = path[:cut]
	}
}

func (d *decoder) line(n *yaml.Node) place {
	return place{name: where(d.file, n.Line), line: n.Line}
}

// given is a key of a mapping with its value; both are nil for one that the file
// does not have.
type given struct{ key, value *yaml.Node }

// give reads one key into v and notes its line.
func (d *decoder) give(path string, g given, v reflect.Value, f field) {
	if g.key != nil {
		d.at[path] = d.line(g.key)
	}
	d.value(path, g.value, v, f)
}

// value reads a node, nil if there is none, into v.
func (d *decoder) value(path string, n *yaml.Node, v reflect.Value, f field) {
	if n != nil {
		n = target(n)
	}
	switch {
	case v.Kind() == reflect.Pointer && v.Type().Elem().Kind() == reflect.Struct:
		d.optional(path, n, v)
	case v.Kind() == reflect.Pointer:
		d.maybe(path, n, v, f)
	case v.Kind() == reflect.Struct:
		d.section(path, n, v)
	case v.Kind() == reflect.Slice:
		d.overridden(path, n, func(n *yaml.Node) { d.list(path, n, v, f) })
	case v.Kind() == reflect.Map:
		d.overridden(path, n, func(n *yaml.Node) { d.entries(path, n, v, f) })
	default:
		d.scalar(path, n, v, f)
	}
}

// target follows an alias to what it stands for.
func target(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		return n.Alias
	}
	return n
}

// section reads the keys of a mapping.
func (d *decoder) section(path string, n *yaml.Node, v reflect.Value) {
	fields := fieldsOf(v.Type())
	nodes := d.keys(path, n, fields)
	for _, f := range fields {
		fv := v.FieldByIndex(f.index)
		d.give(join(path, f.name), nodes[f.name], fv, f)
		if f.alias != "" {
			d.aliased(path, nodes, fv, f)
		}
	}
}

// aliased reads a key under its second name.
func (d *decoder) aliased(path string, nodes map[string]given, v reflect.Value, f field) {
	first, second := join(path, f.name), join(path, f.alias)
	before := v.Interface()
	d.give(second, nodes[f.alias], v, f)
	a, hasFirst := d.at[first]
	b, hasSecond := d.at[second]
	switch {
	case hasFirst && hasSecond && (a.line > 0) == (b.line > 0):
		d.fail(second, "is another name for %s, which is given too; keep one", f.name)
	case hasFirst && hasSecond && b.line > 0:
		v.Set(reflect.ValueOf(before)) // the variable wins over the file
	case hasSecond:
		d.at[first] = b
	}
}

// keys returns the values of a mapping by key and records the keys that are
// unknown or written twice.
func (d *decoder) keys(path string, n *yaml.Node, fields []field) map[string]given {
	if !d.isA(yaml.MappingNode, path, n, "keys and values") {
		return nil
	}
	known := make([]string, 0, len(fields))
	for _, f := range fields {
		known = append(known, f.name)
		if f.alias != "" {
			known = append(known, f.alias)
		}
	}
	nodes := make(map[string]given, len(fields))
	d.pairs(path, n, func(name string, key, value *yaml.Node) {
		if slices.Contains(known, name) {
			nodes[name] = given{key, value}
			return
		}
		near := nearest(name, known)
		d.failAt(d.line(key), join(path, name), unknownKey(path, name, near, known))
		if near != "" {
			d.faulty[join(path, near)] = true // so that it is not reported as missing
		}
	})
	return nodes
}

func unknownKey(path, name, near string, known []string) string {
	if near != "" {
		return "unknown key; did you mean " + near + "?"
	}
	for _, f := range fieldsOf(reflect.TypeFor[Dispatch]()) {
		if f.name == name && strings.HasPrefix(path, "sinks.") {
			return "is one for all sinks: write it under dispatch"
		}
	}
	return "unknown key; the keys here are " + strings.Join(known, ", ")
}

// pairs calls visit for each key of a mapping and records those that are
// written twice or are no text.
func (d *decoder) pairs(path string, n *yaml.Node, visit func(name string, key, value *yaml.Node)) {
	first := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		switch {
		case key.ShortTag() == "!!merge":
			d.failAt(d.line(key), path, "merge keys (<<) are not read; write the keys out")
		case key.Kind != yaml.ScalarNode:
			d.failAt(d.line(key), path, "a key must be a plain word")
		case first[key.Value] > 0:
			d.failAt(d.line(key), join(path, key.Value), fmt.Sprintf("is written twice, first in line %d", first[key.Value]))
		default:
			first[key.Value] = key.Line
			visit(key.Value, key, value)
		}
	}
}

// isA reports whether there is a node and it is of a kind, and records one that
// is not. A key without a value is an empty section.
func (d *decoder) isA(kind yaml.Kind, path string, n *yaml.Node, what string) bool {
	if n == nil || n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		return false
	}
	if n.Kind != kind {
		d.failAt(d.line(n), path, "must hold "+what)
		return false
	}
	return true
}

// overridden reads a list or a map from the variable of its name, in YAML, or
// else from the file's node.
func (d *decoder) overridden(path string, n *yaml.Node, decode func(*yaml.Node)) {
	name := variable(path)
	d.consulted[name] = true
	text, ok := d.overrides[name]
	if !ok {
		decode(n)
		return
	}
	d.at[path] = place{name: name}
	root, err := document(name, []byte(text))
	if err != nil {
		d.failAt(place{name: name}, path, err.Error())
		return
	}
	file := d.file
	d.file = name
	if root != nil {
		decode(target(root))
	}
	d.file = file
}

// optional reads a section that need not be there: it is where the file or a
// variable names one of its keys.
func (d *decoder) optional(path string, n *yaml.Node, v reflect.Value) {
	fresh := defaultOf(v.Type().Elem(), d.delivery)
	if d.named(path, fresh.Type()) || n != nil {
		d.section(path, n, fresh)
		v.Set(fresh.Addr())
	}
}

// named reports whether a variable names a key of a section, at any depth.
func (d *decoder) named(path string, t reflect.Type) bool {
	found := false
	for _, f := range fieldsOf(t) {
		p, section := join(path, f.name), f.typ
		if section.Kind() == reflect.Pointer {
			section = section.Elem()
		}
		if section.Kind() == reflect.Struct {
			found = d.named(p, section) || found
			continue
		}
		d.consulted[variable(p)] = true
		_, set := d.overrides[variable(p)]
		found = found || set
	}
	return found
}

// maybe reads one value that need not be there.
func (d *decoder) maybe(path string, n *yaml.Node, v reflect.Value, f field) {
	_, set := d.overrides[variable(path)]
	fresh := reflect.New(v.Type().Elem())
	d.scalar(path, n, fresh.Elem(), f)
	if (n != nil || set) && d.sound(path) {
		v.Set(fresh)
	}
}

// defaultOf returns a new section or value as it is where none of its keys is
// given.
func defaultOf(t reflect.Type, d Delivery) reflect.Value {
	v := reflect.New(t).Elem()
	switch target := v.Addr().Interface().(type) {
	case *FlowCatalyst:
		*target = defaultPreset()
	case *Sink:
		*target = defaultSink(d)
	}
	return v
}

// list reads the entries of a sequence.
func (d *decoder) list(path string, n *yaml.Node, v reflect.Value, f field) {
	if !d.isA(yaml.SequenceNode, path, n, "a list, each entry behind a - or all of them in [ ]") {
		return
	}
	for i, entry := range n.Content {
		element := defaultOf(v.Type().Elem(), d.delivery)
		d.give(path+"["+strconv.Itoa(i)+"]", given{entry, entry}, element, field{enum: f.enum})
		v.Set(reflect.Append(v, element))
	}
}

// entries reads the entries of a map.
func (d *decoder) entries(path string, n *yaml.Node, v reflect.Value, f field) {
	what := "names, each with its value"
	if v.Type().Elem().Kind() == reflect.Struct {
		what = "names, each with its keys"
	}
	if !d.isA(yaml.MappingNode, path, n, what) {
		return
	}
	v.Set(reflect.MakeMap(v.Type()))
	d.pairs(path, n, func(name string, key, value *yaml.Node) {
		element := defaultOf(v.Type().Elem(), d.delivery)
		d.give(join(path, name), given{key, value}, element, field{enum: f.enum})
		v.SetMapIndex(reflect.ValueOf(name), element)
	})
}
