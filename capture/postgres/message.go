package postgres

import (
	"slices"

	"github.com/jackc/pglogrepl"

	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/capture/internal/logsource"
	"github.com/sluicebox/sluicebox/store"
)

// messageBox is an outbox whose rows are logical messages with a prefix.
type messageBox struct {
	prefix  string
	members []string // of the content, which are columns; none if any content will do
	columns []logsource.Columns
	// id is the index of the id among the columns.
	id int
	// unreadable reads a message that is not as the layout says.
	unreadable []logsource.Columns
}

// Columns of a message before its members.
const (
	messageLSN = iota
	messageContent
	messageFault
	messageMembers // index of the first
)

// newMessageBox returns the box of an outbox, which must be valid.
func newMessageBox(o *store.Outbox) (*messageBox, error) {
	box, full := *o, &messageBox{prefix: o.MessagePrefix}
	box.Layout = store.MessageLayout(o.Layout)
	find := func(name string) int {
		switch name {
		case store.MessageLSN:
			return messageLSN
		case store.MessageContent:
			return messageContent
		}
		i := slices.Index(full.members, name)
		if i < 0 {
			i, full.members = len(full.members), append(full.members, name)
		}
		return messageMembers + i
	}
	read, err := logsource.FindColumns(&box, find, fault.MissingColumnsError{}, `"`)
	if err != nil {
		return nil, err
	}
	full.columns, full.id = []logsource.Columns{read}, read.ID

	bare := *o
	bare.Layout.GroupRest, bare.Layout.GroupPath = nil, nil
	bare.Layout.Attributes = []store.AttributeColumn{{Name: store.AttributeUnreadable}}
	full.unreadable = []logsource.Columns{{
		Outbox: &bare, ID: messageLSN, Kind: -1, Group: -1, Payload: messageContent, RetryCount: -1, Attributes: []int{messageFault},
	}}
	return full, nil
}

// newMessageBoxes returns the boxes of the outboxes without a table, by prefix.
func newMessageBoxes(outboxes []store.Outbox) (map[string]*messageBox, error) {
	boxes := map[string]*messageBox{}
	for i := range outboxes {
		if o := &outboxes[i]; o.MessagePrefix != "" {
			box, err := newMessageBox(o)
			if err != nil {
				return nil, err
			}
			boxes[o.MessagePrefix] = box
		}
	}
	return boxes, nil
}

// read returns a message as a row, and the columns of its outbox. A message that is not as the
// layout says is a row too, with the reason: another read of the WAL would find the same message.
func (b *messageBox) read(lsn pglogrepl.LSN, content []byte) (*message, []logsource.Columns) {
	m := &message{prefix: b.prefix, values: make([][]byte, messageMembers, messageMembers+len(b.members))}
	m.values[messageLSN], m.values[messageContent] = []byte(lsn.String()), content
	if len(b.members) == 0 {
		return m, b.columns
	}
	members, ok := store.ReadMembers(content, b.members)
	switch {
	case !ok:
		m.values[messageFault] = []byte("message is no JSON object")
	case b.id >= messageMembers && len(members[b.id-messageMembers]) == 0:
		m.values[messageFault] = []byte("message has no id in its member " + b.members[b.id-messageMembers])
	default:
		m.values = append(m.values, members...)
		return m, b.columns
	}
	return m, b.unreadable
}

// message is a logical message as a row of the log. It implements logsource.Row.
type message struct {
	prefix string
	values [][]byte // nil is NULL; they alias the message
}

// Table implements logsource.Row.
func (m *message) Table() (schema, name string) { return "messages", m.prefix }

// IsNull implements logsource.Row.
func (m *message) IsNull(column int) bool { return m.values[column] == nil }

// Size implements logsource.Row.
func (m *message) Size(column int) int { return len(m.values[column]) }

// AppendText implements logsource.Row. U+0000 becomes U+FFFD, as in a group of JSON.
func (m *message) AppendText(dst []byte, column int) ([]byte, error) {
	for _, b := range m.values[column] {
		if b == 0 {
			dst = append(dst, "\ufffd"...)
			continue
		}
		dst = append(dst, b)
	}
	return dst, nil
}

// AppendBytes implements logsource.Row.
func (m *message) AppendBytes(dst []byte, column int) ([]byte, error) {
	return append(dst, m.values[column]...), nil
}
