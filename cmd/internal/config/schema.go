package config

import (
	"encoding/json"
	"reflect"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/tracing"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// SchemaID is the dialect of the schema.
const SchemaID = "https://json-schema.org/draft/2020-12/schema"

const (
	durationPattern = `^([0-9]+d|[0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`
	sizePattern     = `^[0-9]+ *(B|kB|MB|GB|KiB|MiB|GiB)?$`
	ratePattern     = `^[0-9]+(\.[0-9]+)? */[smh]$`
)

// Schema returns the JSON Schema of a configuration file, for completion and validation
// in editors.
func Schema() []byte {
	defaults := Default()
	s := sectionSchema(reflect.ValueOf(defaults))
	s["$schema"] = SchemaID
	s["title"] = "Sluicebox configuration"
	s["description"] = "Every key of one value can also be set by a variable: dispatch.max-retries by " + variableName("dispatch.max-retries") + ", and so on."
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		panic("config: encode schema as JSON: " + err.Error())
	}
	return append(text, '\n')
}

// sectionSchema returns the schema of a section with the defaults in v. A key with several
// variants has one schema for each, which applies if its conditions do.
func sectionSchema(v reflect.Value) map[string]any {
	properties := map[string]any{}
	var choices []any
	for _, key := range variants(fieldsOf(v.Type())) {
		of := properties
		for i := range key {
			f := &key[i]
			if len(key) > 1 {
				of = map[string]any{}
				choices = append(choices, map[string]any{"if": conditionSchema(f.conditions), "then": map[string]any{"properties": of}})
				properties[f.name] = map[string]any{"description": "Depends on " + f.conditions[0].key + "."}
			}
			s := valueSchema(v.FieldByIndex(f.index), *f)
			s["description"] = f.doc + f.conditionText("")
			of[f.name] = s
			if f.alias != "" {
				second := valueSchema(v.FieldByIndex(f.index), *f)
				second["description"] = "Another name for " + f.name + "."
				properties[f.alias] = second
			}
		}
	}

	s := map[string]any{
		"type":                 "object",
		"properties":           properties,
		"additionalProperties": false,
	}
	if choices != nil {
		s["allOf"] = choices
	}
	return s
}

// conditionSchema returns the schema of sections that meet conditions.
func conditionSchema(conditions []condition) map[string]any {
	properties := map[string]any{}
	var required []string
	for _, c := range conditions {
		values := map[string]any{"enum": c.values}
		if c.not {
			values = map[string]any{"not": values}
		}
		properties[c.key], required = values, append(required, c.key)
	}
	return map[string]any{"properties": properties, "required": required}
}

func valueSchema(v reflect.Value, f field) map[string]any {
	switch v.Kind() {
	case reflect.Pointer:
		s := valueSchema(defaultOf(v.Type().Elem(), Delivery{}), f)
		delete(s, "default") // optional, without a default
		return s
	case reflect.Struct:
		return sectionSchema(v)
	case reflect.Slice:
		list := map[string]any{"type": "array", "items": entrySchema(v, f)}
		if f.single {
			return map[string]any{"anyOf": []any{entrySchema(v, f), list}}
		}
		return list
	case reflect.Map:
		s := map[string]any{"type": "object", "additionalProperties": entrySchema(v, f)}
		if v.Type().Elem() == reflect.TypeFor[Sink]() {
			s["propertyNames"] = map[string]any{"pattern": sinkName.String()}
		}
		return s
	}

	s := scalarSchema(v)
	if f.enum != nil {
		s["enum"] = slices.Concat(f.enum, f.spellings)
	}
	return s
}

// entrySchema returns the schema of the entries of a list or a map.
func entrySchema(v reflect.Value, f field) map[string]any {
	return valueSchema(defaultOf(v.Type().Elem(), Default().Dispatch.Delivery), field{enum: f.enum, single: f.single && v.Kind() == reflect.Map})
}

// scalarSchema returns the type of a value, and its default unless that is empty.
func scalarSchema(v reflect.Value) map[string]any {
	switch v.Interface().(type) {
	case int:
		return map[string]any{"type": "integer", "default": v.Int()}
	case bool:
		return map[string]any{"type": "boolean", "default": v.Bool()}
	case time.Duration:
		return map[string]any{"type": "string", "pattern": durationPattern, "default": plainText(v)}
	case dispatch.Rate:
		return map[string]any{"type": "string", "pattern": ratePattern, "default": plainText(v)}
	case tracing.Ratio:
		return map[string]any{"type": []string{"number", "string"}, "minimum": 0, "maximum": 1, "default": v.Float()}
	case Size, int64: // bytes
		return map[string]any{"type": []string{"string", "integer"}, "pattern": sizePattern, "minimum": 0, "default": plainText(v)}
	}

	s := map[string]any{"type": "string"}
	switch v.Interface().(type) {
	case sink.Secret, URL:
		s["writeOnly"] = true // the program never prints what it holds
	}
	if text := plainText(v); text != "" {
		s["default"] = text
	}
	return s
}
