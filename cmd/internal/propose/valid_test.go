package propose_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/cmd/internal/propose"
	"github.com/sluicebox/sluicebox/store"
)

// names are names that mean something in several spellings, and names that make trouble.
func names() []string {
	return []string{
		"id", "eventId", "EVENT_ID", "uuid", "payload", "Body", "data", "message", "headers", "metadata", "aggregate_type", "aggregatetype", "aggregateId",
		"tenant_id", "partition_id", "customer_id", "order-id", "message_group", "topic", "key", "kind", "type", "event_type", "name", "created_at", "occurredAt", "timestamp",
		"status", "state", "Status", "sent", "is_published", "processed", "sent_at", "processedAt", "failed_at", "locked_at", "locked_until", "in_progress_until", "settled_at",
		"retry_count", "attempts", "last_error", "error", "traceparent", "correlation_id", "version", "record_key", "destination", "creation_time", "published",
		"true", "null", "${env:X}", " blank", "a\"b", "é", "a.b", "$x", strings.Repeat("x", 70), "# no", "- x", "x: y", "status\x1b[31m",
	}
}

func trickyWords() []string {
	return []string{"", "NEW", "new", "PENDING", "SENT", "done", "FAILED", "IN_PROGRESS", "yes", "null", "0", "1", "2", "-7", "0x1f", "1.5", "${env:X}", "a: b", "# c", "é", "'", "line\nbreak", "99999999999999999999", "N", "S"}
}

// drawColumn draws a column of a table, or a field of documents.
func drawColumn(t *rapid.T, name string) store.ColumnInfo {
	word := rapid.SampledFrom(trickyWords())
	c := store.ColumnInfo{Name: name, NotNull: rapid.Bool().Draw(t, "not null"), Default: word.Draw(t, "default")}
	switch c.Type = rapid.SampledFrom([]string{"text", "varchar(4)", "bigint", "tinyint(1)", "smallint", "jsonb", "bytea", "timestamp", "boolean", "enum", "uuid", "real", "sqlite text"}).Draw(t, "type"); c.Type {
	case "text", "sqlite text":
		c.Text, c.JSON, c.Time = true, true, c.Type != "text"
	case "varchar(4)":
		c.Text, c.JSON, c.Length = true, true, 4
	case "bigint":
		c.Integer, c.Min, c.Max = true, -1<<63, 1<<63-1
	case "tinyint(1)":
		c.Integer, c.Boolean, c.Min, c.Max = true, true, -128, 127
	case "smallint":
		c.Integer, c.Min, c.Max = true, -32768, 32767
	case "jsonb":
		c.Object, c.JSON = true, true
	case "bytea":
		c.Bytes, c.JSON = true, true
	case "timestamp":
		c.Time = true
	case "boolean":
		c.Boolean = true
	case "enum":
		c.Enum = rapid.SliceOfNDistinct(word, 1, 5, rapid.ID).Draw(t, "values")
		c.Default = rapid.SampledFrom(append(slices.Clone(c.Enum), "")).Draw(t, "default")
	}
	c.Allowed = rapid.SliceOfNDistinct(word, 0, 3, rapid.ID).Draw(t, "allowed")
	c.Values = rapid.SliceOfNDistinct(word, 0, 5, rapid.ID).Draw(t, "sample")
	if rapid.IntRange(0, 5).Draw(t, "generated") == 0 {
		c.Expression = rapid.SampledFrom([]string{"(payload ->> 'x'::text)", "((data -> 'a b'::text) ->> 'c'::text)", "lower(x)"}).Draw(t, "expression")
	}
	c.Comment = rapid.SampledFrom([]string{"", "0 new, 1 sent", "1: sending 1: done", "state\nof"}).Draw(t, "comment")
	return c
}

