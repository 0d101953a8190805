package config

import (
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/dispatch/sink/flowcatalyst"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/layouts"
)

// presetSink is the name of the preset's sink.
const presetSink = "flowcatalyst"

// expandPreset replaces the preset with its outboxes and its sink.
func (k *checker) expandPreset(s *Settings) {
	p := s.FlowCatalyst
	if p == nil {
		if len(s.Outboxes) == 0 && k.hasNoProblem("flowcatalyst") && k.hasNoProblem("outboxes") && k.hasNoProblem("sinks") {
			k.fail("", "nothing to relay; add a section flowcatalyst with its api-base-url, or outboxes and sinks")
		}
		return
	}
	if len(s.Outboxes) > 0 || len(s.Sinks) > 0 {
		k.fail("flowcatalyst", "is a preset for outboxes and sinks and excludes them; use one of them (`sluicebox config check` prints the expanded preset)")
		s.FlowCatalyst = nil
		return
	}
	sink := defaultSink(s.Dispatch.Delivery)
	sink.Type, sink.Wire, sink.APIBaseURL, sink.Token, sink.OAuth, sink.CAFile, sink.ErrorDetail =
		SinkFlowCatalyst, p.Wire, p.APIBaseURL, p.APIToken, p.OAuth, p.CAFile, p.ErrorDetail
	s.Sinks = map[string]Sink{presetSink: sink}
	for _, key := range []string{"wire", "api-base-url", "oauth", "ca-file", "error-detail"} {
		k.presetKeys["sinks."+presetSink+"."+key] = "flowcatalyst." + key
	}
	for _, f := range fieldsOf(reflect.TypeFor[OAuth]()) {
		k.presetKeys["sinks."+presetSink+".oauth."+f.name] = "flowcatalyst.oauth." + f.name
	}
	k.presetKeys["sinks."+presetSink+".token"] = "flowcatalyst.api-token"
	for _, o := range []struct{ key, table, kind string }{
		{"events-table", p.EventsTable, "EVENT"},
		{"dispatch-jobs-table", p.DispatchJobsTable, "DISPATCH_JOB"},
	} {
		if o.table == "" {
			continue
		}
		k.presetKeys[outboxKey(len(s.Outboxes))+".table"] = "flowcatalyst." + o.key
		k.presetKeys[outboxKey(len(s.Outboxes))+".retention"] = "flowcatalyst.retention"
		k.presetKeys[outboxKey(len(s.Outboxes))+".order-by"] = "flowcatalyst.order-by"
		s.Outboxes = append(s.Outboxes, Outbox{Table: o.table, Layout: "flowcatalyst", Kind: o.kind, Sink: presetSink, OrderBy: p.OrderBy, Retention: p.Retention})
	}
	if len(s.Outboxes) == 0 && k.hasNoProblem("flowcatalyst") {
		k.fail("flowcatalyst", "has neither an events-table nor a dispatch-jobs-table; set at least one")
	}
	s.FlowCatalyst = nil
}

// setDefaultWires sets the default wire of FlowCatalyst sinks by their outboxes, because
// writers of an outbox-messages table use the current API. The array wire has no audit
// logs, so these rows would FAIL without a request.
func (k *checker) setDefaultWires(s *Settings) {
	for _, name := range slices.Sorted(maps.Keys(s.Sinks)) {
		sink := s.Sinks[name]
		if sink.Type != SinkFlowCatalyst {
			continue
		}
		routed := isRoutedTo(s, name)
		var today *Outbox
		for i := range s.Outboxes {
			if o := &s.Outboxes[i]; (o.SendsTo(name) || !routed) && strings.HasPrefix(o.Layout, currentLayoutPrefix) {
				today = o
			}
		}
		switch path := "sinks." + name + ".wire"; {
		case sink.Wire == "" && today != nil:
			sink.Wire = flowcatalyst.WireItems
		case sink.Wire == "":
			sink.Wire = flowcatalyst.WireArray
		case sink.Wire == flowcatalyst.WireArray && today != nil && routed && k.hasNoProblem(path):
			k.fail(path, "is array, but outbox %s has the layout %s, whose rows are for the current API; use wire: items or omit it", today.Table, today.Layout)
		}
		s.Sinks[name] = sink
	}
}

