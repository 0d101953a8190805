package config

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// YAML returns the complete configuration as a file, with placeholders for secrets.
func (c *Config) YAML() ([]byte, error) {
	return yaml.Dump(c.rendered())
}

// JSON returns the complete configuration as a JSON object with the keys of the file, and
// placeholders for secrets.
func (c *Config) JSON() ([]byte, error) {
	var b bytes.Buffer
	if err := writeJSON(&b, c.rendered()); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := json.Indent(&out, b.Bytes(), "", "  "); err != nil {
		return nil, err
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

// rendered returns the settings as a YAML node. With sources there is no section source.
func (c *Config) rendered() *yaml.Node {
	n := render(reflect.ValueOf(c.Settings), field{})
	if len(c.Settings.Sources) > 0 {
		return without(n, "name", "source")
	}
	return n
}

// render returns a value as a YAML node, with keys in the order of the structs. It omits
// absent sections and keys that do not apply. f is the key that holds the value.
func render(v reflect.Value, f field) *yaml.Node {
	switch v.Kind() {
	case reflect.Struct:
		n := &yaml.Node{Kind: yaml.MappingNode}
		fields := fieldsOf(v.Type())
		for _, key := range variants(fields) { // of the section
			f, applies := chosen(key, fields, v)
			fv := v.FieldByIndex(f.index)
			if !applies || f.omit && (fv.IsZero() || fv.Kind() == reflect.Slice && fv.Len() == 0) || fv.Kind() == reflect.Pointer && fv.IsNil() || f.enum != nil && fv.Kind() == reflect.String && fv.Len() == 0 {
				continue
			}
			n.Content = append(n.Content, textNode(f.name), render(fv, f))
		}
		return n
	case reflect.Pointer:
		return render(v.Elem(), f)
	case reflect.Slice:
		if f.single && v.Len() == 1 {
			return render(v.Index(0), f)
		}
		n := &yaml.Node{Kind: yaml.SequenceNode}
		for i := range v.Len() {
			n.Content = append(n.Content, render(v.Index(i), f))
		}
		return n
	case reflect.Map:
		n := &yaml.Node{Kind: yaml.MappingNode}
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, key := range keys {
			n.Content = append(n.Content, textNode(key.String()), render(v.MapIndex(key), f))
		}
		return n
	}

	return renderScalar(v, f)
}

// renderScalar returns a scalar as a file would contain it.
func renderScalar(v reflect.Value, f field) *yaml.Node {
	if secret, ok := v.Interface().(sink.Secret); ok && secret != "" {
		return textNode(cmp.Or(f.placeholder, secretPlaceholder))
	}
	if v.Kind() == reflect.Bool {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: strconv.FormatBool(v.Bool())}
	}
	if v.Type() == reflect.TypeFor[int]() {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: strconv.FormatInt(v.Int(), 10)}
	}
	return textNode(plainText(v))
}

func textNode(text string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text}
}

// plainText returns the text of a value other than a number. Secret and URL stay hidden,
// and ${ is escaped.
func plainText(v reflect.Value) string {
	switch value := v.Interface().(type) {
	case time.Duration:
		return durationText(value)
	case int64: // bytes
		return Size(value).String()
	case fmt.Stringer:
		return strings.ReplaceAll(value.String(), "${", "$${")
	}
	return strings.ReplaceAll(v.String(), "${", "$${")
}

// durationText formats a minute as 1m, where the standard library has 1m0s.
func durationText(t time.Duration) string {
	text := t.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// writeJSON writes a node with its keys in order.
func writeJSON(b *bytes.Buffer, n *yaml.Node) error {
	open, end := byte('{'), byte('}')
	switch n.Kind {
	case yaml.ScalarNode:
		if n.Tag == "!!int" || n.Tag == "!!bool" {
			b.WriteString(n.Value)
			return nil
		}
		text, err := json.Marshal(n.Value)
		b.Write(text)
		return err
	case yaml.SequenceNode:
		open, end = '[', ']'
	}

	b.WriteByte(open)
	for i, c := range n.Content {
		if i > 0 {
			b.WriteByte(separator(n.Kind, i))
		}
		if err := writeJSON(b, c); err != nil {
			return err
		}
	}

	b.WriteByte(end)
	return nil
}

// separator returns the separator before the i-th part of a node.
func separator(kind yaml.Kind, i int) byte {
	if kind == yaml.MappingNode && i%2 == 1 {
		return ':'
	}
	return ','
}

// Quote formats a text as a value of a configuration file. It uses JSON's escapes, which
// mean the same in YAML's double quotes, and escapes ${.
func Quote(text string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(strings.ReplaceAll(text, "${", "$${")); err != nil {
		panic("config: encode text as JSON: " + err.Error())
	}
	return strings.TrimSpace(b.String())
}
