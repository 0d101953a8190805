package config

import (
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
)

// decodeScalar decodes a scalar value.
func (d *decoder) decodeScalar(path string, n *yaml.Node, v reflect.Value, f field) {
	name := variableName(path)
	d.knownVariables[name] = true
	if text, ok := d.overrides[name]; ok {
		d.locations[path] = location{name: name}
		d.setValue(path, text, v, f)
		return
	}
	if n == nil {
		return
	}
	if text, ok := d.scalarText(path, n, v); ok {
		d.setValue(path, text, v, f)
	}
}

// scalarText returns the text of a scalar node whose type fits v.
func (d *decoder) scalarText(path string, n *yaml.Node, v reflect.Value) (string, bool) {
	tag := n.ShortTag()
	switch {
	case n.Kind != yaml.ScalarNode:
		d.fail(path, "must be one value, not a list or a section")
	case tag == "!!null":
		d.fail(path, "has no value; omit the key for its default")
	case isText(v.Type()) && tag != "!!str":
		d.fail(path, "must be a text; put it in quotes")
	case v.Type() == reflect.TypeFor[int]() && tag != "!!int":
		d.fail(path, "must be a whole number, without quotes")
	case v.Kind() == reflect.Bool && tag != "!!bool":
		d.fail(path, "must be true or false, without quotes")
	default:
		return n.Value, true
	}

	return "", false
}

func isText(t reflect.Type) bool { return t.Kind() == reflect.String }

// setValue parses a text into v.
func (d *decoder) setValue(path, text string, v reflect.Value, f field) {
	switch target := v.Addr().Interface().(type) {
	case *int:
		n, err := strconv.Atoi(text)
		if err != nil {
			d.fail(path, "is %q, must be a whole number such as 100", text)
			return
		}
		*target = n
	case *bool:
		if text != "true" && text != "false" {
			d.fail(path, "is %q, must be true or false", text)
			return
		}
		*target = text == "true"
	case *time.Duration:
		t, err := parseDuration(text)
		if err != nil {
			d.fail(path, "is %q, must be a time with its unit, such as 200ms, 30s, 5m or 7d", text)
			return
		}
		*target = t
	case *Size:
		size, err := ParseSize(text)
		if err != nil {
			d.fail(path, "%q %s", text, err)
			return
		}
		*target = size
	default:
		d.setText(path, text, v, f)
	}
}

// days matches the days of a duration.
var days = regexp.MustCompile(`[0-9.]+d`)

// parseDuration parses a duration, in which 7d is 168h.
func parseDuration(text string) (time.Duration, error) {
	return time.ParseDuration(days.ReplaceAllStringFunc(text, func(part string) string {
		n, err := strconv.ParseInt(strings.TrimSuffix(part, "d"), 10, 32)
		if err != nil {
			return part // not a duration
		}
		return strconv.FormatInt(24*n, 10) + "h"
	}))
}

// setText stores a text with resolved references in v, of any string type.
func (d *decoder) setText(path, text string, v reflect.Value, f field) {
	if f.enum != nil {
		if text == "" && f.empty != "" {
			text = f.empty
		}
		if !slices.Contains(f.enum, text) {
			d.fail(path, "%s", invalidEnumText(text, f))
			return
		}
		v.SetString(text)
		return
	}

	value, err := d.resolve(text)
	if err != nil {
		d.failReference(path, err)
		return
	}

	v.SetString(value)
}
