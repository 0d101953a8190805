package quickstart

import "strings"

// shellWord quotes a text as one word for a POSIX shell.
func shellWord(text string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-:=@%+,", r)
	}
	if text != "" && !strings.ContainsFunc(text, func(r rune) bool { return !plain(r) }) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

func shellWords(texts []string) []string {
	words := make([]string, len(texts))
	for i, text := range texts {
		words[i] = shellWord(text)
	}
	return words
}