// Defaults of a type of sinks, unless the configuration has the key for all sinks.
const (
	// singleSenders is the default of max-concurrent-groups for webhooks, which mostly take one
	// row a request, and for Camunda: a receiver that takes 20 ms gets 3200 rows/s.
	singleSenders = 64

	// kafkaBatch is the default of api-batch-size for Kafka: of one group 100 rows a request are
	// 19k rows/s, 500 are 22k, and more are hardly faster.
	kafkaBatch = 500
)

// setDefaultSenders sets the defaults of webhooks, of Camunda and of Kafka.
func (k *checker) setDefaultSenders(s *Settings) {
	isSet := func(sink, key string) bool {
		_, forAll := k.locations["dispatch."+key]
		_, own := k.locations["sinks."+sink+"."+key]
		return forAll || own
	}
	for name, sink := range s.Sinks {
		switch {
		case (sink.Type == SinkWebhook || sink.Type == SinkCamunda) && !isSet(name, "max-concurrent-groups"):
			sink.MaxConcurrentGroups = singleSenders
		case sink.Type == SinkKafka && !isSet(name, "api-batch-size"):
			sink.APIBatchSize = kafkaBatch
		}
		s.Sinks[name] = sink
	}
}

// currentLayoutPrefix is the prefix of the layouts that current SDKs write.
const currentLayoutPrefix = "outbox-messages"

// isRoutedTo reports whether an outbox routes to a sink. A sink without a route serves
// replays of any outbox.
func isRoutedTo(s *Settings, sink string) bool {
	return slices.ContainsFunc(s.Outboxes, func(o Outbox) bool { return o.SendsTo(sink) })
}

func outboxKey(i int) string { return "outboxes[" + strconv.Itoa(i) + "]" }

func (k *checker) checkSinks(sinks map[string]Sink) {
	for _, name := range slices.Sorted(maps.Keys(sinks)) {
		path, s := "sinks."+name, sinks[name]
		if !sinkName.MatchString(name) {
			k.fail(path, "is not a valid sink name; use 1 to 40 of the characters a-z, 0-9, _ and -")
			continue
		}
		k.checkConditions(path, reflect.ValueOf(s))
		k.requireValue(path+".type", s.Type, "write type: and one of "+strings.Join(enumOf("sinks"), ", "))
		if t, known := sinkTypes()[s.Type]; known {
			if t.require != nil {
				t.require(k, path, &s)
			}
			k.checkSink(path, t.destination(&s, "").validate())
		}
		k.checkDelivery(path, &s.Delivery)
	}
}

// requireFlowCatalyst reports the keys that a FlowCatalyst sink lacks.
func (k *checker) requireFlowCatalyst(path string, s *Sink) {
	k.requireValue(path+".api-base-url", s.APIBaseURL.Reveal(), "write https://host[:port]")
	k.requireClient(path, s)

	// An @ means that a user or password may be part of the path, and an invalid URL may
	// contain one, so neither is shown.
	base, raw := path+".api-base-url", s.APIBaseURL.Reveal()
	if _, err := url.Parse(raw); err != nil && k.hasNoProblem(base) {
		k.fail(base, "is not a URL such as https://platform.example:8443")
	} else if strings.Contains(raw, "@") && k.hasNoProblem(base) {
		k.fail(base, "must not contain a user or a password; the token has its own key")
	}
}

// requireClient reports what an OAuth client lacks.
func (k *checker) requireClient(path string, s *Sink) {
	if s.OAuth != nil {
		k.requireValue(path+".oauth.client-id", s.OAuth.ClientID, "set the OAuth client id")
		k.requireValue(path+".oauth.client-secret", string(s.OAuth.ClientSecret), "use a reference, ${file:/path} or ${env:NAME}")
	}
}

// requireWebhook reports the keys that a webhook lacks.
func (k *checker) requireWebhook(path string, s *Sink) {
	k.requireClient(path, s)
	k.requireValue(path+".url", string(s.Webhook.URL), "write https://host[:port]/path")
}

