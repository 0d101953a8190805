package config

import (
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/sluicebox/sluicebox/store"
)

// presetSink is the name of the sink that the preset makes.
const presetSink = "flowcatalyst"

// expand puts the outboxes and the sink that the preset stands for in its place.
func (d *decoder) expand(s *Settings) {
	p := s.FlowCatalyst
	if p == nil {
		if len(s.Outboxes) == 0 && d.sound("flowcatalyst") && d.sound("outboxes") && d.sound("sinks") {
			d.fail("", "there is nothing to relay; write a section flowcatalyst with its api-base-url, or outboxes and sinks")
		}
		return
	}
	if len(s.Outboxes) > 0 || len(s.Sinks) > 0 {
		d.fail("flowcatalyst", "is a preset that stands for outboxes and sinks of its own; keep the one or the other (`sluicebox config check` on the preset alone prints what it stands for)")
		s.FlowCatalyst = nil
		return
	}
	s.Sinks = map[string]Sink{presetSink: {
		Type: "flowcatalyst", Wire: p.Wire, APIBaseURL: p.APIBaseURL, Token: p.APIToken, CAFile: p.CAFile,
		Delivery: s.Dispatch.Delivery,
	}}
	sink := "sinks." + presetSink
	d.written[sink+".wire"] = "flowcatalyst.wire"
	d.written[sink+".api-base-url"] = "flowcatalyst.api-base-url"
	d.written[sink+".token"] = "flowcatalyst.api-token"
	d.written[sink+".ca-file"] = "flowcatalyst.ca-file"
	for _, o := range []struct{ key, table, kind string }{
		{"events-table", p.EventsTable, "EVENT"},
		{"dispatch-jobs-table", p.DispatchJobsTable, "DISPATCH_JOB"},
	} {
		if o.table == "" {
			continue
		}
		d.written[entry(len(s.Outboxes))+".table"] = "flowcatalyst." + o.key
		s.Outboxes = append(s.Outboxes, Outbox{Table: o.table, Layout: "flowcatalyst", Kind: o.kind, Sink: presetSink})
	}
	if len(s.Outboxes) == 0 && d.sound("flowcatalyst") {
		d.fail("flowcatalyst", "has neither an events-table nor a dispatch-jobs-table; name one at least")
	}
	s.FlowCatalyst = nil
}

func entry(i int) string { return "outboxes[" + strconv.Itoa(i) + "]" }

func (d *decoder) checkSinks(sinks map[string]Sink) {
	for _, name := range slices.Sorted(maps.Keys(sinks)) {
		path, s := "sinks."+name, sinks[name]
		if !sinkName.MatchString(name) {
			d.fail(path, "is no name for a sink; use 1 to 40 of the characters a-z, 0-9, _ and -")
			continue
		}
		d.need(path+".type", s.Type, "write type: flowcatalyst")
		d.need(path+".api-base-url", s.APIBaseURL.Reveal(), "write https://host[:port]")
		d.checkFlowCatalyst(path, &s)
		d.checkDelivery(path, &s.Delivery)
	}
}

// checkFlowCatalyst asks the sink itself, whose messages begin with the key.
func (d *decoder) checkFlowCatalyst(path string, s *Sink) {
	// An @ is a user or a password that may have run into the path, and what is
	// no URL may hold one: neither is shown.
	base, raw := path+".api-base-url", s.APIBaseURL.Reveal()
	if _, err := url.Parse(raw); err != nil && d.sound(base) {
		d.fail(base, "is not a URL such as https://platform.example:8443")
	} else if strings.Contains(raw, "@") && d.sound(base) {
		d.fail(base, "must hold no user and no password; the token has a key of its own")
	}
	c := s.flowCatalyst()
	for _, text := range messages(c.Validate()) {
		key, rest, _ := strings.Cut(text, " ")
		if key == "api-token" {
			key = "token"
		}
		if p := path + "." + key; d.sound(p) && d.own(path, key) {
			d.fail(p, "%s", rest)
		}
	}
}

func (d *decoder) checkOutboxes(s *Settings) {
	names, tables := map[string]int{}, map[string]int{}
	for i := range s.Outboxes {
		o, path := &s.Outboxes[i], entry(i)
		if d.need(path+".table", o.Table, "name the table") {
			d.checkTable(path+".table", o.Table, s.Source.URL.SQLite())
			if o.Name == "" {
				o.Name = o.Table
			}
			if d.unique(tables, path+".table", o.Table, i, "the table", "two outboxes over one table are not in this version") {
				d.unique(names, path+".name", o.Name, i, "the name", "give one of them a name of its own")
			}
		}
		d.need(path+".layout", o.Layout, "write layout: flowcatalyst or layout: outbox-messages")
		d.checkKind(path+".kind", o, s.Sinks[o.Sink])
		d.checkRoute(path+".sink", o.Sink, s.Sinks)
	}
}

// unique records an outbox that shares with an earlier one what it may not.
func (d *decoder) unique(seen map[string]int, path, value string, i int, what, remedy string) bool {
	first, taken := seen[value]
	if !taken {
		seen[value] = i
		return true
	}
	if d.sound(entry(i)) {
		d.fail(path, "%s %q is that of %s too; %s", what, value, d.original(entry(first)+".table"), remedy)
	}
	return false
}

func (d *decoder) checkTable(path, table string, file bool) {
	parts := strings.Split(table, ".")
	if file && len(parts) == 2 && !strings.EqualFold(parts[0], "main") {
		d.fail(path, "is %q, but an SQLite file has no schemas; name the table alone", table)
	} else if len(parts) > 2 || slices.ContainsFunc(parts, badIdentifier) {
		d.fail(path, "is %q, must be table or schema.table in its exact spelling, without quotes, 63 bytes each at most", table)
	}
}

// badIdentifier reports whether no object of PostgreSQL can have the name. SQLite
// takes more, which nobody uses.
func badIdentifier(name string) bool {
	return name == "" || len(name) > 63 || strings.ContainsAny(name, "\x00\"") || name != strings.TrimSpace(name)
}

// checkKind looks after the rows of a layout without a column for the kind, and
// after kinds that a sink has no path for.
func (d *decoder) checkKind(path string, o *Outbox, sink Sink) {
	switch {
	case !d.sound(path):
	case o.Layout == store.FlowCatalyst().Name && o.Kind == "":
		d.fail(path, "is required: the flowcatalyst layout has no column for it; write kind: EVENT or kind: DISPATCH_JOB")
	case o.Layout == store.OutboxMessages().Name && o.Kind != "":
		d.fail(path, "has no place here: the outbox-messages layout has the kind in its column type")
	case o.Kind != "":
		c := sink.flowCatalyst()
		if err := c.CheckKind(o.Kind); err != nil {
			d.fail(path, "%s in the sink %s", err, o.Sink)
		}
	}
}

func (d *decoder) checkRoute(path, name string, sinks map[string]Sink) {
	known := slices.Sorted(maps.Keys(sinks))
	have := "the sinks are " + strings.Join(known, ", ")
	if len(known) == 0 {
		have = "write a section sinks"
	}
	if !d.need(path, name, have) {
		return
	}
	if _, ok := sinks[name]; ok || !d.sound(path) || !d.sound("sinks") {
		return
	}
	if near := nearest(name, known); near != "" {
		have = "did you mean " + near + "?"
	}
	d.fail(path, "is %s, but there is no sink of that name; %s", name, have)
}

// splitTable returns the schema, "" if none is written, and the table.
func splitTable(table string) (schema, name string) {
	if before, after, ok := strings.Cut(table, "."); ok {
		return before, after
	}
	return "", table
}
