package mysql_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/outbox"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestContents: which contents of a repeated row are the same, by the type of the column. The
// servers' default collations take X for x.
func TestContents(t *testing.T) {
	for _, f := range servers.Flavours() {
		t.Run(string(f), func(t *testing.T) { testContents(t, f) })
	}
}

func testContents(t *testing.T, f servers.Flavour) {
	db := &database{url: f.Database(t)}
	spaces := "r"
	if f == servers.MariaDB {
		spaces = "c" // its JSON is a text
	}
	layout := store.Layout{
		Name: "custom", State: store.StateNone, Columns: store.Columns{ID: "id", Payload: "payload"},
		Attributes: []store.AttributeColumn{{Column: "extra", Name: "extra"}, {Column: "given", Name: "given"}},
	}
	w := db.Writer(t)
	defer w.Close()
	box := store.Outbox{Name: "box", Table: "t", Layout: layout}
	write := func(id, payload string, attributes ...store.Attribute) (string, error) {
		t.Helper()
		all, err := w.Write(rigs.Context(t), &box, []outbox.Row{{ID: id, Payload: []byte(payload), Attributes: attributes}})
		if err != nil {
			t.Fatal(err)
		}
		switch r := all[0]; {
		case r.Err != nil:
			return "x", r.Err
		case r.Conflict:
			return "c", nil
		case r.Repeated:
			return "r", nil
		}
		return "n", nil
	}
	for i, c := range []struct{ typ, first, second, result string }{
		{"LONGTEXT", "x", "X", "c"},
		{"LONGTEXT", "x", "x", "r"},
		{"JSON", `{"a":1}`, `{"a":1}`, "r"},
		{"JSON", `{"a":1}`, `{ "a": 1 }`, spaces},
		{"JSON", `{"a":1}`, `{"a":2}`, "c"},
		{"JSON", `{"a":1}`, `{"a":`, "x"},
		{"BLOB", "\x00\xff\\", "\x00\xff\\", "r"},
		{"BLOB", "\x00\xff\\", "\x00\xff", "c"},
		{"LONGTEXT", "\xff", "\xff", "x"},
		{"VARCHAR(3)", "abcd", "abcd", "x"},
		{"CHAR(5)", "abc", "abc", "r"},
	} {
		box.Table = fmt.Sprintf("t%d", i)
		servers.ExecMySQL(t, db.url, fmt.Sprintf("CREATE TABLE %s (id VARCHAR(36) PRIMARY KEY, payload %s, extra VARCHAR(9) DEFAULT 'x', given BIGINT UNSIGNED UNIQUE) DEFAULT CHARSET = utf8mb4", box.Table, c.typ))
		first, _ := write("a", c.first)
		if got, _ := write("a", c.second); got != c.result || first == "x" && c.result != "x" {
			t.Errorf("%s %q, %q: %s and %s, want %s", c.typ, c.first, c.second, first, got, c.result)
		}
		if c.result != "r" {
			continue
		}
		if got, _ := write("A", c.second); got != "c" {
			t.Errorf("%s: another id that the collation takes for the same: %s, want c", c.typ, got)
		}
		same, _ := write("a", c.second, store.Attribute{Name: "extra", Value: "x"})
		other, _ := write("a", c.second, store.Attribute{Name: "extra", Value: "X"})
		number, _ := write("b", c.first, store.Attribute{Name: "given", Value: "0018446744073709551615"})
		again, _ := write("b", c.first, store.Attribute{Name: "given", Value: "18446744073709551615"})
		taken, err := write("d", c.first, store.Attribute{Name: "given", Value: "18446744073709551615"})
		if got := same + other + number + again + taken; got != "rcnrx" || !strings.Contains(err.Error(), "given") {
			t.Errorf("%s: a default twice, a number twice, and a duplicate in another index: %s, want rcnrx, the last with the index: %v", c.typ, got, err)
		}
	}
}