// checkSink reports the errors of the sink's own validation.
func (k *checker) checkSink(path string, found error) {
	k.failFields(path, found, func(key string) string {
		switch section, _, _ := strings.Cut(key, "."); {
		case key == "api-token":
			return "token"
		case key == "request-timeout", key == "max-connections": // keys of every sink; checked where they are given
			return ""
		case slices.Contains([]string{"sasl", "token", "oauth"}, section) && !k.hasNoProblem(path+".sasl.mechanism"):
			return "" // which keys it needs is not known
		}
		return key
	})
}

func (k *checker) checkOutboxes(s *Settings) {
	names, tables, prefixes := map[string]int{}, map[string]int{}, map[string]int{}
	for i := range s.Outboxes {
		o, path := &s.Outboxes[i], outboxKey(i)
		if o.Prefix != "" {
			k.checkPrefix(path+".message-prefix", o, i, s, prefixes, names)
		} else if k.requireValue(path+".table", o.Table, "name the table") {
			k.checkTable(path+".table", o.Table, s.Source.URL)
			if o.Name == "" {
				o.Name = o.Table
			}
			if k.requireUnique(tables, path+".table", o.Table, i, "the table", "two outboxes over one table are not supported") {
				k.requireUnique(names, path+".name", o.Name, i, "the name", "give one of them another name")
			}
		}
		o.sinkType = s.Sinks[o.Sink].Type
		o.kindInLane = slices.ContainsFunc(o.SinkNames(), func(name string) bool { return s.Sinks[name].Type == SinkFlowCatalyst })
		k.checkConditions(path, reflect.ValueOf(*o))
		if k.requireValue(path+".layout", o.Layout, "write the name of a layout, or layout: custom with the table's own columns") {
			k.checkLayout(path, o, s.Source.URL.documents(), s.Dispatch.Takeover == "timeout")
			k.checkRetention(path+".retention", o, s.Source.URL.documents())
			k.checkArchive(path+".archive", o, s)
			k.checkDeadLetterTable(path+".dead-letter-table", o, s)
			k.checkTransaction(path+".columns.transaction", o, s)
		}
		for _, name := range s.sinksByKinds(o) {
			k.checkKind(path+".kind", o, s.Source.URL.documents(), name, s.Sinks[name])
		}
		k.checkDestinations(path, o, s)
	}
}

// checkPrefix checks an outbox of messages in place of a table.
func (k *checker) checkPrefix(path string, o *Outbox, i int, s *Settings, prefixes, names map[string]int) {
	if o.Name == "" {
		o.Name = o.Prefix
	}
	switch {
	case !k.hasNoProblem(path):
	case o.Table != "":
		k.fail(path, "stands beside table: an outbox is a table or the messages with a prefix; remove one")
	case s.Source.URL != "" && !s.Source.URL.Postgres():
		k.fail(path, "applies only to PostgreSQL, whose WAL has logical messages; name a table")
	case s.Source.Mode == string(sluicebox.ModePoll):
		k.fail(path, "needs source.mode: stream or auto: messages are in the WAL alone, and polling reads tables")
	case strings.ContainsRune(o.Prefix, 0) || len(o.Prefix) > maxPrefix:
		k.fail(path, "is %q, must be the prefix in its exact spelling, %d bytes at most", o.Prefix, maxPrefix)
	case k.requireUnique(prefixes, path, o.Prefix, i, "the prefix", "two outboxes over one prefix are not supported"):
		k.requireUnique(names, outboxKey(i)+".name", o.Name, i, "the name", "give one of them another name")
	}
}

// maxPrefix bounds the prefix of messages; PostgreSQL has no limit of its own.
const maxPrefix = 255

// requireUnique reports an outbox whose value an earlier outbox has.
func (k *checker) requireUnique(seen map[string]int, path, value string, i int, what, remedy string) bool {
	first, taken := seen[value]
	if !taken {
		seen[value] = i
		return true
	}
	if k.hasNoProblem(outboxKey(i)) {
		other := ".table"
		if strings.HasSuffix(path, ".message-prefix") {
			other = ".message-prefix"
		}
		k.fail(path, "%s %q is also that of %s; %s", what, value, k.originalKey(outboxKey(first)+other), remedy)
	}
	return false
}

