// Package layouts has the layouts of well-known outbox tables: how each project names its
// columns and stores the state of a row, and the statements that create its table.
//
// A layout is one function in a file of its own, and a line in [All]. The configuration's
// enum, its reference page and `sluicebox init --outbox` read it from there.
package layouts

import (
	"slices"

	"github.com/sluicebox/sluicebox/store"
)

// Database is a kind of database.
type Database string

// Databases. MariaDB has the tables of MySQL.
const (
	Postgres Database = "postgres"
	MySQL    Database = "mysql"
	SQLite   Database = "sqlite"
	MongoDB  Database = "mongodb"
)

// Databases returns all databases.
func Databases() []Database { return []Database{Postgres, MySQL, SQLite, MongoDB} }

// Preset is the layout of a project's outbox table.
type Preset struct {
	// Name is the value of the configuration key layout.
	Name string
	// Doc says in one sentence or two whose table it is.
	Doc string
	// Kind is the kind of the rows where the table has no column for it, unless the
	// configuration names another.
	Kind string
	// Tables is the layout of a table, and Documents the layout of MongoDB documents. It is
	// nil where the project has none.
	Tables, Documents *store.Layout
	// Schemas are the project's tables. A database without one has no table of the project.
	Schemas map[Database]Schema
}

// Schema is a project's table in one database.
type Schema struct {
	// Table is the name that the project gives its table.
	Table string
	// Create is the statement that creates the table, with {table} for its name. It is empty
	// for a MongoDB collection.
	Create string
	// Indexes are further statements after Create, in the same form. Script adds the index
	// that the relay wants.
	Indexes []string
}

// All returns the presets, in the order of the documentation.
func All() []Preset {
	all := []Preset{
		flowCatalyst(), outboxMessages(), outboxMessagesText(),
		catbox(), crablet(), debezium(), eventuate(), modulith(), modulithV1(), namastack(), postbox(), zeebe(),
	}
	for i := range all {
		for _, l := range []*store.Layout{all[i].Tables, all[i].Documents} {
			if l != nil {
				l.Name = all[i].Name
			}
		}
	}
	return all
}

// Named returns the preset of a name.
func Named(name string) (p Preset, found bool) {
	all := All()
	i := slices.IndexFunc(all, func(p Preset) bool { return p.Name == name })
	if i < 0 {
		return Preset{}, false
	}
	return all[i], true
}

// Layout returns the layout of MongoDB documents, or of tables. It is nil if the project has
// none.
func (p *Preset) Layout(documents bool) *store.Layout {
	if documents {
		return p.Documents
	}
	return p.Tables
}
