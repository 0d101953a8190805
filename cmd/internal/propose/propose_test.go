package propose_test

import (
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/cmd/internal/propose"
	"github.com/sluicebox/sluicebox/store"
)

// Columns of the types that tables have, as a store describes them.
func text(name string) store.ColumnInfo {
	return store.ColumnInfo{Name: name, Type: "text", Text: true, JSON: true, NotNull: true}
}

func number(name string) store.ColumnInfo {
	return store.ColumnInfo{Name: name, Type: "bigint", Integer: true, NotNull: true, Min: -1 << 63, Max: 1<<63 - 1}
}

func object(name string) store.ColumnInfo {
	return store.ColumnInfo{Name: name, Type: "jsonb", Object: true, JSON: true, NotNull: true}
}

func binary(name string) store.ColumnInfo {
	return store.ColumnInfo{Name: name, Type: "bytea", Bytes: true, JSON: true, NotNull: true}
}

func moment(name string) store.ColumnInfo {
	return store.ColumnInfo{Name: name, Type: "timestamptz", Time: true}
}

func boolean(name string) store.ColumnInfo {
	return store.ColumnInfo{Name: name, Type: "boolean", Boolean: true, NotNull: true}
}

func with(c store.ColumnInfo, change func(c *store.ColumnInfo)) store.ColumnInfo {
	change(&c)
	return c
}

func byDefault(c store.ColumnInfo, value string) store.ColumnInfo {
	return with(c, func(c *store.ColumnInfo) { c.Default = value })
}

func enum(name string, values ...string) store.ColumnInfo {
	return store.ColumnInfo{Name: name, Type: "outbox_status", Enum: values, NotNull: true}
}

// table is a table of PostgreSQL whose primary key is its first column.
func table(name string, columns ...store.ColumnInfo) *store.TableInfo {
	return &store.TableInfo{
		Outbox: store.Outbox{Name: name, Table: name}, Database: "PostgreSQL", Columns: columns, Keys: []string{columns[0].Name},
		KeyStatement: func(column string) string { return "CREATE UNIQUE INDEX ON t (" + column + ");" },
	}
}

