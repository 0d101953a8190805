package store

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/store/internal/jsontext"
)

// An outbox without a table has its rows in the log alone, as logical messages of PostgreSQL; see
// Outbox.MessagePrefix.

// Columns of a message that are no members of its content.
const (
	// MessageLSN is the position of the message in the log, its id if Columns.ID is "".
	MessageLSN = "(lsn)"
	// MessageContent is the whole content, the payload if Columns.Payload is "".
	MessageContent = "(content)"
)

// MessageLayout returns the layout of logical messages with the columns that l leaves out. Its
// other columns are members of the JSON object that is the content of a message.
func MessageLayout(l Layout) Layout {
	l.Columns.ID, l.Columns.Payload = cmp.Or(l.Columns.ID, MessageLSN), cmp.Or(l.Columns.Payload, MessageContent)
	return l
}

// ReadMembers returns the members of the JSON object that is the content of a message, by their
// names: of a string its characters, and of anything else its JSON text as written. A member that
// is null or missing is nil. ok is false if the content is no JSON object.
//
// A dot in a name leads into a member: order.id is the member id of the object order, unless the
// content has a member that is called order.id.
func ReadMembers(content []byte, names []string) (values [][]byte, ok bool) {
	text := bytes.TrimLeft(content, jsontext.Space)
	if !json.Valid(content) || text[0] != '{' {
		return nil, false
	}
	values = make([][]byte, len(names))
	for name, member := range jsontext.Members(text) {
		i := slices.Index(names, string(name))
		if i < 0 {
			continue
		}
		values[i] = memberText(member)
	}
	for i, name := range names {
		if values[i] == nil && strings.Contains(name, ".") {
			values[i] = memberText(lookup(text, strings.Split(name, ".")))
		}
	}
	return values, true
}

// memberText returns the text of the value at the start of a member, nil if that is null.
func memberText(member []byte) []byte {
	if member == nil {
		return nil
	}
	switch value := member[:jsontext.ValueEnd(member)]; value[0] {
	case 'n':
		return nil
	case '"':
		return jsontext.Unquote(value)
	default:
		return value
	}
}

// validateMessages reports what an outbox without a table cannot have.
func (o *Outbox) validateMessages() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if o.Table != "" || o.Schema != "" {
		bad("messages with a prefix have no table; remove one of the two")
	}
	if !o.Layout.LogOnly() {
		bad("messages are in the log alone; use a layout with state none that deletes nothing")
	}
	return errors.Join(errs...)
}

// RejectMessages returns a *SetupError if an outbox has logical messages, which only PostgreSQL
// has.
func RejectMessages(outboxes []Outbox, database string) error {
	for i := range outboxes {
		if outboxes[i].MessagePrefix != "" {
			return &SetupError{
				Problem: fmt.Sprintf("outbox %q: %s has no logical messages; only the WAL of PostgreSQL has them", outboxes[i].Name, database),
				Remedy:  "name a table in place of the prefix",
			}
		}
	}
	return nil
}
