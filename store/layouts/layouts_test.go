package layouts_test

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/layouts"
)

// TestPresets checks that each preset is complete: a distinct name, a sentence, valid layouts,
// and tables with the columns that the layouts name.
func TestPresets(t *testing.T) {
	seen := map[string]bool{store.CustomLayout: true}
	for _, p := range layouts.All() {
		if seen[p.Name] || !strings.HasSuffix(p.Doc, ".") || len(p.Schemas) == 0 {
			t.Errorf("preset %+v: want a name of its own, a sentence and tables", p)
		}
		seen[p.Name] = true
		for _, documents := range []bool{false, true} {
			l := p.Layout(documents)
			if l == nil {
				continue
			}
			if err := l.Validate(); err != nil || l.Name != p.Name {
				t.Errorf("%s: layout %q: %v", p.Name, l.Name, err)
			}
			if l.KindColumn() == "" && p.Kind == "" && p.Name != "flowcatalyst" {
				t.Errorf("%s has neither a kind nor a column for it", p.Name)
			}
		}
		for db, schema := range p.Schemas {
			if p.Layout(db == layouts.MongoDB) == nil {
				t.Errorf("%s has a table for %s, and no layout", p.Name, db)
			}
			if db == layouts.MongoDB {
				continue
			}
			for _, c := range p.Tables.NamedColumns() {
				if !regexp.MustCompile(`(?mi)^    ` + c.Column + ` `).MatchString(schema.Create) {
					t.Errorf("%s: the table of %s has no column %s (%s)", p.Name, db, c.Column, c.Key)
				}
			}
		}
	}
	if _, found := layouts.Named("no such layout"); found {
		t.Error("a layout without a name was found")
	}
}

// TestDefine checks the names and indexes of tables.
func TestDefine(t *testing.T) {
	for _, tt := range []struct {
		layout   string
		db       layouts.Database
		table    string
		contains []string
	}{
		{"namastack", layouts.Postgres, "", []string{`CREATE TABLE "outbox_record" (`, `CREATE INDEX ON "outbox_record" (created_at, id) WHERE status = 'NEW';`}},
		{"namastack", layouts.MySQL, "shop.out`box", []string{"CREATE TABLE `shop`.`out``box` (", "CREATE INDEX `out``box_unsettled` ON `shop`.`out``box` (status, created_at, id);"}},
		{"outbox-messages", layouts.SQLite, "x", []string{`CREATE TABLE "x" (`, `CREATE INDEX "x_unsettled" ON "x" (status, created_at, id);`}},
		{"outbox-messages", layouts.Postgres, "", []string{"WHERE status IN (0, 9);"}},
		{"modulith", layouts.MySQL, "", []string{"CREATE TABLE `EVENT_PUBLICATION` ("}},
		{"outbox-messages-text", layouts.MongoDB, "shop.messages", []string{
			`db.getSiblingDB("shop").createCollection("messages");`,
			`db.getSiblingDB("shop").getCollection("messages").createIndex({"id": 1}, {unique: true});`,
			`db.getSiblingDB("shop").getCollection("messages").createIndex({"status": 1, "created_at": 1, "id": 1});`,
		}},
	} {
		p, _ := layouts.Named(tt.layout)
		d, err := p.Define(tt.db, tt.table)
		if err != nil {
			t.Errorf("%s for %s: %v", tt.layout, tt.db, err)
			continue
		}
		text := strings.Join(d.Statements, "\n")
		if missing := slices.DeleteFunc(tt.contains, func(part string) bool { return strings.Contains(text, part) }); len(missing) > 0 {
			t.Errorf("%s for %s: got\n%s\nwant %q", tt.layout, tt.db, text, missing)
		}
	}

	p, _ := layouts.Named("postbox")
	_, err := p.Define(layouts.MySQL, "")
	var setup *store.SetupError
	if !errors.As(err, &setup) || setup.Remedy != "it has one for postgres" {
		t.Errorf("postbox for MySQL: %v, want a *store.SetupError that names postgres", err)
	}
}
