package webhook

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/dispatch/sink/internal/template"
	"github.com/sluicebox/sluicebox/store"
)

// Field is a value of the row that a configuration sends.
type Field struct {
	Key       string // the configuration key, for example headers.X-Tenant
	Attribute string // the attribute, "" for the message group

	// Required: a row without the value is not sent. Otherwise only the value is left out.
	Required bool
}

// String returns the field as a template has it.
func (f Field) String() string {
	switch f.Attribute {
	case "":
		return "{group}"
	case store.AttributeKind, store.AttributeType:
		return "{" + f.Attribute + "}"
	}
	return "{attr." + f.Attribute + "}"
}

// Fields returns the attributes and the group that a valid configuration sends, by key. The
// defaults of CloudEvents are not among them.
func (c *Config) Fields() (all []Field) {
	add := func(key, text string, required bool) {
		t := template.MustParse(text)
		if t.UsesGroup() {
			all = append(all, Field{Key: key, Required: required})
		}
		for _, name := range t.Attributes() {
			all = append(all, Field{key, name, required})
		}
	}
	path, query, _ := strings.Cut(string(c.URL), "?")
	add("url", path, true)
	add("url", query, true)
	add("cloudevents-type", c.CloudEventsType, true)
	add("cloudevents-subject", c.CloudEventsSubject, false)
	for _, name := range slices.Sorted(maps.Keys(c.Headers)) {
		add("headers."+name, string(c.Headers[name]), false)
	}
	for i, word := range c.MetadataHeaders {
		_, text := metadata(word)
		add(fmt.Sprintf("metadata-headers[%d]", i), text, false)
	}
	return all
}
