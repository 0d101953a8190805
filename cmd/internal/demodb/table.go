package demodb

import (
	"strings"

	"github.com/sluicebox/sluicebox/store/layouts"
)

// Index is an index: its columns and, on PostgreSQL, a condition for its rows.
type Index struct{ Columns, Where string }

// CreateTable returns the statements that create the table of a layout, with indexes. On MySQL
// the indexes are part of the table's statement, because one of their own needs another right.
func CreateTable(db layouts.Database, of *layouts.Preset, table string, indexes ...Index) []string {
	create := strings.TrimSpace(strings.ReplaceAll(of.Schemas[db].Create, "{table}", table))
	var list []string
	for _, x := range indexes {
		if db == layouts.MySQL {
			end := strings.LastIndex(create, "\n)")
			create = create[:end] + ",\n    INDEX (" + x.Columns + ")" + create[end:]
			continue
		}
		name := "idx_" + table[strings.LastIndex(table, ".")+1:] + "_status"
		if db == layouts.Postgres {
			name = "" // the server chooses one
		}
		list = append(list, "CREATE INDEX "+name+" ON "+table+" ("+x.Columns+")"+x.Where+";")
	}
	return append([]string{create}, list...)
}
