package errortext_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/store/internal/errortext"
)

func TestFit(t *testing.T) {
	snow := strings.Repeat("☃", errortext.MaxLength+1)
	for _, c := range []struct {
		text  string
		limit int
		ascii bool
		want  string
	}{
		{"plain", 0, false, "plain"},
		{"a\x00b", 0, false, "ab"},
		{"bad \xff end", 0, false, "bad \uFFFD end"},
		{snow, 0, false, snow[:3*errortext.MaxLength]},
		{snow, 1 << 30, false, snow[:3*errortext.MaxLength]},
		{snow, 2, false, "☃☃"},
		{"snow ☃", 0, true, "snow ?"},
		{strings.Repeat("\x00", 100000) + "behind", 0, false, "behind"},
		{"", 0, false, ""},
	} {
		if got := errortext.Sanitize(c.text, c.limit, c.ascii); got != c.want {
			t.Errorf("%.20q cut to %d: %.20q of %d bytes", c.text, c.limit, got, len(got))
		}
	}
}

// TestAnyText: for any input the result is valid text within the limit, and a prefix of the
// unlimited result.
func TestAnyText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		raw := string(rapid.SliceOfN(rapid.Byte(), 0, 60).Draw(t, "bytes")) + rapid.StringN(0, 40, -1).Draw(t, "text")
		limit := rapid.IntRange(1, 12).Draw(t, "limit")
		ascii := rapid.Bool().Draw(t, "ascii")
		got := errortext.Sanitize(raw, limit, ascii)
		if !utf8.ValidString(got) || strings.ContainsRune(got, 0) || utf8.RuneCountInString(got) > limit {
			t.Fatalf("%q became %q", raw, got)
		}
		if clean := errortext.Sanitize(raw, 0, ascii); !strings.HasPrefix(clean, got) || got != clean && utf8.RuneCountInString(got) < limit {
			t.Fatalf("%q became %q, cut to %d from %q", raw, got, limit, clean)
		}
		if ascii && strings.IndexFunc(got, func(r rune) bool { return r >= utf8.RuneSelf }) >= 0 {
			t.Fatalf("%q is not ASCII", got)
		}
	})
}
