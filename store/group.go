package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Group returns the group of a row whose group column holds text, nil for NULL.
// Every reader of the column asks here, so that the log and the table give a row
// the same lane.
//
// Without a GroupPath the text is the group. With one, it is the value that the
// path leads to, in the text read as JSON:
//
//   - A string is its characters; U+0000, which databases cannot keep in a text,
//     is U+FFFD.
//   - A number, true or false is its JSON text as it is written: 1 and 1.0 are two
//     groups, and no digit of a large one is lost. The string "1" and the number
//     1 are one group.
//   - An object or a list is its JSON text without the blanks between its parts.
//     The order of its keys counts. Each byte that is no UTF-8, which a column of
//     bytes may hold, is U+FFFD, as it is in a string. Groups that differ in such
//     bytes alone become one, which keeps the order of each.
//   - null, a key that is not there, and a path that leads through what is no
//     object are no group.
//   - Of a key that is there twice the last counts, as in jsonb.
//   - What is no JSON is in the group "". Such rows keep their order among
//     themselves, also where rows without a group have none.
func (l *Layout) Group(text []byte) Group {
	switch {
	case text == nil:
		return Group{}
	case len(l.GroupPath) == 0:
		return GroupOf(string(text))
	case !json.Valid(text):
		return GroupOf("")
	}
	value := bytes.TrimLeft(text, jsonSpace)
	for _, key := range l.GroupPath {
		if value = member(value, key); value == nil {
			return Group{}
		}
	}
	return groupOfJSON(value)
}

// groupOfJSON returns the group that the value at the start of a text names.
func groupOfJSON(text []byte) Group {
	value := text[:valueEnd(text)]
	switch value[0] {
	case 'n':
		return Group{}
	case '"':
		return GroupOf(string(bytes.ReplaceAll(unquote(value), []byte{0}, []byte(string(utf8.RuneError)))))
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

// jsonSpace are what JSON has between its parts.
const jsonSpace = " \t\r\n"

// member returns the text from the value of a key on, or nil if the valid JSON
// that text begins with is no object or lacks the key.
func member(text []byte, key string) (found []byte) {
	if text[0] != '{' {
		return nil
	}
	rest := bytes.TrimLeft(text[1:], jsonSpace)
	for rest[0] == '"' {
		end := stringEnd(rest)
		name := unquote(rest[:end])
		rest = bytes.TrimLeft(rest[end:], jsonSpace)
		rest = bytes.TrimLeft(rest[1:], jsonSpace) // the colon
		if string(name) == key {
			found = rest
		}
		rest = bytes.TrimLeft(rest[valueEnd(rest):], jsonSpace)
		if rest[0] == ',' {
			rest = bytes.TrimLeft(rest[1:], jsonSpace)
		}
	}
	return found
}

// valueEnd returns the length of the value that text begins with.
func valueEnd(text []byte) int {
	switch text[0] {
	case '"':
		return stringEnd(text)
	case '{', '[':
		depth := 0
		for i := 0; ; i++ {
			switch text[i] {
			case '"':
				i += stringEnd(text[i:]) - 1
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1
				}
			}
		}
	}
	if i := bytes.IndexAny(text, ",]}"+jsonSpace); i >= 0 {
		return i
	}
	return len(text)
}

// stringEnd returns the length of the string that text begins with, its quotes
// included.
func stringEnd(text []byte) int {
	for i := 1; ; i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
}

// unquote returns the characters of a string in JSON.
func unquote(quoted []byte) []byte {
	if bytes.IndexByte(quoted, '\\') < 0 && utf8.Valid(quoted) {
		return quoted[1 : len(quoted)-1]
	}
	var s string
	if err := json.Unmarshal(quoted, &s); err != nil {
		panic("store: a JSON string that was valid is not: " + err.Error())
	}
	return []byte(s)
}

// ParseGroupPath reads a path of keys with dots between them: customer.id. A key
// with other characters than letters, digits, _ and - stands in double quotes, as
// in JSON: "customer.no".id. There is no way into a list. The error begins with
// "is" or "has" and names the place by its character.
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

// pathKey reads the key that text begins with.
func pathKey(text string) (key string, length int, err error) {
	if strings.HasPrefix(text, `"`) {
		end := closingQuote(text)
		if end < 0 {
			return "", 0, errors.New("a quoted key has no closing quote")
		}
		if err := json.Unmarshal([]byte(text[:end]), &key); err != nil {
			return "", 0, errors.New("a quoted key is no string in JSON; write a backslash as \\\\ and a quote as \\\"")
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

// closingQuote returns the length of the quoted key that text begins with, -1 if its
// quote is not closed.
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

// unexpectedText says what to write in place of what text begins with.
func unexpectedText(text string) string {
	switch r, _ := utf8.DecodeRuneInString(text); r {
	case '$':
		return "begin with the first key, without $"
	case '[', '*':
		return "there is no way into a list; name keys of objects only"
	default:
		return fmt.Sprintf("%q is not expected; write keys with dots between them, and a key with other characters than letters, digits, _ and - in double quotes", r)
	}
}
