// Package diagnose reports what a writer lacks of the tables of outboxes, on any database.
package diagnose

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/outbox"
)

// Table is what a database tells about the table of an outbox.
type Table struct {
	// Name is the quoted name.
	Name string
	// Account names whom the rights belong to, for example "role shop".
	Account string
	// Missing are the rights that the account lacks, and Grant grants them.
	Missing []string
	Grant   string
	// Required are the columns that need a value in each row.
	Required []string
	// FoldsCase: the case of a column's name means nothing.
	FoldsCase bool
	// Rule says of a column why it needs a value, and Default is the statement that ends that.
	Rule, Default func(column string) string
}

// Read reads the table of an outbox, whose columns a writer fills. It returns nil if there is no
// such table, because the check of the outbox reports that.
type Read func(o *store.Outbox, columns []string) (*Table, error)

// Outboxes returns the findings about outboxes. An error means that the remaining checks could not
// run.
func Outboxes(outboxes []*store.Outbox, read Read) ([]store.Finding, error) {
	var found []store.Finding
	for _, o := range outboxes {
		fields := fieldsOf(o)
		t, err := read(o, columnsOf(o, fields))
		if err != nil {
			return found, fmt.Errorf("diagnose outbox %s: %w", o.Name, err)
		}
		if t != nil {
			found = append(found, t.findings(o, fields)...)
		}
	}
	return found, nil
}

// fieldsOf returns the fields of a row without attributes, nil if no row is like any other.
func fieldsOf(o *store.Outbox) []outbox.Field {
	of, err := outbox.New(*o)
	if err != nil {
		return nil // the check of the outbox reports it
	}
	row := outbox.Row{ID: "1", Kind: cmp.Or(o.Kind, "k"), Payload: []byte("{}")}
	for range o.Layout.GroupColumns() {
		row.Group = append(row.Group, "1")
	}
	if err := of.Complete(context.Background(), &row); err != nil {
		return nil
	}
	fields, err := of.Fields(&row)
	if err != nil {
		return nil
	}
	return fields
}

// columnsOf returns the columns that every writer of an outbox fills.
func columnsOf(o *store.Outbox, fields []outbox.Field) []string {
	if fields == nil {
		return []string{o.Layout.Columns.ID, o.Layout.Columns.Payload}
	}
	list := make([]string, len(fields))
	for i := range fields {
		list[i] = fields[i].Column
	}
	return list
}

func (t *Table) findings(o *store.Outbox, fields []outbox.Field) (found []store.Finding) {
	subject := "outbox " + o.Name
	add := func(grade store.Grade, remedy, format string, args ...any) {
		found = append(found, store.Finding{Grade: grade, Subject: subject, Text: fmt.Sprintf(format, args...), Remedy: remedy})
	}
	if len(t.Missing) > 0 {
		add(store.GradeFault, t.Grant, "%s may not %s rows of %s, so ingest cannot write them", t.Account, strings.Join(t.Missing, ", "), t.Name)
	}
	for _, column := range t.Required {
		if fields == nil || slices.ContainsFunc(fields, func(f outbox.Field) bool { return t.same(f.Column, column) }) {
			continue
		}
		at := slices.IndexFunc(o.Layout.Attributes, func(a store.AttributeColumn) bool { return t.same(a.Column, column) })
		if at < 0 {
			add(store.GradeFault, t.Default(column), "%s, and ingest has no value for it", t.Rule(column))
			continue
		}
		add(store.GradeAdvice, "let each client send it, or: "+t.Default(column), "%s, so ingest refuses rows without the attribute %s", t.Rule(column), o.Layout.Attributes[at].Name)
	}
	if len(found) == 0 {
		add(store.GradeOK, "", "rows can be written")
	}
	return found
}

func (t *Table) same(a, b string) bool { return a == b || t.FoldsCase && strings.EqualFold(a, b) }

// NotNull is the Rule of tables.
func NotNull(column string) string {
	return fmt.Sprintf("column %s is NOT NULL without a default", column)
}