func (k *checker) checkTable(path, table string, database URL) {
	parts := strings.Split(table, ".")
	if database.documents() {
		if badCollection(table) {
			k.fail(path, "is %q, must be a collection of the URL's database in its exact spelling, without $, %d bytes at most", table, maxCollectionName)
		}
		return
	}
	if database.SQLite() && len(parts) == 2 && !strings.EqualFold(parts[0], "main") {
		k.fail(path, "is %q, but SQLite has no schemas; name only the table", table)
	} else if len(parts) > 2 || slices.ContainsFunc(parts, badIdentifier) {
		k.fail(path, "is %q, must be table or schema.table in its exact spelling, without quotes, 63 bytes each at most", table)
	}
}

// badIdentifier reports whether a name cannot be a PostgreSQL identifier. MySQL allows
// one character more and SQLite anything, but nobody relies on that.
func badIdentifier(name string) bool {
	return name == "" || len(name) > 63 || strings.ContainsAny(name, "\x00\"") || name != strings.TrimSpace(name)
}

// maxCollectionName is the limit for a collection name: 255 bytes for the namespace, of
// which the database name may take 63 (mongodb.com/docs/manual/reference/limits).
const maxCollectionName = 190

// badCollection reports whether a name cannot be a MongoDB collection.
func badCollection(name string) bool {
	return name == "" || len(name) > maxCollectionName || strings.ContainsAny(name, "$\x00") ||
		strings.HasPrefix(name, "system.") || strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".")
}

// badField reports whether a name is neither a document field nor a path of fields.
func badField(path string) bool {
	return slices.ContainsFunc(strings.Split(path, "."), func(name string) bool {
		return name == "" || name[0] == '$' || strings.ContainsRune(name, 0)
	})
}

// checkKind checks the kind of layouts without a kind column, and the kinds that a sink
// supports.
func (k *checker) checkKind(path string, o *Outbox, documents bool, name string, sink Sink) {
	layout := o.storeLayout(documents)
	column := layout.KindColumn()
	if p, _ := layouts.Named(o.Layout); column == "" && o.Kind == "" && sink.Type != SinkFlowCatalyst {
		o.Kind = p.Kind
	}
	switch {
	case !k.hasNoProblem(path) || o.Layout == "" || !k.hasNoProblem(path[:strings.LastIndexByte(path, '.')]+".columns.kind"):
	case column == "" && o.Kind == "":
		example := "set the kind of its rows, for example kind: order"
		if sink.Type == SinkFlowCatalyst {
			example = "write kind: EVENT or kind: DISPATCH_JOB"
		}
		if o.Layout == layoutCustom {
			example += ", or name its column in columns.kind"
		}
		k.fail(path, "is required: the %s layout has no column for it; %s", o.Layout, example)
	case column != "" && o.Kind != "":
		k.fail(path, "does not apply: the %s layout has the kind in its column %s", o.Layout, column)
	case o.Kind != "" && sink.Type == SinkFlowCatalyst:
		kinds := []string{flowcatalyst.KindEvent, flowcatalyst.KindDispatchJob, flowcatalyst.KindAuditLog}
		c := sink.flowCatalystConfig()
		if err := c.CheckKind(o.Kind); !slices.Contains(kinds, o.Kind) {
			k.fail(path, "%s", invalidEnumText(o.Kind, field{enum: kinds}))
		} else if err != nil {
			k.fail(path, "%s in the sink %s", err, name)
		}
	}
}

func (k *checker) checkRoute(path, name string, sinks map[string]Sink) {
	known := slices.Sorted(maps.Keys(sinks))
	have := "the sinks are " + strings.Join(known, ", ")
	if len(known) == 0 {
		have = "write a section sinks"
	}

	if !k.requireValue(path, name, have) {
		return
	}
	if _, ok := sinks[name]; ok || !k.hasNoProblem(path) || !k.hasNoProblem("sinks") {
		return
	}
	if near := store.Nearest(name, known); near != "" {
		have = "did you mean " + near + "?"
	}
	k.fail(path, "is %s, but there is no such sink; %s", name, have)
}

// splitTable returns the schema (or "") and the table.
func splitTable(table string) (schema, name string) {
	if before, after, ok := strings.Cut(table, "."); ok {
		return before, after
	}
	return "", table
}
