package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/store/internal/jsontext"
)

// Group returns the group of a row whose group column holds text, nil for NULL. Every
// reader of the column calls it, so that the log and the table give a row the same lane.
//
// Without a GroupPath the text is the group. With a GroupPath, the text is parsed as JSON
// and the group is the value at that path:
//
//   - A string: its characters. U+0000 becomes U+FFFD, because databases cannot store it in
//     a text.
//   - A number, true or false: its JSON text as written. 1 and 1.0 are two groups, and a
//     large number keeps all its digits. The string "1" and the number 1 are the same
//     group.
//   - An object or array: its JSON text without white space between its parts. The order of
//     keys matters. Each invalid UTF-8 byte, which a binary column may hold, becomes
//     U+FFFD, as in a string. Groups that differ only in such bytes are merged, which
//     preserves the order of each.
//   - null, a missing key, or a path through a value that is not an object: no group.
//   - A duplicate key: the last value counts, as in jsonb.
//   - Invalid JSON: the group "". Such rows keep their order among themselves, even where
//     rows without a group are unordered.
func (l *Layout) Group(text []byte) Group {
	switch {
	case text == nil:
		return Group{}
	case len(l.GroupPath) == 0:
		return GroupOf(string(text))
	case !json.Valid(text):
		return GroupOf("")
	}

	value := lookup(bytes.TrimLeft(text, jsontext.Space), l.GroupPath)
	if value == nil {
		return Group{}
	}
	return groupOfJSON(value)
}

// lookup returns text starting at the value at a path of keys, nil if there is none.
func lookup(text []byte, path []string) []byte {
	for _, key := range path {
		if text = member(text, key); text == nil {
			return nil
		}
	}
	return text
}

// noPart stands for a column that is NULL in a group over several columns.
const noPart = `\N`

// GroupOfColumns returns the group of a row. text returns the content of each column, nil for
// NULL: of Columns.Group by 0, and of GroupRest[i] by i+1. A group over several columns is
// their texts with / between them, for example customer/7. A / or \ within a text has a \ in
// front, and NULL is \N, so that no two rows share a group unless they share all texts. The
// row has no group if all columns are NULL.
func (l *Layout) GroupOfColumns(text func(i int) []byte) Group {
	if len(l.GroupRest) == 0 {
		return l.Group(text(0))
	}
	var name []byte
	valid := false
	for i := range len(l.GroupRest) + 1 {
		if i > 0 {
			name = append(name, '/')
		}
		part := text(i)
		if part == nil {
			name = append(name, noPart...)
			continue
		}
		valid = true
		for _, b := range part {
			if b == '/' || b == '\\' {
				name = append(name, '\\')
			}
			name = append(name, b)
		}
	}
	if !valid {
		return Group{}
	}
	return GroupOf(string(name))
}

// GroupParts returns the content of each column of a group over several columns, as
// GroupOfColumns joins them. ok is false if no row can have the group.
func (l *Layout) GroupParts(g Group) (parts []Group, ok bool) {
	n := len(l.GroupRest) + 1
	if !g.Valid {
		return make([]Group, n), true
	}
	if n == 1 {
		return []Group{g}, true
	}
	for rest, more := g.Name, true; more; {
		var part Group
		if part, rest, more, ok = cutPart(rest); !ok {
			return nil, false
		}
		parts = append(parts, part)
	}
	known := slices.ContainsFunc(parts, func(g Group) bool { return g.Valid })
	return parts, known && len(parts) == n
}

// cutPart returns the first part of a group over several columns, and the text behind its /.
func cutPart(text string) (part Group, rest string, more, ok bool) {
	if rest, null := strings.CutPrefix(text, noPart); null && (rest == "" || rest[0] == '/') {
		return Group{}, strings.TrimPrefix(rest, "/"), rest != "", true
	}
	var name []byte
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '/':
			return GroupOf(string(name)), text[i+1:], true, true
		case '\\':
			if i++; i == len(text) || text[i] != '/' && text[i] != '\\' {
				return Group{}, "", false, false
			}
		}
		name = append(name, text[i])
	}
	return GroupOf(string(name)), "", false, true
}

// groupOfJSON returns the group for the JSON value at the start of text.
func groupOfJSON(text []byte) Group {
	value := text[:jsontext.ValueEnd(text)]
	switch value[0] {
	case 'n':
		return Group{}
	case '"':
		return GroupOf(string(bytes.ReplaceAll(jsontext.Unquote(value), []byte{0}, []byte(string(utf8.RuneError)))))
	case '{', '[':
		var compact bytes.Buffer
		if err := json.Compact(&compact, value); err != nil {
			panic("store: JSON that was valid is not: " + err.Error())
		}
		value = compact.Bytes()
		if !utf8.Valid(value) {
			return GroupOf(string([]rune(string(value))))
		}
	}

	return GroupOf(string(value))
}

// member returns text starting at the value of key. It returns nil if the valid JSON at the
// start of text is not an object or lacks the key.
func member(text []byte, key string) (found []byte) {
	for name, value := range jsontext.Members(text) {
		if string(name) == key {
			found = value
		}
	}
	return found
}

// ParseGroupPath parses a path of keys separated by dots, for example customer.id. A key
// with characters other than letters, digits, _ and - is written in double quotes, as in
// JSON: "customer.no".id. A path cannot enter an array. The error begins with "is" or "has"
// and names the character position.
func ParseGroupPath(text string) ([]string, error) {
	var path []string
	rest := text
	for {
		key, length, err := pathKey(rest)
		at := utf8.RuneCountInString(text[:len(text)-len(rest)]) + 1
		if err != nil {
			return nil, fmt.Errorf("is %q: at character %d, %w", text, at, err)
		}
		path = append(path, key)
		rest = rest[length:]
		if rest == "" {
			return path, nil
		}
		if rest[0] != '.' {
			at = utf8.RuneCountInString(text[:len(text)-len(rest)]) + 1
			return nil, fmt.Errorf("is %q: at character %d, %s", text, at, unexpectedText(rest))
		}
		rest = rest[1:]
	}
}

// pathKey parses the key at the start of text.
func pathKey(text string) (key string, length int, err error) {
	if strings.HasPrefix(text, `"`) {
		end := closingQuote(text)
		if end < 0 {
			return "", 0, errors.New("a quoted key has no closing quote")
		}
		if err := json.Unmarshal([]byte(text[:end]), &key); err != nil {
			return "", 0, errors.New("a quoted key is not a JSON string; write a backslash as \\\\ and a quote as \\\"")
		}
		return key, end, nil
	}

	length = strings.IndexFunc(text, func(r rune) bool {
		return r < utf8.RuneSelf && !strings.ContainsRune("_-0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", r)
	})
	switch {
	case text == "" || text[0] == '.':
		return "", 0, errors.New("a key is missing")
	case length == 0:
		return "", 0, errors.New(unexpectedText(text))
	case length < 0:
		length = len(text)
	}

	return text[:length], length, nil
}

// closingQuote returns the length of the quoted key at the start of text, -1 if the closing
// quote is missing.
func closingQuote(text string) int {
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return -1
}

// unexpectedText returns the error text for an unexpected character at the start of text.
func unexpectedText(text string) string {
	switch r, _ := utf8.DecodeRuneInString(text); r {
	case '$':
		return "begin with the first key, without $"
	case '[', '*':
		return "an array cannot be entered; name object keys only"
	default:
		return fmt.Sprintf("unexpected %q; separate keys with dots, and put a key with characters other than letters, digits, _ and - in double quotes", r)
	}
}
