package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/cmd/internal/createoutbox"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/layouts"
)

// outboxFlags are the flags of `sluicebox init --outbox` and `--from-table`.
type outboxFlags struct {
	fromTableFlags
	Outbox   string `placeholder:"LAYOUT" help:"Print the statements that create an outbox table of a layout, with the index for unsettled rows, instead of the relay's tables."`
	Table    string `placeholder:"[SCHEMA.]TABLE" help:"With --outbox: the name of the table. Default: the layout's own."`
	Source   string `placeholder:"URL" help:"With --outbox or --from-table: the URL of the database. Default: source.url of the configuration."`
	Database string `placeholder:"NAME" help:"With --outbox: postgres, mysql, mariadb, sqlite or mongodb, to print statements without a URL."`
	Apply    bool   `help:"With --outbox: run the statements."`
}

// Validate is called before Run.
func (f *outboxFlags) Validate() error {
	switch {
	case f.Outbox != "" && f.FromTable != "":
		return errors.New("--outbox and --from-table exclude each other")
	case f.Outbox == "" && (f.Table != "" || f.Database != "" || f.Apply):
		return errors.New("--table, --database and --apply need --outbox LAYOUT")
	case f.Outbox == "" && f.FromTable == "" && f.Source != "":
		return errors.New("--source needs --outbox LAYOUT or --from-table TABLE")
	case f.Database != "" && f.Source != "":
		return errors.New("--database and --source exclude each other")
	case f.Database != "" && f.Apply:
		return errors.New("--apply needs the URL of a database, not --database")
	}
	return nil
}

// runOutbox prints the statements for a layout's table, or runs them.
func (f *outboxFlags) runOutbox(ctx context.Context, p *program, file configFlag) error {
	preset, found := layouts.Named(f.Outbox)
	if !found {
		return unknownLayout(f.Outbox)
	}
	db, source, err := f.database(p, file)
	if err != nil {
		return err
	}
	d, err := preset.Define(db, f.Table)
	if err != nil {
		return err
	}
	if f.Apply {
		if err := p.relay.createOutbox(ctx, source, d); err != nil {
			return err
		}
	}
	_, err = fmt.Fprint(p.stdout, definitionText(&preset, db, d))
	return err
}

// database returns the kind of database that the flags or the configuration name, with its URL
// if it is known.
func (f *outboxFlags) database(p *program, file configFlag) (db layouts.Database, source config.URL, err error) {
	if f.Database != "" {
		names := map[string]layouts.Database{"mariadb": layouts.MySQL, "postgresql": layouts.Postgres, "mongo": layouts.MongoDB}
		db = cmp.Or(names[f.Database], layouts.Database(f.Database))
		if !slices.Contains(layouts.Databases(), db) {
			return "", "", &store.SetupError{Problem: fmt.Sprintf("there is no database %q", f.Database), Remedy: "write postgres, mysql, mariadb, sqlite or mongodb"}
		}
		return db, "", nil
	}
	// The variable alone is enough: before its first table a service has no outboxes to configure.
	source = config.URL(cmp.Or(f.Source, p.variable(config.SourceVariable)))
	if source == "" {
		cfg, err := file.load(p)
		if err != nil {
			return "", "", err
		}
		source = cfg.Settings.Source.URL
	}
	db, err = createoutbox.DatabaseOf(source)
	return db, source, err
}

// unknownLayout names the layout that was most likely meant.
func unknownLayout(name string) error {
	var names []string
	for _, p := range layouts.All() {
		names = append(names, p.Name)
	}
	remedy := "the layouts are " + strings.Join(names, ", ")
	if near := store.Nearest(name, names); near != "" {
		remedy = "did you mean " + near + "?"
	}
	return &store.SetupError{Problem: fmt.Sprintf("there is no layout %q", name), Remedy: remedy}
}

// definitionText returns the statements, with the configuration for the table as a comment.
func definitionText(p *layouts.Preset, db layouts.Database, d *layouts.Definition) string {
	comment, table := "--", d.Table
	if db == layouts.MongoDB {
		comment = "//"
	}
	if d.Schema != "" {
		table = d.Schema + "." + d.Table
	}
	var b strings.Builder
	b.WriteString(strings.Join(d.Statements, "\n") + "\n\n")
	for _, line := range configLines(p, p.Layout(db == layouts.MongoDB), table) {
		b.WriteString(comment + " " + line + "\n")
	}
	return b.String()
}

// configLines are what a configuration needs for a table of a layout.
func configLines(p *layouts.Preset, l *store.Layout, table string) []string {
	kind := ""
	if p.Kind == "" && l.KindColumn() == "" {
		kind = ", kind: KIND"
	}
	lines := []string{"Add to the configuration:", "outboxes:", fmt.Sprintf("  - {table: %s, layout: %s%s, sink: NAME}", table, p.Name, kind)}
	if l.Lease {
		lines = append(lines, "dispatch: {takeover: timeout}")
	}
	return lines
}
