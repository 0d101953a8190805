package main

import (
	"context"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/store"
)

// TestInitFromTable checks where the URL and the sinks come from, and that the configuration may
// lack everything else.
func TestInitFromTable(t *testing.T) {
	var source config.URL
	var table string
	r := backend{describe: func(_ context.Context, u config.URL, name string) (*store.TableInfo, error) {
		source, table = u, name
		return &store.TableInfo{Outbox: store.Outbox{Name: name, Table: name}, Database: "PostgreSQL", Keys: []string{"id"}, Columns: []store.ColumnInfo{
			{Name: "id", Type: "bigint", Integer: true}, {Name: "payload", Type: "jsonb", Object: true}, {Name: "sent_at", Type: "timestamptz", Time: true},
		}}, nil
	}}
	const url = "postgres://relay:canary@h/d"
	for _, tt := range []struct {
		args, environ []string
		want          string
	}{
		{[]string{"--source", url}, nil, "  sink: receiver\n"},
		{nil, []string{"SLUICEBOX_SOURCE_URL=" + url}, "\nsinks:\n  receiver:\n"},
		{[]string{"-c", file(t, "source: {url: '"+url+"'}\n")}, nil, "  sink: receiver\n"},
		{[]string{"-c", file(t, "source: {url: '"+url+"'}\nsinks: {hooks: {type: webhook}}\noutboxes: [{table: x}]\n")}, nil, "  sink: hooks\n"},
		{[]string{"-c", file(t, "sinks: {hooks: {type: webhook, token: '${file:/absent}'}}\n"), "--source", url}, nil, "  sink: hooks\n"},
		{[]string{"-c", file(t, good), "--source", url}, nil, "# The configuration has the section flowcatalyst"},
	} {
		got := try(t, r, tt.environ, append([]string{"init", "--from-table", "shop.outbox"}, tt.args...)...)
		if got.code != 0 || source != url || table != "shop.outbox" || !strings.Contains(got.stdout, tt.want) || strings.Contains(got.stdout+got.stderr, "canary") {
			t.Errorf("%v %v: exit %d, described %s, want %q in\n%s%s", tt.args, tt.environ, got.code, table, tt.want, got.stdout, got.stderr)
		}
	}
}

// TestInitFromTableFaults checks what is refused before a table is described.
func TestInitFromTableFaults(t *testing.T) {
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--from-table", "t"}, exitConfig, "no configuration"},
		{[]string{"--from-table", "t", "--outbox", "debezium"}, exitUsage, "exclude each other"},
		{[]string{"--from-table", "t", "--apply"}, exitUsage, "need --outbox LAYOUT"},
		{[]string{"--source", "postgres://h/d"}, exitUsage, "--source needs --outbox LAYOUT or --from-table TABLE"},
		{[]string{"--from-table", "t", "-c", "/absent.yaml"}, exitConfig, "/absent.yaml: cannot read the configuration file"},
		{[]string{"--from-table", "t", "-c", file(t, "sinks: {}\n")}, exitConfig, "source.url: is required"},
		{[]string{"--from-table", "t", "--source", "oracle://u:canary@h/d"}, exitConfig, "source.url: must be postgres://"},
		{[]string{"--from-table", "a.b.c", "--source", "postgres://h/d"}, exitConfig, `the table is "a.b.c", must be table or schema.table`},
		{[]string{"--from-table", "x.t", "--source", "sqlite:///f.db"}, exitConfig, "SQLite has no schemas"},
	} {
		got := try(t, backend{describe: describeTable}, nil, append([]string{"init"}, tt.args...)...)
		if got.code != tt.code || !strings.Contains(got.stderr, tt.want) || strings.Contains(got.stderr, "canary") {
			t.Errorf("%v: exit %d, want %d with %q:\n%s", tt.args, got.code, tt.code, tt.want, got.stderr)
		}
	}
}
