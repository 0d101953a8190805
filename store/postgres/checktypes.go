package postgres

import (
	"fmt"
	"math"
	"slices"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/sluicebox/sluicebox/store"
)

// types checks that the columns hold what the relay writes.
func (c *checker) types(t *table) {
	l := &t.Layout
	if len(l.GroupPath) > 0 && !t.col(l.Columns.Group).json() {
		c.wrongType(t, l.Columns.Group, "JSON or a text for the group-path")
	}
	if l.State == store.StateNone {
		return
	}
	want := func(name, what string, oids ...uint32) {
		if name != "" && !slices.Contains(oids, t.col(name).base) {
			c.wrongType(t, name, what)
		}
	}
	for _, name := range []string{l.Columns.Claimed, l.Columns.Settled, l.Columns.Delivered, l.Columns.Failed} {
		want(name, "a timestamp", pgtype.TimestampOID, pgtype.TimestamptzOID)
	}
	want(l.Columns.RetryCount, "an integer", pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID)
	if name := l.Columns.Error; name != "" && t.col(name).category != categoryText {
		c.wrongType(t, name, "a text")
	}
	switch l.State {
	case store.StateNumbers:
		want(l.Columns.Status, "an integer", pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID)
		c.numbers(t)
	case store.StateWords:
		c.words(t)
	case store.StateTimestamps:
		c.nullable(t)
	}
}

// The categories of types, see the documentation of pg_type.typcategory.
const (
	categoryText = "S"
	categoryEnum = "E"
)

// json reports whether the column may hold JSON that is read for a group.
func (c column) json() bool {
	return c.category == categoryText || slices.Contains([]uint32{pgtype.JSONOID, pgtype.JSONBOID, pgtype.ByteaOID}, c.base)
}

func (c *checker) wrongType(t *table, name, what string) {
	c.add(fmt.Sprintf("outbox %s: column %s (%s) of %s is of type %s, and layout %s needs %s",
		t.Name, name, t.Layout.Key(name), TableName(t.Outbox), t.col(name).full, t.Layout.Name, what),
		fmt.Sprintf("name another column in layout %s, or change the type of this one", t.Layout.Name))
}

// numbers checks that the status column can hold the layout's numbers.
func (c *checker) numbers(t *table) {
	l := &t.Layout
	status := t.col(l.Columns.Status)
	most := map[uint32]int{pgtype.Int2OID: math.MaxInt16, pgtype.Int4OID: math.MaxInt32}[status.base]
	all := append([]int{l.Numbers[store.Pending], l.Numbers[store.Processing]}, l.SettledNumbers()...)
	for _, n := range all {
		if most > 0 && (n > most || n < -most-1) {
			c.add(fmt.Sprintf("outbox %s: column %s (columns.status) of %s, of type %s, cannot hold %d, which layout %s names",
				t.Name, status.name, TableName(t.Outbox), status.full, n, l.Name),
				fmt.Sprintf("name the table's own numbers in layout %s", l.Name))
		}
	}
}

// nullable checks that a row can be one that is not settled.
func (c *checker) nullable(t *table) {
	for _, name := range []string{t.Layout.Columns.Delivered, t.Layout.Columns.Failed} {
		if t.col(name).notNull {
			c.add(fmt.Sprintf("outbox %s: column %s (%s) of %s is NOT NULL, and a row is open while it is NULL",
				t.Name, name, t.Layout.Key(name), TableName(t.Outbox)),
				fmt.Sprintf("name a column that a service leaves NULL, or run ALTER TABLE %s ALTER %s DROP NOT NULL;", TableName(t.Outbox), Ident(name)))
		}
	}
}

// words checks that the status column can hold the layout's words.
func (c *checker) words(t *table) {
	l := &t.Layout
	status := t.col(l.Columns.Status)
	if status.category != categoryText && status.category != categoryEnum {
		c.wrongType(t, status.name, "a text or an enumeration")
		return
	}
	for s := store.Pending; s <= store.Failed; s++ {
		word := l.Words[s]
		if s == store.Completed && l.DeleteDelivered {
			continue
		}
		short := status.limit > 0 && len([]rune(word)) > status.limit
		if short || len(status.labels) > 0 && !slices.Contains(status.labels, word) {
			c.add(fmt.Sprintf("outbox %s: column %s (columns.status) of %s, of type %s, cannot hold %q, which layout %s names for %s",
				t.Name, status.name, TableName(t.Outbox), status.full, word, l.Name, s),
				fmt.Sprintf("name the table's own words in layout %s", l.Name))
		}
	}
}
