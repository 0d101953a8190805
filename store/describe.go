package store

import (
	"slices"
	"strings"
)

// ColumnInfo describes a column of a table of the services, or a field of their documents.
type ColumnInfo struct {
	Name, Type string // the type as the database writes it
	// The column can hold times, integers, any text, JSON from which a group is read, or true
	// and false.
	Time, Integer, Text, JSON, Boolean bool
	Enum                               []string // the values of an enumeration
	Length                             int      // maximum number of characters of a text, 0 for no limit
	Min, Max                           int64    // of an integer
	NotNull                            bool

	// The rest is set by the Describe functions of the stores only.

	// Object: the type is JSON or a document. Bytes: it is binary.
	Object, Bytes bool
	// TextTime: the times that were seen are texts in a database that also has a type for times.
	TextTime bool
	// Expression is how the database computes a generated column, "" for any other.
	Expression string
	// Default is the constant that a new row gets, "" if there is none.
	Default string
	Comment string
	// Allowed are the values that the CHECK constraints of the column list and allow.
	Allowed []string
	// Values are the different values in a sample of the rows, sorted.
	Values []string
}

// TableInfo describes a table of the services, or a collection.
type TableInfo struct {
	Outbox
	// Database is the database's name for messages, for example "PostgreSQL".
	Database string
	// Documents: a collection, whose fields are known from a sample of Sampled documents.
	Documents bool
	Sampled   int
	Columns   []ColumnInfo
	// FoldsCase: the database treats names that differ in case as equal.
	FoldsCase bool
	// Keys are the columns with a unique index of their own that can find a row, the primary
	// key first. In a partitioned table the index may also have the partition key.
	Keys []string
	// Inserted is the column that numbers rows as they are inserted, "" if none.
	Inserted    string
	Partitioned bool
	// LogsGenerated: the log contains generated columns.
	LogsGenerated bool
	// KeyStatement returns the statement that creates a unique index on a column.
	KeyStatement func(column string) string `json:"-"`
	// SampleError says why the values of columns could not be read, nil if they were.
	SampleError error
}

// Column returns a column by its name.
func (t *TableInfo) Column(name string) (c *ColumnInfo, found bool) {
	i := slices.IndexFunc(t.Columns, func(c ColumnInfo) bool {
		return c.Name == name || t.FoldsCase && strings.EqualFold(c.Name, name)
	})
	if i < 0 {
		return nil, false
	}
	return &t.Columns[i], true
}
