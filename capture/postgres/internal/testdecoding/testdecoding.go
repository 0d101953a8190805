// Package testdecoding reads the texts of the output plugin test_decoding. Their form is that of
// contrib/test_decoding/test_decoding.c of PostgreSQL.
package testdecoding

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// Kind is what a message is about.
type Kind byte

// Kinds of messages. A message of kind Other changes no row of a table.
const (
	Other Kind = iota
	Begin
	Commit
	Insert
	Update
	Delete
	Truncate
)

// Message is one message. It aliases its text.
type Message struct {
	Kind   Kind
	At     time.Time // of a Commit
	Tables [][]byte  // quoted and with their schemas; several of a Truncate
	Tuple  []byte    // the columns, nil without any
}

// Parse reads one message. The error is about a text that is none.
func Parse(text []byte) (m Message, err error) {
	word, rest, _ := bytes.Cut(text, []byte(" "))
	switch string(word) {
	case "BEGIN":
		m.Kind = Begin
		_, err = strconv.ParseUint(string(rest), 10, 64)
	case "COMMIT":
		m.Kind = Commit
		_, rest, _ = bytes.Cut(rest, []byte("(at "))
		m.At, err = parseTime(string(bytes.TrimSuffix(rest, []byte(")"))))
	case "table":
		err = m.parseTable(rest)
	}
	if err != nil {
		return m, fmt.Errorf("test_decoding: %w", err)
	}
	return m, nil
}

func parseTime(text string) (at time.Time, err error) {
	for _, layout := range []string{"2006-01-02 15:04:05.999999-07", "2006-01-02 15:04:05.999999-07:00"} {
		if at, err = time.Parse(layout, text); err == nil {
			return at, nil
		}
	}
	return at, err
}

// parseTable parses NAME, NAME: COMMAND: columns.
func (m *Message) parseTable(text []byte) error {
	for {
		n := nameLength(text, ':', ',')
		if n < 0 {
			return errors.New("table without a command")
		}
		m.Tables = append(m.Tables, text[:n])
		separator := text[n]
		if text = bytes.TrimPrefix(text[n+1:], []byte(" ")); separator == ':' {
			break
		}
	}
	command, columns, found := bytes.Cut(text, []byte(":"))
	if !found {
		return errors.New("command without columns")
	}
	switch string(command) {
	case "INSERT":
		m.Kind, m.Tuple = Insert, columns
	case "UPDATE":
		m.Kind, m.Tuple = Update, columns
		if old, has := bytes.CutPrefix(columns, []byte(" old-key:")); has {
			m.Tuple = old
			for !bytes.HasPrefix(m.Tuple, []byte(" new-tuple:")) {
				if _, err := Next(&m.Tuple); err != nil {
					return err
				}
			}
			m.Tuple = m.Tuple[len(" new-tuple:"):]
		}
	case "DELETE":
		m.Kind, m.Tuple = Delete, columns
	case "TRUNCATE":
		m.Kind = Truncate
	}
	if string(m.Tuple) == " (no-tuple-data)" {
		m.Tuple = nil
	}
	return nil
}

// nameLength returns the length of a name up to one of the separators outside quotes, or -1.
func nameLength(text []byte, separators ...byte) int {
	quoted := false
	for i, c := range text {
		switch {
		case c == '"':
			quoted = !quoted
		case !quoted && bytes.IndexByte(separators, c) >= 0:
			return i
		}
	}
	return -1
}

// Column is a column of a tuple. It aliases the message, unless its value has quotes.
type Column struct {
	Name, Type []byte
	Value      []byte // nil is NULL
	Unchanged  bool   // a long value that an update left as it was; the log does not have it
}

// Next takes a column from the front of a tuple: name[type]:value, with a blank before it.
func Next(tuple *[]byte) (c Column, err error) {
	text := bytes.TrimPrefix(*tuple, []byte(" "))
	n := nameLength(text, '[')
	if n < 0 {
		return c, errors.New("column without a type")
	}
	c.Name = unquoteName(text[:n])
	text = text[n+1:]
	if n = bytes.Index(text, []byte("]:")); n < 0 {
		return c, errors.New("column without a value")
	}
	c.Type, text = text[:n], text[n+2:]
	switch {
	case bytes.HasPrefix(text, []byte("B'")):
		c.Value, text, err = cutLiteral(text[2:])
	case bytes.HasPrefix(text, []byte("'")):
		c.Value, text, err = cutLiteral(text[1:])
	default:
		if n = bytes.IndexByte(text, ' '); n < 0 {
			n = len(text)
		}
		c.Value, text = text[:n], text[n:]
		switch string(c.Value) {
		case "null":
			c.Value = nil
		case "unchanged-toast-datum":
			c.Value, c.Unchanged = nil, true
		}
	}
	*tuple = text
	return c, err
}

// cutLiteral returns the content of a literal and the text behind it. ” stands for a quote.
func cutLiteral(text []byte) (value, rest []byte, err error) {
	value = []byte{}
	for {
		n := bytes.IndexByte(text, '\'')
		if n < 0 {
			return nil, nil, errors.New("literal without an end")
		}
		part := text[:n]
		if text = text[n+1:]; len(text) == 0 || text[0] != '\'' {
			if len(value) == 0 {
				return part, text, nil
			}
			return append(value, part...), text, nil
		}
		value = append(append(value, part...), '\'')
		text = text[1:]
	}
}

func unquoteName(name []byte) []byte {
	if len(name) < 2 || name[0] != '"' {
		return name
	}
	return bytes.ReplaceAll(name[1:len(name)-1], []byte(`""`), []byte(`"`))
}
