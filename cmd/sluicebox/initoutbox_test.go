package main

import (
	"context"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/store/layouts"
)

// TestInitOutbox checks that init --outbox prints the statements for the database of the flags,
// the variable or the file, and runs them only with --apply.
func TestInitOutbox(t *testing.T) {
	path := file(t, good)
	for _, tt := range []struct {
		args     []string
		environ  []string
		contains []string
	}{
		{[]string{"-c", path}, nil, []string{`CREATE TABLE "outbox_record" (`, "--   - {table: outbox_record, layout: namastack, sink: NAME}\n"}},
		{[]string{"-c", path}, []string{"SLUICEBOX_SOURCE_URL=mysql://h/d"}, []string{"CREATE TABLE `outbox_record` ("}},
		{[]string{"--source", "mongodb://h/d", "--table", "shop.records"}, nil, []string{`db.getSiblingDB("shop").createCollection("records");`, "//   - {table: shop.records, layout: namastack, sink: NAME}\n"}},
		{[]string{"--database", "mariadb"}, nil, []string{"CREATE TABLE `outbox_record` ("}},
		{[]string{"--outbox", "flowcatalyst", "--database", "sqlite"}, nil, []string{"layout: flowcatalyst, kind: KIND, sink: NAME}\n"}},
		{[]string{"--outbox", "catbox", "--database", "mysql"}, nil, []string{"\n-- dispatch: {takeover: timeout}\n"}},
	} {
		got := try(t, backend{}, tt.environ, append([]string{"init", "--outbox", "namastack"}, tt.args...)...)
		for _, part := range tt.contains {
			if got.code != 0 || !strings.Contains(got.stdout, part) {
				t.Errorf("%v %v: exit %d, want %q in\n%s%s", tt.args, tt.environ, got.code, part, got.stdout, got.stderr)
			}
		}
	}

	var source config.URL
	var created *layouts.Definition
	r := backend{createOutbox: func(_ context.Context, u config.URL, d *layouts.Definition) error {
		source, created = u, d
		return nil
	}}
	got := try(t, r, nil, "init", "--outbox", "namastack", "--source", "postgres://relay:canary@h/d", "--table", "shop.x", "--apply")
	if got.code != 0 || source != "postgres://relay:canary@h/d" || created == nil || created.Schema != "shop" || created.Table != "x" || !strings.Contains(got.stdout, `CREATE TABLE "shop"."x" (`) {
		t.Errorf("exit %d, created %+v in %s:\n%s%s", got.code, created, source, got.stdout, got.stderr)
	}
}

// TestInitOutboxFaults checks what is refused before anything is opened, and that no password
// is shown.
func TestInitOutboxFaults(t *testing.T) {
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--apply"}, exitUsage, "need --outbox LAYOUT"},
		{[]string{"--table", "x"}, exitUsage, "need --outbox LAYOUT"},
		{[]string{"--outbox", "namastack", "--database", "mysql", "--source", "mysql://h/d"}, exitUsage, "exclude each other"},
		{[]string{"--outbox", "namastack", "--database", "mysql", "--apply"}, exitUsage, "--apply needs the URL"},
		{[]string{"--outbox", "namstack"}, exitConfig, "did you mean namastack?"},
		{[]string{"--outbox", "kafka"}, exitConfig, "the layouts are flowcatalyst, "},
		{[]string{"--outbox", "namastack", "--database", "oracle"}, exitConfig, "write postgres, mysql, mariadb, sqlite or mongodb"},
		{[]string{"--outbox", "namastack", "--source", "oracle://u:canary@h/d"}, exitConfig, "not a URL of a supported database"},
		{[]string{"--outbox", "postbox", "--database", "sqlite"}, exitConfig, "it has one for postgres"},
		{[]string{"--outbox", "namastack"}, exitConfig, "no configuration"},
	} {
		got := try(t, backend{}, nil, append([]string{"init"}, tt.args...)...)
		if got.code != tt.code || !strings.Contains(got.stderr, tt.want) || strings.Contains(got.stderr, "canary") {
			t.Errorf("%v: exit %d, want %d with %q:\n%s", tt.args, got.code, tt.code, tt.want, got.stderr)
		}
	}
}
