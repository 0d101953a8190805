package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode"
)

func TestJSONHasNothingThatATerminalObeys(t *testing.T) {
	const hostile = "a\u009b31mb\u202ec\x1b[2J\u2028 ü 漢 \U000e0001 <&>"
	for _, indent := range []string{"", "  "} {
		var out bytes.Buffer
		if err := writeJSON(&out, map[string]string{"group": hostile}, indent); err != nil {
			t.Fatal(err)
		}
		for _, r := range strings.TrimSuffix(out.String(), "\n") {
			if !unicode.IsPrint(r) && (indent == "" || r != '\n') {
				t.Errorf("%U is in %s", r, out.String())
			}
		}
		if !strings.Contains(out.String(), "ü 漢") || !strings.Contains(out.String(), "<&>") {
			t.Errorf("what prints is escaped: %s", out.String())
		}
		var back map[string]string
		if err := json.Unmarshal(out.Bytes(), &back); err != nil || back["group"] != hostile {
			t.Errorf("it reads back as %q, %v", back["group"], err)
		}
	}
}
