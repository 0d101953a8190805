package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"unicode"
	"unicode/utf16"
)

// json prints a result as indented JSON.
func (p *program) json(v any) error { return writeJSON(p.stdout, v, "  ") }

// writeJSON writes a value as JSON, in one line if indent is empty. It escapes everything
// that does not print, so that a value cannot control the terminal. The output decodes to
// the same value.
func writeJSON(to io.Writer, v any, indent string) error {
	var plain bytes.Buffer
	enc := json.NewEncoder(&plain)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	if err := enc.Encode(v); err != nil {
		return err
	}
	var text bytes.Buffer
	for _, r := range plain.String() { // JSON is valid UTF-8
		switch {
		case r == '\n' || unicode.IsPrint(r):
			text.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&text, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&text, `\u%04x`, r)
		}
	}
	_, err := to.Write(text.Bytes())
	return err
}
