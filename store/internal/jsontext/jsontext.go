// Package jsontext walks JSON text without decoding it, so that values keep their bytes. All
// functions need text that json.Valid accepts.
package jsontext

import (
	"bytes"
	"encoding/json"
	"iter"
	"unicode/utf8"
)

// Space is the white space that JSON allows between its parts.
const Space = " \t\r\n"

// Members iterates over the object at the start of text, which is valid JSON: the name of a
// member, and text starting at its value. There are none in another value.
func Members(text []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		if text[0] != '{' {
			return
		}
		rest := bytes.TrimLeft(text[1:], Space)
		for rest[0] == '"' {
			end := StringEnd(rest)
			name := Unquote(rest[:end])
			rest = bytes.TrimLeft(rest[end:], Space)
			rest = bytes.TrimLeft(rest[1:], Space) // the colon
			if !yield(name, rest) {
				return
			}
			rest = bytes.TrimLeft(rest[ValueEnd(rest):], Space)
			if rest[0] == ',' {
				rest = bytes.TrimLeft(rest[1:], Space)
			}
		}
	}
}

// Elements iterates over the array at the start of text: text starting at each of its values. There
// are none in another value.
func Elements(text []byte) iter.Seq[[]byte] {
	return func(yield func(value []byte) bool) {
		if text[0] != '[' {
			return
		}
		rest := bytes.TrimLeft(text[1:], Space)
		for rest[0] != ']' {
			if !yield(rest) {
				return
			}
			rest = bytes.TrimLeft(rest[ValueEnd(rest):], Space)
			if rest[0] == ',' {
				rest = bytes.TrimLeft(rest[1:], Space)
			}
		}
	}
}

// ValueEnd returns the length of the value at the start of text.
func ValueEnd(text []byte) int {
	switch text[0] {
	case '"':
		return StringEnd(text)
	case '{', '[':
		depth := 0
		for i := 0; ; i++ {
			switch text[i] {
			case '"':
				i += StringEnd(text[i:]) - 1
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1
				}
			}
		}
	}

	if i := bytes.IndexAny(text, ",]}"+Space); i >= 0 {
		return i
	}
	return len(text)
}

// StringEnd returns the length of the string at the start of text, including its quotes.
func StringEnd(text []byte) int {
	for i := 1; ; i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
}

// Unquote returns the characters of a JSON string.
func Unquote(quoted []byte) []byte {
	if bytes.IndexByte(quoted, '\\') < 0 && utf8.Valid(quoted) {
		return quoted[1 : len(quoted)-1]
	}
	var s string
	if err := json.Unmarshal(quoted, &s); err != nil {
		panic("jsontext: a JSON string that was valid is not: " + err.Error())
	}
	return []byte(s)
}
