package webhook

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/event"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/template"
)

// Fields returns the attributes and the group that a valid configuration sends, by key. The
// defaults of CloudEvents are not among them.
func (c *Config) Fields() []sink.Field {
	path, query, _ := strings.Cut(string(c.URL), "?")
	events := c.events()
	all := slices.Concat(template.FieldsOf("url", path, true), template.FieldsOf("url", query, true), events.Fields())
	for i, word := range c.MetadataHeaders {
		_, text := metadata(word)
		all = append(all, template.FieldsOf(fmt.Sprintf("metadata-headers[%d]", i), text, false)...)
	}
	return all
}

// events returns the settings of the CloudEvents.
func (c *Config) events() event.Settings {
	return event.Settings{
		Format: event.Format(c.Format), ContentType: c.ContentType, CloudEventsSource: c.CloudEventsSource,
		CloudEventsType: c.CloudEventsType, CloudEventsSubject: c.CloudEventsSubject, Headers: c.Headers, IDPrefix: c.IDPrefix,
	}
}
