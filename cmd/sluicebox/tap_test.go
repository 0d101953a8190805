package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode"

	"github.com/sluicebox/sluicebox/store"
)

// TestTapJSONOnATerminal checks that a row's JSON has no control characters and decodes
// to the same row.
func TestTapJSONOnATerminal(t *testing.T) {
	const evil = "a\u009b31m\u202eb\u2066\u200f\x7f\x1b[2J\u00a0\u2028\U000e0041é☃😀 <&> \"\\"
	it := &store.Item{Ref: store.Ref{Outbox: "o", ID: evil}, Kind: "K", Group: store.Group{Name: evil, Valid: true}, Payload: []byte(evil + "\n")}
	var out bytes.Buffer
	if err := (&tapCommand{JSON: true}).print(&out, it); err != nil {
		t.Fatal(err)
	}
	line, more := strings.CutSuffix(out.String(), "\n")
	if i := strings.IndexFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 || !more {
		t.Errorf("what does not print stands at %d of %q", i, line)
	}
	for _, want := range []string{`\u009b`, `\u202e`, `\u007f`, `\udb40\udc41`, "é☃😀 <&>"} {
		if !strings.Contains(line, want) {
			t.Errorf("the line lacks %s: %s", want, line)
		}
	}
	var row tapRow
	if err := json.Unmarshal(out.Bytes(), &row); err != nil {
		t.Fatal(err)
	}
	if row.ID != evil || row.Group.Name != evil || *row.Text != evil+"\n" {
		t.Errorf("it reads back as %+q, %+q and %+q", row.ID, row.Group.Name, *row.Text)
	}
}
