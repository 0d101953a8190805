// Package ddl has the outbox tables of the built-in layouts, once for each database, as
// services create them. Tests of other column types create tables of their own, and package
// storetest creates its tables from layouts.
package ddl

import (
	_ "embed"
	"strings"
)

//go:embed postgres.sql
var postgres string

//go:embed mysql.sql
var mysql string

//go:embed sqlite.sql
var sqlite string

// Database is the tables of one database.
type Database struct{ script string }

// Postgres returns the tables of PostgreSQL.
func Postgres() Database { return Database{postgres} }

// MySQL returns the tables of MySQL and MariaDB.
func MySQL() Database { return Database{mysql} }

// SQLite returns the tables of SQLite.
func SQLite() Database { return Database{sqlite} }

// FlowCatalyst returns a script that creates a table of layout flowcatalyst with its index.
// All columns but id and payload have defaults.
func (d Database) FlowCatalyst(table string) string {
	return strings.ReplaceAll(d.part("flowcatalyst"), "outbox_events", table)
}

// Messages returns a script that creates the table outbox_messages with its index.
func (d Database) Messages() string { return d.part("outbox-messages") }

// Quoted returns a script that creates the table of capturetest.QuotedNames.
func (d Database) Quoted() string { return d.part("quoted") }

// part returns the statements below the line "-- name".
func (d Database) part(name string) string {
	_, text, _ := strings.Cut(d.script, "-- "+name+"\n")
	text, _, _ = strings.Cut(text, "\n-- ")
	return text
}
