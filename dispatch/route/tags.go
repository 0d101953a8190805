package route

import (
	"encoding/json"
	"strings"
)

// AppendTags appends the tags in the value of an attribute; see the package's documentation for its
// forms. A text that is neither an array of PostgreSQL nor of JSON is a list with commas. Empty
// entries of such a list, and elements that are NULL or null, are no tags. The tags share the memory
// of the text where they have no escapes.
func AppendTags(tags []string, text string) []string {
	text = strings.TrimSpace(text)
	if text == "" {
		return tags
	}
	switch text[0] {
	case '{':
		if all, ok := appendArray(tags, text); ok {
			return all
		}
	case '[':
		if all, ok := appendPlainJSON(tags, text); ok {
			return all
		}
		if all, ok := appendJSON(tags, text); ok {
			return all
		}
		// The bounds of an array that does not begin at 1, for example [0:1]={a,b}.
		if at := strings.Index(text, "]={"); at > 0 && strings.Trim(text[1:at], "0123456789:-[]") == "" {
			if all, ok := appendArray(tags, text[at+2:]); ok {
				return all
			}
		}
	}
	for part := range strings.SplitSeq(text, ",") {
		if tag := strings.TrimSpace(part); tag != "" {
			tags = append(tags, tag)
		}
	}
	return tags
}

// appendArray appends the elements of a PostgreSQL array in its text form, those of all dimensions
// (postgresql.org/docs/current/arrays.html#ARRAYS-IO). It reports whether the text is one.
func appendArray(tags []string, text string) (all []string, ok bool) {
	depth, wantsElement := 0, false
	for text != "" {
		switch c := text[0]; c {
		case '{':
			depth, wantsElement, text = depth+1, true, text[1:]
			continue
		case '}':
			if depth--; depth < 0 {
				return nil, false
			}
			if wantsElement, text = false, text[1:]; depth == 0 {
				return tags, text == ""
			}
			continue
		case ',':
			if wantsElement {
				return nil, false
			}
			wantsElement, text = true, text[1:]
			continue
		case ' ':
			text = text[1:]
			continue
		case '"':
			tag, rest, closed := quoted(text)
			if !closed || !wantsElement {
				return nil, false
			}
			tags, text = append(tags, tag), rest
		default:
			end := strings.IndexAny(text, `,{}"\`)
			if end < 0 || text[end] != ',' && text[end] != '}' || !wantsElement {
				return nil, false
			}
			if tag := strings.TrimRight(text[:end], " "); !strings.EqualFold(tag, "NULL") {
				tags = append(tags, tag)
			}
			text = text[end:]
		}
		wantsElement = false
	}
	return nil, false
}

// quoted returns the content of the quoted element at the beginning of a text, and the text behind
// it.
func quoted(text string) (content, rest string, closed bool) {
	var unescaped strings.Builder
	for from, at := 1, 1; at < len(text); at++ {
		switch text[at] {
		case '"':
			if unescaped.Len() == 0 {
				return text[from:at], text[at+1:], true
			}
			unescaped.WriteString(text[from:at])
			return unescaped.String(), text[at+1:], true
		case '\\':
			unescaped.WriteString(text[from:at])
			from, at = at+1, at+1
		}
	}
	return "", "", false
}

// jsonSpace are the blanks of JSON.
const jsonSpace = " \t\r\n"

// appendPlainJSON appends the elements of a JSON array of texts without escapes, and reports whether
// the text is one. It is there because package json needs memory for each element.
func appendPlainJSON(tags []string, text string) (all []string, ok bool) {
	text = strings.TrimLeft(text[1:], jsonSpace)
	for {
		if text == "" || text[0] != '"' {
			return nil, false
		}
		end := 1
		for end < len(text) && text[end] != '"' {
			if text[end] == '\\' || text[end] < ' ' {
				return nil, false
			}
			end++
		}
		if end == len(text) {
			return nil, false
		}
		tags = append(tags, text[1:end])
		text = strings.TrimLeft(text[end+1:], jsonSpace)
		switch {
		case text == "]":
			return tags, true
		case text == "" || text[0] != ',':
			return nil, false
		}
		text = strings.TrimLeft(text[1:], jsonSpace)
	}
}

// appendJSON appends the elements of any JSON array: the characters of a string, the JSON of
// anything else. It reports whether the text is one.
func appendJSON(tags []string, text string) (all []string, ok bool) {
	var elements []json.RawMessage
	if json.Unmarshal([]byte(text), &elements) != nil {
		return nil, false
	}
	for _, e := range elements {
		var tag string
		switch {
		case string(e) == "null":
			continue
		case e[0] != '"':
			tag = string(e)
		case json.Unmarshal(e, &tag) != nil:
			return nil, false
		}
		tags = append(tags, tag)
	}
	return tags, true
}
