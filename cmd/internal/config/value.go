package config

import (
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/sluicebox/sluicebox/cmd/internal/tracing"
	"github.com/sluicebox/sluicebox/dispatch"
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
	case *int64: // bytes
		d.setSize(path, text, (*Size)(target))
	case *Size:
		d.setSize(path, text, target)
	case *dispatch.Rate:
		rate, err := dispatch.ParseRate(text)
		if err != nil {
			d.fail(path, "%q %s", text, err)
			return
		}
		*target = rate
	case *tracing.Ratio:
		ratio, err := tracing.ParseRatio(text)
		if err != nil {
			d.fail(path, "%q %s", text, err)
			return
		}
		*target = ratio
	default:
		d.setText(path, text, v, f)
	}
}

// setSize parses a text into a size.
func (d *decoder) setSize(path, text string, target *Size) {
	size, err := ParseSize(text)
	if err != nil {
		d.fail(path, "%q %s", text, err)
		return
	}
	*target = size
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
		if i := slices.Index(f.spellings, text); i >= 0 {
			text = f.enum[i]
		}
		if !slices.Contains(f.enum, text) {
			d.fail(path, "%s", invalidEnumText(text, f))
			return
		}
		v.SetString(text)
		return
	}

	d.replaced = func(value string) { d.noteReference(path, value) }
	value, err := d.resolve(text, f.template)
	if err != nil {
		d.failReference(path, err)
		return
	}

	v.SetString(value)
}

// Size is a number of bytes. Its text is a whole number with an optional unit, for
// example 64MiB, 1GiB or 500kB.
type Size int64

// unit is a unit of bytes.
type unit struct {
	name  string
	bytes int64
}

// units returns the units. Binary units come first, and a unit precedes its suffixes,
// because ParseSize takes the first match.
func units() []unit {
	return []unit{
		{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
		{"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"B", 1},
	}
}

// ParseSize parses a size.
func ParseSize(text string) (Size, error) {
	number, factor := strings.TrimSpace(text), int64(1)
	for _, u := range units() {
		if rest, ok := strings.CutSuffix(number, u.name); ok {
			number, factor = strings.TrimSpace(rest), u.bytes
			break
		}
	}

	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("is not a size such as 64MiB, 1GiB or 500kB")
	}

	if n > math.MaxInt64/factor {
		return 0, fmt.Errorf("exceeds the largest size")
	}
	return Size(n * factor), nil
}

// String returns the size in its largest exact binary unit.
func (s Size) String() string {
	for _, u := range units()[:3] {
		if s != 0 && int64(s)%u.bytes == 0 {
			return strconv.FormatInt(int64(s)/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(s), 10) + "B"
}
