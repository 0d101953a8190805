// Package ascii checks and encodes texts for protocols whose headers have visible ASCII
// characters only.
package ascii

import (
	"fmt"
	"slices"
	"strings"
)

// Visible reports whether s has visible ASCII characters only, as a token in a header must.
func Visible(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) < 0
}

// Printable reports whether s has spaces and visible ASCII characters only.
func Printable(s string) bool { return Visible(strings.ReplaceAll(s, " ", "")) }

// PercentEncode percent-encodes % and every byte outside visible ASCII, in upper case
// (RFC 3986, section 2.1). It also encodes the characters in too. Decoding restores
// s, so different texts stay different.
func PercentEncode(s, too string) string {
	isEncoded := func(c byte) bool { return c <= ' ' || c > '~' || c == '%' || strings.IndexByte(too, c) >= 0 }
	if !slices.ContainsFunc([]byte(s), isEncoded) {
		return s
	}
	var b strings.Builder
	for _, c := range []byte(s) {
		if isEncoded(c) {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}
