// Package errortext makes error texts fit to be stored in a row.
package errortext

import (
	"strings"
	"unicode/utf8"
)

// MaxLength is the most characters of an error that are written into a row: enough for
// a status line and the start of an answer.
const MaxLength = 2000

// Sanitize takes NUL bytes and invalid UTF-8 out of a text, and cuts it to limit
// characters, or to Most if limit is 0 or more than that. Where ascii is set, every
// other character becomes a question mark.
func Sanitize(text string, limit int, ascii bool) string {
	if limit <= 0 || limit > MaxLength {
		limit = MaxLength
	}
	// A character has at most 4 bytes: what lies behind them is cut off anyway.
	// Three spare bytes keep the character at the cut whole.
	if most := 4*limit + utf8.UTFMax - 1; len(text) > most && strings.IndexByte(text[:most], 0) < 0 {
		text = text[:most]
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
