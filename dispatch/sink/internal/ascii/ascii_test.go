package ascii

import (
	"net/url"
	"strings"
	"testing"
)

// FuzzPercentEncode: the result is reversible and holds only permitted characters.
func FuzzPercentEncode(f *testing.F) {
	f.Add("a.b%2E\"é\x00", ".")
	f.Add("\xff ~!", "")
	f.Fuzz(func(t *testing.T, s, too string) {
		// Encoding itself produces % and hexadecimal digits.
		too = strings.Map(func(r rune) rune {
			if r == '%' || r >= '0' && r <= '9' || r >= 'A' && r <= 'F' {
				return -1
			}
			return r
		}, too)
		got := PercentEncode(s, too)
		if back, err := url.PathUnescape(got); err != nil || back != s {
			t.Fatalf("%q becomes %q, which reads as %q, %v", s, got, back, err)
		}
		if !Visible(got) || strings.ContainsAny(got, too) && Visible(too) {
			t.Fatalf("%q without %q becomes %q", s, too, got)
		}
	})
}
