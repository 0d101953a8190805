package finding

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// literal matches a text in single quotes, or a whole number that is no part of a name.
var literal = regexp.MustCompile(`'((?:[^']|'')*)'|(?:^|[\s(,=\[])(-?\d{1,9})\b`)

// maxLiterals bounds the values that a constraint is asked for.
const maxLiterals = 50

// Literals returns the texts and numbers in an expression, for example of a CHECK constraint.
func Literals(expression string) (list []string) {
	for _, m := range literal.FindAllStringSubmatch(expression, -1) {
		text := m[2]
		if m[2] == "" {
			text = strings.ReplaceAll(m[1], "''", "'")
		}
		if !slices.Contains(list, text) && len(list) < maxLiterals {
			list = append(list, text)
		}
	}
	return list
}

// whole matches a constant, with or without a type behind it.
var whole = regexp.MustCompile(`^\(?(?:_\w+)?(?:'((?:[^']|'')*)'|(-?\d+|true|false|TRUE|FALSE))\)?(?:::[\w\s".]+(?:\(\d+\))?)?$`)

// Constant returns the value of a default that is a constant, "" for any other expression.
func Constant(expression string) string {
	m := whole.FindStringSubmatch(strings.TrimSpace(expression))
	if m == nil {
		return ""
	}
	return strings.ReplaceAll(m[1], "''", "'") + strings.ToLower(m[2])
}

// SampleTimeout bounds the statement that reads a sample.
const SampleTimeout = 2 * time.Second

const (
	sampleRows   = 1000 // from each end of the table
	sampleValues = 30
)

// SampleQuery returns the statement that reads the different values of a column, as texts by
// cast, among the first and the last rows by a key. Names are quoted; key may be "".
func SampleQuery(table, column, key, cast string) string {
	one := func(order string) string {
		return fmt.Sprintf("SELECT v FROM (SELECT %s AS v FROM %s%s LIMIT %d) AS s", column, table, order, sampleRows)
	}
	from := one("")
	if key != "" {
		from = one(" ORDER BY "+key) + " UNION ALL " + strings.Replace(one(" ORDER BY "+key+" DESC"), "AS s", "AS l", 1)
	}
	return fmt.Sprintf("SELECT DISTINCT "+cast+" AS v FROM (%s) AS a WHERE v IS NOT NULL ORDER BY 1 LIMIT %d", "v", from, sampleValues)
}

// ListedValues returns those of the values in the expressions of a column's constraints that the
// constraints allow. refused evaluates an expression for each of the values.
func ListedValues(list []Constraint, refused func(expression string, values []any) (refused []any, evaluated bool, err error)) (allowed []string, err error) {
	for _, k := range list {
		var listed []any
		for _, text := range Literals(k.Expression) {
			listed = append(listed, text)
		}
		not, evaluated, err := refused(k.Expression, listed)
		if err != nil {
			return nil, err
		}
		for _, value := range listed {
			if evaluated && !slices.Contains(not, value) {
				allowed = append(allowed, fmt.Sprint(value))
			}
		}
	}
	return allowed, nil
}

// Describer has the statements that read the values of columns in one database.
type Describer struct {
	// Allowed returns those of the values that a column's constraints list and allow.
	Allowed func(ctx context.Context, c *store.ColumnInfo) ([]string, error)
	// Sample runs SampleQuery for a column.
	Sample func(ctx context.Context, c *store.ColumnInfo) ([]string, error)
}

// ReadValues completes the columns that wanted names. A sample that fails is noted in t, because
// a proposal can do without.
func (d *Describer) ReadValues(ctx context.Context, t *store.TableInfo, wanted func(*store.TableInfo) []string) (err error) {
	for _, name := range wanted(t) {
		c, found := t.Column(name)
		if !found {
			continue
		}
		if c.Allowed, err = d.Allowed(ctx, c); err != nil {
			return err
		}
		values, err := d.Sample(ctx, c)
		if err != nil {
			t.SampleError = err
			continue
		}
		c.Values = values
	}
	return nil
}
