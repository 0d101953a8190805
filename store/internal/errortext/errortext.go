// Package errortext prepares error texts for storage in a row.
package errortext

import (
	"strings"
	"unicode/utf8"
)

// MaxLength is the maximum number of characters of a stored error: enough for a status line
// and the start of a response.
const MaxLength = 2000

// Sanitize removes NUL bytes, replaces invalid UTF-8 and truncates the text to limit
// characters, or to MaxLength if limit is 0 or larger. If ascii is set, every non-ASCII
// character becomes a question mark.
func Sanitize(text string, limit int, ascii bool) string {
	if limit <= 0 || limit > MaxLength {
		limit = MaxLength
	}
	// A character has at most 4 bytes, so bytes after 4*limit are cut off anyway. Three
	// spare bytes keep the last character whole.
	if maxBytes := 4*limit + utf8.UTFMax - 1; len(text) > maxBytes && strings.IndexByte(text[:maxBytes], 0) < 0 {
		text = text[:maxBytes]
	}

	text = strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", ""), "\uFFFD")
	if ascii {
		text = strings.Map(func(r rune) rune {
			if r >= utf8.RuneSelf {
				return '?'
			}
			return r
		}, text)
	}

	n := 0
	for i := range text {
		if n == limit {
			return text[:i]
		}
		n++
	}

	return text
}
