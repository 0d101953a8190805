package nats

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A session has one subscription for the answers of all its requests, and a request has an inbox.
// The subject of an answer names the request and the message:
//
//	_INBOX.PREFIX.REQUEST-MESSAGE
//
// So a message costs no future, no timer and no wake-up of its own: its answer wakes its request, which
// takes all answers that have come by then.

// inbox holds the answers to a request that it has not yet taken.
type inbox struct {
	number  string        // of the request
	arrived chan struct{} // signaled

	mu      sync.Mutex
	answers []answer
}

// answer is the answer to a message, or an error of the session.
type answer struct {
	index int       // of the message
	msg   *nats.Msg // nil if there is an error

	// err concerns the messages to a subject; all messages if that is empty.
	err     error
	subject string
}

// put adds an answer and wakes the request.
func (b *inbox) put(a answer) {
	b.mu.Lock()
	b.answers = append(b.answers, a)
	b.mu.Unlock()
	select {
	case b.arrived <- struct{}{}:
	default:
	}
}

// take returns the answers that have come.
func (b *inbox) take() []answer {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.answers
	b.answers = nil
	return all
}

// result returns the acknowledgement of a stream, or the error that it answered.
func (a *answer) result() (ack jetstream.PubAck, err error) {
	if a.err != nil {
		return ack, a.err
	}
	if ack, ok := plainAck(a.msg.Data); ok {
		return ack, nil
	}
	if len(a.msg.Data) == 0 && a.msg.Header.Get("Status") == statusNoResponders {
		return ack, nats.ErrNoResponders
	}
	var said struct {
		jetstream.PubAck
		Error *jetstream.APIError `json:"error"`
	}
	switch err := json.Unmarshal(a.msg.Data, &said); {
	case err == nil && said.Error != nil:
		return ack, said.Error
	case err != nil, said.Stream == "":
		return ack, jetstream.ErrInvalidJSAck
	}
	return said.PubAck, nil
}

// plainAck reads the usual acknowledgement as servers write it, {"stream":"S","seq":1}, without the cost
// of JSON. Older servers write a blank behind the comma. Any other text is not ok.
func plainAck(data []byte) (ack jetstream.PubAck, ok bool) {
	text, begins := bytes.CutPrefix(data, []byte(`{"stream":"`))
	name, text, separated := bytes.Cut(text, []byte(`",`))
	number, named := bytes.CutPrefix(bytes.TrimPrefix(text, []byte(" ")), []byte(`"seq":`))
	number, ends := bytes.CutSuffix(number, []byte("}"))
	if !begins || !separated || !named || !ends || len(name) == 0 || bytes.ContainsAny(name, `"\`) {
		return ack, false
	}
	for _, digit := range number {
		if digit < '0' || digit > '9' {
			return ack, false
		}
		ack.Sequence = ack.Sequence*10 + uint64(digit-'0')
	}
	ack.Stream = string(name)
	return ack, len(number) > 0 && len(number) < len("18446744073709551615") // surely no overflow
}

// statusNoResponders is the status that a server answers if nobody has the subject.
const statusNoResponders = "503"

// openInbox returns the inbox of a request, who calls closeInbox.
func (s *session) openInbox() *inbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastRequest++
	b := &inbox{number: strconv.FormatUint(s.lastRequest, 36), arrived: make(chan struct{}, 1)}
	s.inboxes[b.number] = b
	return b
}

func (s *session) closeInbox(b *inbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.inboxes, b.number)
}

// replyTo returns the subject of the answer to a message.
func (s *session) replyTo(b *inbox, index int) string {
	return s.inboxPrefix + b.number + "-" + strconv.Itoa(index)
}

// onAnswer passes an answer to its request. One that comes after the end of the request is dropped.
func (s *session) onAnswer(m *nats.Msg) {
	number, index, _ := strings.Cut(strings.TrimPrefix(m.Subject, s.inboxPrefix), "-")
	s.mu.Lock()
	b := s.inboxes[number]
	s.mu.Unlock()
	if i, err := strconv.Atoi(index); b != nil && err == nil && i >= 0 {
		b.put(answer{index: i, msg: m})
	}
}

// failAll fails the messages to a subject, "" for all, in the requests that wait for answers.
func (s *session) failAll(subject string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.inboxes {
		b.put(answer{err: err, subject: subject})
	}
}
