package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"unicode"
	"unicode/utf16"
)

// jsonLine writes a value as JSON in a line, with nothing in it that a terminal
// would obey: what does not print is escaped. It reads back the same.
func jsonLine(to io.Writer, v any) error {
	var plain bytes.Buffer
	enc := json.NewEncoder(&plain)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	var line bytes.Buffer
	for _, r := range plain.String() { // which is valid UTF-8
		switch {
		case r == '\n' || unicode.IsPrint(r):
			line.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&line, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&line, `\u%04x`, r)
		}
	}
	_, err := to.Write(line.Bytes())
	return err
}
