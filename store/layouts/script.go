package layouts

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
)

// Definition creates the table of a preset.
type Definition struct {
	// Schema and Table name the table; an empty Schema is the connection's own.
	Schema, Table string
	// Statements are SQL, or commands of mongosh.
	Statements []string
	// Indexes are the indexes of a MongoDB collection, for drivers. The statements create
	// them too.
	Indexes []DocumentIndex
}

// DocumentIndex is an ascending index of a MongoDB collection.
type DocumentIndex struct {
	Fields []string
	Unique bool
}

// Define returns the statements that create a preset's table, with the index that the relay
// wants for unsettled rows. table is [schema.]table, or "" for the project's own name. The
// error says which databases have one.
func (p *Preset) Define(db Database, table string) (*Definition, error) {
	schema, found := p.Schemas[db]
	if !found {
		return nil, &store.SetupError{
			Problem: fmt.Sprintf("layout %s has no table for %s", p.Name, db),
			Remedy:  "it has one for " + p.databases(),
		}
	}
	if table == "" {
		table = schema.Table
	}
	d := &Definition{Table: table}
	if before, after, ok := strings.Cut(table, "."); ok {
		d.Schema, d.Table = before, after
	}
	if db == MongoDB {
		d.collection(p.Documents)
		return d, nil
	}

	name := quote(db, d.Table)
	if d.Schema != "" {
		name = quote(db, d.Schema) + "." + name
	}
	for _, text := range append([]string{schema.Create}, schema.Indexes...) {
		d.Statements = append(d.Statements, strings.ReplaceAll(strings.TrimSpace(text), "{table}", name))
	}
	if index := unsettledIndex(db, p.Tables, d.Table, name); index != "" {
		d.Statements = append(d.Statements, index)
	}
	return d, nil
}

// databases lists the databases with a table of the preset.
func (p *Preset) databases() string {
	var names []string
	for _, db := range Databases() {
		if _, has := p.Schemas[db]; has {
			names = append(names, string(db))
		}
	}
	return strings.Join(names, ", ")
}

// unsettledIndex returns the statement for the index that finds unsettled rows in their
// order, "" if the state does not tell them.
func unsettledIndex(db Database, l *store.Layout, table, name string) string {
	state := columns.StateColumns(l)
	if len(state) == 0 {
		return ""
	}
	order := unique(append(slices.Clone(l.OrderBy), l.Columns.ID))
	if db == Postgres {
		where := columns.State{Layout: l, Column: func(name string) string { return name }, Bind: literal}.Unsettled()
		return fmt.Sprintf("CREATE INDEX ON %s (%s) WHERE %s;", name, strings.Join(order, ", "), strings.TrimSuffix(strings.TrimPrefix(where, "("), ")"))
	}
	return fmt.Sprintf("CREATE INDEX %s ON %s (%s);", quote(db, table+"_unsettled"), name, strings.Join(unique(append(state, order...)), ", "))
}

// collection sets the commands and indexes of a MongoDB collection.
func (d *Definition) collection(l *store.Layout) {
	if l.Columns.ID != "_id" {
		d.Indexes = append(d.Indexes, DocumentIndex{[]string{l.Columns.ID}, true})
	}
	if state := columns.StateColumns(l); len(state) > 0 {
		d.Indexes = append(d.Indexes, DocumentIndex{unique(slices.Concat(state, l.OrderBy, []string{l.Columns.ID})), false})
	}

	database := "db"
	if d.Schema != "" {
		database = fmt.Sprintf("db.getSiblingDB(%q)", d.Schema)
	}
	d.Statements = append(d.Statements, fmt.Sprintf("%s.createCollection(%q);", database, d.Table))
	for _, x := range d.Indexes {
		keys := make([]string, len(x.Fields))
		for i, name := range x.Fields {
			keys[i] = fmt.Sprintf("%q: 1", name)
		}
		options := ""
		if x.Unique {
			options = ", {unique: true}"
		}
		d.Statements = append(d.Statements, fmt.Sprintf("%s.getCollection(%q).createIndex({%s}%s);", database, d.Table, strings.Join(keys, ", "), options))
	}
}

// unique returns the names without repetitions.
func unique(names []string) []string {
	var list []string
	for _, name := range names {
		if !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	return list
}

// quote quotes an identifier.
func quote(db Database, name string) string {
	mark := `"`
	if db == MySQL {
		mark = "`"
	}
	return mark + strings.ReplaceAll(name, mark, mark+mark) + mark
}

// literal formats a value of the status column. The words of presets need no escapes.
func literal(value any) string {
	if word, ok := value.(string); ok {
		return "'" + word + "'"
	}
	return fmt.Sprint(value)
}
