package redact

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// TestOneLineSecrets: if one secret contains another, the longer one is removed first.
func TestOneLineSecrets(t *testing.T) {
	if got := New(false, "/a/key", "/a/key?k=v", "").OneLine("sent /a/key?k=v to /a/key"); got != "sent [redacted] to [redacted]" {
		t.Error(got)
	}
}

func FuzzClean(f *testing.F) {
	f.Add("one\r\ntwo\x00\x1b[0m", "secret")
	f.Add(strings.Repeat("é ", 400), "é")
	f.Add("\xff secret\u2028", "secret")
	f.Fuzz(func(t *testing.T, s, token string) {
		got := New(false, token).OneLine(s)
		if !utf8.ValidString(got) || utf8.RuneCountInString(got) > maxDetail+1 {
			t.Fatalf("%q", got)
		}
		if got != strings.Join(strings.Fields(got), " ") {
			t.Fatalf("blanks are left in %q", got)
		}
		for _, r := range got {
			if r < ' ' || r == 0x7f || r == '\u2028' || r == '\u202e' {
				t.Fatalf("%q holds %U", got, r)
			}
		}
		// Only tokens that Validate accepts, and that are not part of the replacement
		// text.
		if len(token) > 3 && visible(token) && !strings.Contains("…"+sink.Redacted, token) && strings.Contains(got, token) {
			t.Fatalf("%q shows %q", got, token)
		}
	})
}

// visible reports whether s has visible ASCII characters only.
func visible(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) < 0
}