// drawTable draws a table.
func drawTable(t *rapid.T) *store.TableInfo {
	list := rapid.SliceOfNDistinct(rapid.SampledFrom(names()), 1, 14, rapid.ID).Draw(t, "columns")
	info := &store.TableInfo{
		Outbox:       store.Outbox{Name: "shop.t", Schema: "shop", Table: rapid.SampledFrom([]string{"outbox", "order_events", "Ünïcode", "outbox_events"}).Draw(t, "table")},
		Database:     "PostgreSQL",
		Documents:    rapid.IntRange(0, 3).Draw(t, "documents") == 0,
		FoldsCase:    rapid.Bool().Draw(t, "folds case"),
		Partitioned:  rapid.Bool().Draw(t, "partitioned"),
		KeyStatement: func(column string) string { return "CREATE UNIQUE INDEX ON t (" + column + ");" },
	}
	for _, name := range list {
		if info.FoldsCase && slices.ContainsFunc(info.Columns, func(c store.ColumnInfo) bool { return strings.EqualFold(c.Name, name) }) {
			continue
		}
		c := drawColumn(t, name)
		if info.Documents { // nothing is declared
			c.Enum, c.Allowed, c.Expression, c.Default, c.Length = nil, nil, "", "", 0
			c.Text = c.Text || c.Type == "enum"
		}
		info.Columns = append(info.Columns, c)
	}
	if rapid.Bool().Draw(t, "has keys") {
		info.Keys = list[:1]
	}
	if rapid.Bool().Draw(t, "serial") {
		info.Inserted = list[0]
	}
	if rapid.Bool().Draw(t, "no sample") {
		info.SampleError = errors.New("canceling statement\ndue to statement timeout")
	}
	return info
}

// TestProposalsAreValid: whatever Propose prints, the configuration accepts it as it is, and it
// fits the table.
func TestProposalsAreValid(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		info := drawTable(t)
		head := "source: {url: 'postgres://u@h/d'}\n"
		if info.Documents {
			head = "source: {url: 'mongodb://h/d'}\n"
		}
		r := &propose.Request{Table: info}
		switch rapid.IntRange(0, 3).Draw(t, "sinks") {
		case 1:
			r.Sinks, r.FlowCatalyst = []string{"a", "b"}, func(string) bool { return false }
			head += "sinks: {a: {type: webhook, url: 'https://h'}, b: {type: webhook, url: 'https://h'}}\n"
		case 2:
			r.Sinks, r.FlowCatalyst = []string{"p"}, func(string) bool { return true }
			head += "sinks: {p: {type: flowcatalyst, api-base-url: 'https://h'}}\n"
		}
		p, err := propose.Propose(r)
		if setup, ok := errors.AsType[*store.SetupError](err); ok && setup.Remedy != "" {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := p.YAML()
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(text, "# DECIDE: "); n != p.Decisions {
			t.Fatalf("%d lines are marked, want %d:\n%s", n, p.Decisions, text)
		}
		if strings.ContainsRune(text, '\x1b') {
			t.Fatalf("a character that a terminal obeys:\n%q", text)
		}
		file := filepath.Join(dir, "relay.yaml")
		if err := os.WriteFile(file, []byte(head+text), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := config.Load(file, nil)
		if err != nil {
			t.Fatalf("%v\nin\n%s%s", err, head, text)
		}
		if got := cfg.Outboxes(); len(got) != 1 {
			t.Fatalf("%d outboxes, want 1", len(got))
		} else if problem := misfit(&got[0].Layout, info); problem != "" {
			t.Fatalf("%s\nin\n%s", problem, text)
		}
	})
}

// misfit says what of a layout the table cannot hold, "" if all fits.
func misfit(l *store.Layout, info *store.TableInfo) string {
	if !propose.Fits(l, info) {
		return "a column does not exist"
	}
	if l.Name != store.CustomLayout {
		return ""
	}
	for _, name := range l.WrittenColumns() {
		if c, _ := info.Column(name); c.Expression != "" {
			return "the relay writes the generated column " + name
		}
	}
	for _, name := range []string{l.Columns.Delivered, l.Columns.Failed, l.Columns.Claimed} {
		if c, found := info.Column(name); found && (!c.Time || c.NotNull && !info.Documents) {
			return "no time, or never NULL: " + name
		}
	}
	status, found := info.Column(l.Columns.Status)
	if !found {
		return ""
	}
	for s, word := range l.Words {
		if len(status.Enum) > 0 && !slices.Contains(status.Enum, word) {
			return fmt.Sprintf("%s: %q is not among %q", s, word, status.Enum)
		}
	}
	for s, n := range l.Numbers {
		if status.Max > 0 && (int64(n) > status.Max || int64(n) < status.Min) {
			return fmt.Sprintf("%s: %d is not a %s", s, n, status.Type)
		}
	}
	return ""
}
