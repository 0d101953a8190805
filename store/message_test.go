package store_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store"
)

// TestReadMembers: a string is its characters, and anything else its JSON text as written.
func TestReadMembers(t *testing.T) {
	names := []string{"a", "b", "é\"", "gone", "null"}
	content := "\n {\"other\": {\"a\": 1}, \"a\": [1, {\"b\":  2}] , \"b\": \"\", \"\\u00e9\\\"\": \"x\\n\\ud83d\\ude00\\u0000\", \"null\": null, \"a\" : -1.50e3}"
	values, ok := store.ReadMembers([]byte(content), names)
	if !ok {
		t.Fatal("it is an object")
	}
	for i, want := range []string{"-1.50e3", "", "x\n😀\x00"} {
		if values[i] == nil || string(values[i]) != want {
			t.Errorf("member %s is %q, want %q", names[i], values[i], want)
		}
	}
	for i := 3; i < len(names); i++ {
		if values[i] != nil {
			t.Errorf("member %s is %q, want none", names[i], values[i])
		}
	}
	for _, content := range []string{"", " ", "null", `"a"`, `["a"]`, `{"a": 1`, `{"a": 1}}`, "\xff"} {
		if values, ok := store.ReadMembers([]byte(content), names); ok {
			t.Errorf("%q has the members %q", content, values)
		}
	}
}

// TestReadMembersByPath: a dot leads into a member, unless a member has the whole name.
func TestReadMembersByPath(t *testing.T) {
	for _, tt := range []struct{ content, name, want string }{
		{`{"order": {"id": "7", "n": 1}}`, "order.id", "7"},
		{`{"order": { "lines" : [1, {"id":  2}] } }`, "order.lines", `[1, {"id":  2}]`},
		{`{"order": {"customer": {"id": 7}}}`, "order.customer.id", "7"},
		{`{"order.id": "whole", "order": {"id": "7"}}`, "order.id", "whole"},
		{`{"order": {"id": null}}`, "order.id", ""},
		{`{"order": "id"}`, "order.id", ""},
		{`{"order": [{"id": 7}]}`, "order.id", ""},
		{`{}`, "order.id", ""},
	} {
		values, ok := store.ReadMembers([]byte(tt.content), []string{"other", tt.name})
		if !ok || string(values[1]) != tt.want || (values[1] == nil) != (tt.want == "") {
			t.Errorf("%s of %s is %q, want %q", tt.name, tt.content, values[1], tt.want)
		}
	}
}

// FuzzReadMembers: any content has members or has not.
func FuzzReadMembers(f *testing.F) {
	f.Add([]byte(`{"a": {"b": ["c", null]}, "b": "\u00e9\ud83d"}`))
	f.Add([]byte(`{"b": {"a": {"a": 1}}, "b.c": 2}`))
	f.Add([]byte("{\"a\":\"\xff\"}"))
	f.Fuzz(func(t *testing.T, content []byte) {
		names := []string{"a", "b", "b.a", "b.a.a", "b..", "."}
		values, ok := store.ReadMembers(content, names)
		if ok && len(values) != len(names) {
			t.Errorf("%d values", len(values))
		}
	})
}

func TestRejectMessages(t *testing.T) {
	boxes := []store.Outbox{{Name: "table", Table: "t"}, {Name: "orders", MessagePrefix: "o"}}
	var setup *store.SetupError
	if err := store.RejectMessages(boxes, "SQLite"); !errors.As(err, &setup) || !strings.Contains(setup.Problem, `outbox "orders": SQLite has no logical messages`) {
		t.Error(err)
	}
	if err := store.RejectMessages(boxes[:1], "SQLite"); err != nil {
		t.Error(err)
	}
}
