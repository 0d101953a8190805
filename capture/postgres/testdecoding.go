package postgres

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/sluicebox/sluicebox/capture"
)

// watchPlugin is the output plugin of a watch. It comes with the server, as pgoutput does, and
// shows the whole new row of an update without a publication or a replica identity. Its texts
// are those of contrib/test_decoding/test_decoding.c.
const watchPlugin = "test_decoding"

// textMessage is one message of test_decoding.
type textMessage struct {
	kind   byte // msgBegin, msgCommit, msgInsert, msgUpdate, msgDelete, msgTruncate; 0 for all else
	xid    uint64
	at     time.Time // of a commit
	tables [][]byte  // quoted and with their schemas; several of a Truncate
	tuple  []byte    // the columns, nil without any
}

func parseText(text []byte) (m textMessage, err error) {
	word, rest, _ := bytes.Cut(text, []byte(" "))
	switch string(word) {
	case "BEGIN":
		m.kind = msgBegin
		m.xid, err = strconv.ParseUint(string(rest), 10, 64)
	case "COMMIT":
		m.kind = msgCommit
		_, rest, _ = bytes.Cut(rest, []byte("(at "))
		m.at, err = parseTextTime(string(bytes.TrimSuffix(rest, []byte(")"))))
	case "table":
		err = m.parseTable(rest)
	}
	if err != nil {
		return m, fmt.Errorf("test_decoding: %w", err)
	}
	return m, nil
}

func parseTextTime(text string) (at time.Time, err error) {
	for _, layout := range []string{"2006-01-02 15:04:05.999999-07", "2006-01-02 15:04:05.999999-07:00"} {
		if at, err = time.Parse(layout, text); err == nil {
			return at, nil
		}
	}
	return at, err
}

// parseTable parses NAME, NAME: COMMAND: columns.
func (m *textMessage) parseTable(text []byte) error {
	for {
		n := nameLength(text, ':', ',')
		if n < 0 {
			return errors.New("table without a command")
		}
		m.tables = append(m.tables, text[:n])
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
		m.kind, m.tuple = msgInsert, columns
	case "UPDATE":
		m.kind, m.tuple = msgUpdate, columns
		if old, has := bytes.CutPrefix(columns, []byte(" old-key:")); has {
			m.tuple = old
			for !bytes.HasPrefix(m.tuple, []byte(" new-tuple:")) {
				if _, err := nextColumn(&m.tuple); err != nil {
					return err
				}
			}
			m.tuple = m.tuple[len(" new-tuple:"):]
		}
	case "DELETE":
		m.kind, m.tuple = msgDelete, columns
	case "TRUNCATE":
		m.kind = msgTruncate
	}
	if string(m.tuple) == " (no-tuple-data)" {
		m.tuple = nil
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

// textColumn is a column of a tuple. It aliases the message, unless its value has quotes.
type textColumn struct {
	name, kind []byte
	value      []byte // nil is NULL
	unchanged  bool   // a long value that an update left as it was; the log does not have it
}

// nextColumn takes a column from the front of a tuple: name[type]:value, with a blank before it.
func nextColumn(tuple *[]byte) (c textColumn, err error) {
	text := bytes.TrimPrefix(*tuple, []byte(" "))
	n := nameLength(text, '[')
	if n < 0 {
		return c, errors.New("column without a type")
	}
	c.name = unquoteName(text[:n])
	text = text[n+1:]
	if n = bytes.Index(text, []byte("]:")); n < 0 {
		return c, errors.New("column without a value")
	}
	c.kind, text = text[:n], text[n+2:]
	switch {
	case bytes.HasPrefix(text, []byte("B'")):
		c.value, text, err = cutLiteral(text[2:])
	case bytes.HasPrefix(text, []byte("'")):
		c.value, text, err = cutLiteral(text[1:])
	default:
		if n = bytes.IndexByte(text, ' '); n < 0 {
			n = len(text)
		}
		c.value, text = text[:n], text[n:]
		switch string(c.value) {
		case "null":
			c.value = nil
		case "unchanged-toast-datum":
			c.value, c.unchanged = nil, true
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

// textRow is a tuple of a watched table. Its columns are numbered as watchedTable.columns.
type textRow struct {
	table  *watchedTable
	values []textColumn
	has    []bool
}

// read reads a tuple. The values alias it.
func (r *textRow) read(t *watchedTable, tuple []byte) error {
	r.table = t
	r.values = append(r.values[:0], make([]textColumn, len(t.columns))...)
	r.has = append(r.has[:0], make([]bool, len(t.columns))...)
	for len(tuple) > 0 {
		c, err := nextColumn(&tuple)
		if err != nil {
			return fmt.Errorf("test_decoding: table %s: %w", t.name, err)
		}
		if at, wanted := t.columns[string(c.name)]; wanted {
			r.values[at], r.has[at] = c, !c.unchanged
		}
	}
	return nil
}

func (r *textRow) Table() (schema, name string) { return "", r.table.name }

func (r *textRow) Has(column int) bool { return r.has[column] }

func (r *textRow) IsNull(column int) bool { return r.values[column].value == nil }

func (r *textRow) Size(column int) int { return len(r.values[column].value) }

func (r *textRow) AppendText(dst []byte, column int) ([]byte, error) {
	return append(dst, r.values[column].value...), nil
}

func (r *textRow) AppendBytes(dst []byte, column int) ([]byte, error) {
	v := &r.values[column]
	if text, ok := bytes.CutPrefix(v.value, []byte(byteaPrefix)); ok && string(v.kind) == "bytea" {
		return hex.AppendDecode(dst, text)
	}
	return append(dst, v.value...), nil
}

// textMessage handles one message of test_decoding.
func (a *assembler) textMessage(text []byte) (b capture.Batch, ready bool, err error) {
	m, err := parseText(text)
	if err != nil {
		return b, false, err
	}
	switch m.kind {
	case 0:
		return b, false, nil
	case msgBegin:
		a.open = true
		a.watch.number++
		a.tx.ID, a.tx.Committed = a.watch.number, time.Time{} // the time comes with the commit
		return b, false, nil
	case msgCommit:
		a.tx.Committed = m.at
		b, _ = a.tx.TakeChanges(false)
		b.Position, a.open = formatLSN(a.at), false
		return b, true, nil
	case msgTruncate:
		for _, name := range m.tables {
			if t, err := a.watch.find(name); err != nil || t == nil {
				if err != nil {
					return b, false, err
				}
				continue
			} else {
				a.tx.AddTruncate(t.outboxes)
			}
		}
		return b, false, nil
	}
	t, err := a.watch.find(m.tables[0])
	if err != nil || t == nil {
		return b, false, err
	}
	if err := a.watch.row.read(t, m.tuple); err != nil {
		return b, false, err
	}
	kind := map[byte]capture.ChangeKind{msgInsert: capture.Inserted, msgUpdate: capture.Updated, msgDelete: capture.Deleted}[m.kind]
	if err := a.tx.AddChange(kind, &a.watch.row, t.outboxes); err != nil {
		return b, false, err
	}
	b, ready = a.tx.TakeChanges(true)
	return b, ready, nil
}
