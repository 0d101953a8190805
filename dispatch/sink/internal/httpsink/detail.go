package httpsink

import (
	"strings"
	"unicode"
)

// maxDetail is the length of a detail in characters.
const maxDetail = 300

// Clean makes one line of at most 300 printable characters out of s, and an
// ellipsis if it was longer. It takes the secrets out, which a receiver may well
// echo; where one is a part of another, the longer one goes first.
func Clean(s string, secrets ...string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	for _, secret := range secrets {
		if secret != "" {
			s = strings.ReplaceAll(s, secret, Redacted)
		}
	}
	var b strings.Builder
	n, blank := 0, false
	for _, r := range s {
		if unicode.IsSpace(r) || !unicode.IsPrint(r) {
			blank = n > 0
			continue
		}
		if blank {
			b.WriteByte(' ')
			n++
			blank = false
		}
		if n >= maxDetail {
			return strings.TrimSpace(b.String()) + "…"
		}
		b.WriteRune(r)
		n++
	}
	return b.String()
}