// proposed returns the proposal for a table, without its comments, and with them.
func proposed(t *testing.T, r *propose.Request) (bare, full string) {
	t.Helper()
	p, err := propose.Propose(r)
	if err != nil {
		t.Fatal(err)
	}
	full, err = p.YAML()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(full) {
		line, _, _ = strings.Cut(strings.TrimRight(line, "\n"), "#")
		if line = strings.TrimRight(line, " "); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n") + "\n", full
}

// TestPropose has a table for each kind of guess, with lines of the proposal, or with - lines
// that it lacks.
func TestPropose(t *testing.T) {
	for name, tt := range map[string]struct {
		table *store.TableInfo
		want  []string
	}{
		"the primary key, among unique columns": {
			with2(table("outbox", number("id"), text("event_id"), object("payload"), moment("sent_at")), func(t *store.TableInfo) { t.Keys = []string{"id", "event_id"} }),
			[]string{"id: id # sure: the primary key; event_id would do too, if receivers know rows by it\n"}},
		"no unique index": {
			with2(table("outbox", number("id"), object("payload"), moment("sent_at")), func(t *store.TableInfo) { t.Keys = nil }),
			[]string{"id: id # DECIDE: no unique index finds a row by it, and the relay needs one: CREATE UNIQUE INDEX ON t (id);\n"}},
		"a key that begins with the partition": {
			with2(table("outbox", moment("created_at"), number("id"), object("payload"), moment("sent_at")), func(t *store.TableInfo) { t.Partitioned = true }),
			[]string{"id: id # DECIDE"}},
		"a payload by its type": {
			table("outbox", number("id"), object("headers"), object("stuff"), text("event_type"), moment("sent_at")),
			[]string{"payload: stuff # likely: the only column of type jsonb\n", "attributes: [headers.*] # likely", "type: event_type # likely"}},
		"two payloads by their type": {
			table("outbox", number("id"), binary("before"), binary("after"), moment("sent_at")),
			[]string{"payload: before # DECIDE: of type bytea, like after\n"}},
		"a group of two columns": {
			table("outbox", number("id"), text("AggregateType"), text("AggregateId"), object("payload"), moment("sent_at")),
			[]string{"group: [AggregateType, AggregateId] # likely", "kind: AggregateType # likely"}},
		"a tenant's partition": {
			table("outbox", number("id"), number("tenant_id"), text("partition_id"), object("payload"), moment("sent_at")),
			[]string{"group: [tenant_id, partition_id] # likely", "attributes: [tenant_id] # likely", "  kind: event # likely"}},
		"groups to choose from": {
			table("orders_outbox", number("id"), number("customer_id"), number("order_id"), object("payload"), moment("sent_at")),
			[]string{"group: order_id # DECIDE: whose rows have to stay in order; or customer_id, or a list of columns for each combination\n", "  kind: orders # likely"}},
		"the group of a tenant": {
			table("orders_outbox", number("id"), number("tenant_id"), text("aggregate_id"), object("payload"), moment("sent_at")),
			[]string{"group: aggregate_id # DECIDE: whose rows have to stay in order; or tenant_id, or [tenant_id, aggregate_id] for each combination\n"}},
		"random ids without a time": {
			table("outbox", with(text("id"), func(c *store.ColumnInfo) { c.Type = "uuid" }), object("payload"), boolean("sent")),
			[]string{"order-by: [id] # DECIDE: no column says when a row was inserted, and ids of type uuid ascend only if", "-# No column says when"}},
		"random ids beside a time": {
			table("outbox", with(text("id"), func(c *store.ColumnInfo) { c.Type = "uuid" }), object("payload"), boolean("sent"), moment("created_at")),
			[]string{"order-by: [created_at] # likely"}},
		"numbers without a time": {
			table("outbox", number("id"), object("payload"), boolean("sent")),
			[]string{"# No column says when a row was inserted", "-order-by:"}},
		"no group": {
			table("outbox", number("id"), object("payload"), moment("sent_at")),
			[]string{"# No column is a message group, so all rows are sent one after the other. columns.group names one.\n", "-group:"}},
		"a generated group": {
			table("outbox", number("id"), with(text("customer_id"), func(c *store.ColumnInfo) { c.Expression = "((payload -> 'customer no'::text) ->> 'id'::text)" }), object("payload"), moment("sent_at")),
			[]string{"group: payload # likely: customer_id is a generated column", `group-path: '"customer no".id' # likely`}},
		"a group that is computed otherwise": {
			table("outbox", number("id"), with(text("customer_id"), func(c *store.ColumnInfo) { c.Expression = "lower((payload ->> 'id'::text))" }), object("payload"), moment("sent_at")),
			[]string{"# customer_id is a generated column, which PostgreSQL's log does not contain: it cannot be the message group.", "-group:"}},
		"times": {
			table("outbox", number("id"), object("payload"), moment("created_at"), moment("processedAt"), moment("failedAt"), text("last_error"), number("attempts"), moment("locked_at")),
			[]string{"delivered: processedAt # likely", "failed: failedAt # likely", "claimed: locked_at # likely", "state: timestamps # likely", "order-by: [created_at] # likely", "retry-count: attempts", "error: last_error"}},
		"a lease": {
			table("outbox", number("id"), object("payload"), moment("sent_at"), moment("locked_until")),
			[]string{"lease: locked_until # likely", "dispatch:\n  takeover: timeout # sure"}},
		"a time that is never NULL": {
			table("outbox", number("id"), object("payload"), with(moment("sent_at"), func(c *store.ColumnInfo) { c.NotNull = true })),
			[]string{"state: none # DECIDE"}},
		"a flag": {
			table("outbox", number("id"), object("payload"), boolean("is_published")),
			[]string{"status: is_published # likely", "state: boolean # sure"}},
		"a number that is a flag": {
			table("outbox", number("id"), object("payload"), byDefault(number("processed"), "0")),
			[]string{"state: numbers # sure", "pending: 0 # likely", "completed: 1 # likely"}},
		"an enumeration": {
			table("outbox", number("id"), object("payload"), enum("state", "QUEUED", "SENDING", "SENT", "DEAD", "ON_HOLD"), moment("published_at"), moment("claimed_at")),
			[]string{"pending: QUEUED # sure: the values of type outbox_status\n", "processing: SENDING # sure", "completed: SENT # sure", "failed: DEAD # sure", "delivered: published_at # likely",
				"claimed: claimed_at", `# Rows with another state are left alone: "ON_HOLD".`}},
		"an enumeration with synonyms": {
			table("outbox", number("id"), object("payload"), enum("status", "new", "sent", "delivered")),
			[]string{"completed: sent # DECIDE: the values of type outbox_status, like delivered\n"}},
		"an enumeration in another language": {
			table("outbox", number("id"), object("payload"), byDefault(enum("status", "neu", "gesendet"), "neu")),
			[]string{"pending: neu # sure: the default of the column\n", "completed: gesendet # DECIDE"}},
		"an enumeration without an end": {
			table("outbox", number("id"), object("payload"), enum("status", "NEW", "FAILED")),
			[]string{"delete-delivered: true # DECIDE: status has no value for delivered rows", "-completed:", "failed: FAILED # sure"}},
		"words of a constraint": {
			table("outbox", number("id"), object("payload"), with(text("status"), func(c *store.ColumnInfo) { c.Allowed = []string{"N", "S", "F"} })),
			[]string{"pending: N # DECIDE: a constraint allows it; a letter says little\n", "completed: S # DECIDE", "failed: F # DECIDE"}},
		"words of rows": {
			table("outbox", number("id"), object("payload"), with(text("status"), func(c *store.ColumnInfo) { c.Values = []string{"in-progress", "open", "done"} })),
			[]string{"pending: open # likely: found in a sample of the rows\n", "processing: in-progress # likely", "completed: done # likely"}},
		"words of which rows show one": {
			table("outbox", number("id"), object("payload"), with(text("status"), func(c *store.ColumnInfo) { c.Values = []string{"pending"} })),
			[]string{"pending: pending # likely", "completed: completed # DECIDE: an assumption: no row shows the value of a delivered row\n"}},
		"words that nothing shows": {
			table("outbox", number("id"), object("payload"), with(text("status"), func(c *store.ColumnInfo) { c.Length = 4 })),
			[]string{"pending: NEW # DECIDE: an assumption", "completed: SENT # DECIDE: an assumption"}},
		"a letter that nothing explains": {
			table("outbox", number("id"), object("payload"), byDefault(text("status"), "n")),
			[]string{"pending: n # sure: the default of the column\n", "completed: s # DECIDE: an assumption"}},
		"a default that sounds like an end": {
			table("outbox", number("id"), object("payload"), with(text("status"), func(c *store.ColumnInfo) { c.Default, c.Allowed = "PUBLISHED", []string{"PUBLISHED", "COMPLETED"} })),
			[]string{"pending: PUBLISHED # DECIDE: the default of the column", "completed: COMPLETED # sure"}},
		"numbers of a comment": {
			table("outbox", number("id"), object("payload"), with(number("status"), func(c *store.ColumnInfo) { c.Comment = "0 - new; 10 - sending; 20 - sent; 90 - error" })),
			[]string{"pending: 0 # sure: the comment of the column\n", "processing: 10 # sure", "completed: 20 # sure", "failed: 90 # sure"}},
		"numbers of rows": {
			table("outbox", number("id"), object("payload"), with(number("status"), func(c *store.ColumnInfo) { c.Default, c.Values = "10", []string{"10", "20", "30"} })),
			[]string{"pending: 10 # sure: the default of the column\n", "completed: 20 # DECIDE: an assumption: the value of a delivered row; there are 10, 20, 30\n", "# Rows with another status are left alone: 30.\n"}},
		"no state": {
			table("outbox", number("id"), object("payload"), text("type")),
			[]string{"state: none # DECIDE: no column shows which rows were delivered", "-words:", "-status:"}},
		"a generated state": {
			table("outbox", number("id"), object("payload"), with(text("status"), func(c *store.ColumnInfo) { c.Expression = "CASE …" }), moment("sent_at")),
			[]string{"state: timestamps # likely", "-status:"}},
		"words of YAML": {
			table("outbox", number("id"), object("payload"), enum("status", "null", "new", "yes", "ok")),
			[]string{"pending: new", "completed: ok", `"null", "yes"`}},
		"texts for times in documents": {
			with2(table("outbox", with(text("_id"), func(c *store.ColumnInfo) { c.Type = "objectId" }), object("payload"), with(text("sentAt"), func(c *store.ColumnInfo) { c.Time, c.TextTime, c.NotNull = true, true, false })), func(t *store.TableInfo) { t.Documents, t.Sampled = true, 7 }),
			[]string{"from a sample of 7 documents", "id: _id # sure", "state: timestamps", "text-times: true # likely: sentAt holds texts"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, full := proposed(t, &propose.Request{Table: tt.table})
			for _, line := range tt.want {
				absent, not := strings.CutPrefix(line, "-")
				if strings.Contains(full, absent) == not {
					t.Errorf("found: %t, want %t: %q", not, !not, absent)
				}
			}
			if t.Failed() {
				t.Log("\n" + full)
			}
		})
	}
}

func with2(t *store.TableInfo, change func(t *store.TableInfo)) *store.TableInfo {
	change(t)
	return t
}

// TestProposeKnownLayouts: a table of another project gets its layout, and a table that only
// resembles one does not.
func TestProposeKnownLayouts(t *testing.T) {
	debezium := func() []store.ColumnInfo {
		return []store.ColumnInfo{text("id"), text("aggregatetype"), text("aggregateid"), text("type"), object("payload")}
	}
	flowcatalyst := func(status store.ColumnInfo) []store.ColumnInfo {
		return []store.ColumnInfo{text("id"), text("type"), text("message_group"), text("payload"), status, number("retry_count"), moment("created_at"), moment("processed_at"), text("error_message")}
	}
	for name, tt := range map[string]struct {
		table *store.TableInfo
		want  []string
	}{
		"by name and columns":   {table("outbox", debezium()...), []string{"layout: debezium # sure", "-columns:", "-kind:"}},
		"by columns":            {table("letters", debezium()...), []string{"layout: debezium # likely"}},
		"with more columns":     {table("outboxevent", append(debezium(), moment("timestamp"), text("tracingspancontext"))...), []string{"layout: debezium", "time: timestamp # likely", "attributes: [tracingspancontext] # likely"}},
		"with a state":          {table("outbox", append(debezium(), moment("sent_at"))...), []string{"layout: custom", "delivered: sent_at"}},
		"of a platform":         {table("outbox_dispatch_jobs", flowcatalyst(text("status"))...), []string{"layout: flowcatalyst # likely", "kind: DISPATCH_JOB # likely", "type: flowcatalyst\n", "api-base-url: https://platform.example # DECIDE"}},
		"with other words":      {table("outbox_events", flowcatalyst(enum("status", "NEW", "SENT"))...), []string{"layout: custom", "pending: NEW"}},
		"with numbers":          {table("outbox_events", flowcatalyst(number("status"))...), []string{"layout: custom", "state: numbers"}},
		"with the longest list": {table("event_publication", text("id"), text("listener_id"), text("event_type"), text("serialized_event"), moment("publication_date"), moment("completion_date"), text("status")), []string{"layout: modulith # sure"}},
		"of an older version":   {table("event_publication", text("id"), text("listener_id"), text("event_type"), text("serialized_event"), moment("publication_date"), moment("completion_date")), []string{"layout: modulith-v1 # sure"}},
		"with a lease": {table("outbox_events", number("id"), text("aggregate_type"), text("aggregate_id"), text("event_type"), text("correlation_id"), text("payload"), moment("created_at"), moment("sent_at"),
			moment("in_progress_until"), number("permanent_failure_count"), text("last_error")), []string{"layout: catbox # sure", "takeover: timeout"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, full := proposed(t, &propose.Request{Table: tt.table})
			for _, line := range tt.want {
				absent, not := strings.CutPrefix(line, "-")
				if strings.Contains(full, absent) == not {
					t.Errorf("found: %t, want %t: %q in\n%s", not, !not, absent, full)
				}
			}
		})
	}
}

// TestProposeWithSinks: a configured sink is used, and FlowCatalyst's gets one of its kinds.
func TestProposeWithSinks(t *testing.T) {
	outbox := table("outbox", number("id"), text("aggregate_type"), text("aggregate_id"), object("payload"), moment("sent_at"))
	bare, full := proposed(t, &propose.Request{Table: outbox, Sinks: []string{"hooks", "other"}, FlowCatalyst: func(string) bool { return false }})
	if !strings.Contains(full, "  sink: hooks # DECIDE: or other\n") || strings.Contains(bare, "sinks:") {
		t.Errorf("with two sinks:\n%s", full)
	}
	_, full = proposed(t, &propose.Request{Table: outbox, Sinks: []string{"platform"}, FlowCatalyst: func(string) bool { return true }})
	if !strings.Contains(full, "  kind: EVENT # DECIDE: or DISPATCH_JOB") || strings.Contains(full, "    kind:") {
		t.Errorf("for FlowCatalyst:\n%s", full)
	}
}

// TestProposeFaults: without an id or a payload there is no proposal, and the error says what to
// do.
func TestProposeFaults(t *testing.T) {
	noID := table("t", moment("at"), object("payload"))
	noID.Keys = nil
	for want, info := range map[string]*store.TableInfo{
		"t has no column that could be the id of a row: none has a unique index of its own; -- add such a column, then\nCREATE UNIQUE INDEX ON t (id);": noID,
		"t has no column that could be the payload: none of JSON, bytes or long texts is left; write the outbox yourself":                               table("t", number("id"), moment("sent_at")),
	} {
		if _, err := propose.Propose(&propose.Request{Table: info}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
