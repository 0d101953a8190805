package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/event"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/oauth"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/redact"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/template"
)

// Sink delivers to the topics of a Kafka cluster. It implements sink.Sink and sink.Prober.
type Sink struct {
	cfg        Config // without its secrets, so that printing a Sink does not show them
	topicOf    template.Template
	events     *event.Encoder
	compressor kgo.Compressor // nil for none
	redactor   func() *redact.Redactor

	// options are those of a client. It is a function because they have secrets.
	options func() []kgo.Opt
	tokens  *oauth.Source // nil without a token endpoint

	topics topics
	proofs proofs

	mu     sync.Mutex
	free   []*producer // the last one was used last
	closed bool
}

// New returns a Sink. It connects with the first Deliver or Probe. The configuration must be
// valid. The error is a *sink.FileError if a file is missing or invalid.
func New(c Config) (*Sink, error) {
	c = c.withDefaults()
	s := &Sink{topicOf: template.MustParse(c.Topic)}
	s.events = event.NewEncoder(c.settings(), event.Binding{Prefix: "ce_", ContentType: "content-type"})
	secrets := append(c.Secrets(), string(c.SASL.Password), string(c.SASL.Session), string(c.Token), string(c.OAuth.ClientSecret))
	secrets = append(secrets, redact.ReferencesSecrets(c.References)...)
	red := redact.New(false, secrets...)
	s.redactor = func() *redact.Redactor { return red }
	var err error
	if s.compressor, err = kgo.DefaultCompressor(c.Compression.codec()); err != nil {
		return nil, err
	}
	if c.OAuth.Enabled() {
		if s.tokens, err = oauth.NewSource(c.OAuth, c.CAFile, c.Client); err != nil {
			return nil, err
		}
	}
	if err = s.setOptions(&c); err != nil {
		return nil, err
	}
	c.SASL, c.Token, c.OAuth, c.Headers, c.References = SASL{}, "", OAuth{}, nil, nil
	s.cfg = c
	return s, nil
}

// Limits implements sink.Sink.
func (s *Sink) Limits(kind string) sink.Limits { return s.cfg.Limits(kind) }

var errClosed = errors.New("the sink is closed")

// Deliver implements sink.Sink. It takes at most RequestTimeout.
func (s *Sink) Deliver(ctx context.Context, msgs []sink.Message) sink.Result {
	if len(msgs) == 0 {
		return sink.Result{Outcome: sink.Outcome{Class: sink.Delivered}}
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.RequestTimeout)
	defer cancel()
	r := newRequest(s, msgs)
	if err := ctx.Err(); err != nil {
		return sink.Result{Outcome: s.outcomeOf("deliver", err)}
	}
	p, err := s.take()
	if err != nil {
		return sink.Result{Outcome: s.outcomeOf("connect", err)}
	}
	defer s.release(ctx, p)
	res := r.deliver(ctx, p)
	res.Notice, p.notice = p.notice, ""
	return res
}

// take returns a producer that no other request uses.
func (s *Sink) take() (*producer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	if n := len(s.free); n > 0 {
		p := s.free[n-1]
		s.free = s.free[:n-1]
		return p, nil
	}
	return newProducer(s)
}

// release returns a producer to the free ones. If the context has ended, an attempt may still
// be under way: the client is closed, so that nothing of it is sent any more, and no later
// request waits behind it.
func (s *Sink) release(ctx context.Context, p *producer) {
	s.mu.Lock()
	keep := !s.closed && ctx.Err() == nil
	if keep {
		s.free = append(s.free, p)
	}
	s.mu.Unlock()
	if !keep {
		p.close()
	}
}

// Close closes the connections. Call it only when no Deliver is running.
func (s *Sink) Close() {
	s.mu.Lock()
	s.closed = true
	free := s.free
	s.free = nil
	s.mu.Unlock()
	for _, p := range free {
		p.close()
	}
	if s.tokens != nil {
		s.tokens.Close()
	}
}

// maxMessage returns the most bytes of a batch for a topic.
func (s *Sink) maxMessage(t *topic) int { return cmp.Or(s.cfg.MaxRequestBytes, t.maxMessage) }

// knowsMaximum reports whether a larger batch can never be stored.
func (s *Sink) knowsMaximum(t *topic) bool { return s.cfg.MaxRequestBytes > 0 || t.hasMaximum }

// topicName returns the topic of a row. reason is set if it has none.
func (s *Sink) topicName(m *sink.Message) (name, reason string) { return topicName(&s.topicOf, m) }

func topicName(t *template.Template, m *sink.Message) (name, reason string) {
	name, missing := t.Text(m, event.AsIs)
	if missing != "" {
		return "", fmt.Sprintf("topic: the row has no value for {%s}", missing)
	}
	if wrong := checkTopicName(name); wrong != "" {
		return "", fmt.Sprintf("topic %q %s", name, wrong)
	}
	return name, ""
}

// encode returns the record of a row. reason is set if it can never be sent.
func (s *Sink) encode(m *sink.Message) (rec record, reason string) {
	if rec.topic, reason = s.topicName(m); reason != "" {
		return rec, reason
	}
	msg, reason := s.events.Encode(m)
	if reason != "" {
		return rec, reason
	}
	if len(m.Payload) > 0 {
		rec.value = msg.Body
	}
	for _, h := range msg.Headers {
		rec.headers = append(rec.headers, kmsg.Header{Key: h.Name, Value: []byte(h.Value)})
	}
	if s.cfg.Format == FormatDebezium {
		return rec, s.cfg.Debezium.encode(&rec, m, event.ID(s.cfg.IDPrefix, m.ID))
	}
	rec.setKey(s.cfg.Key, m)
	return rec, ""
}

// setKey sets the key and what decides the partition.
func (r *record) setKey(key Key, m *sink.Message) {
	switch {
	case key == KeyID:
		r.key = []byte(m.ID)
		r.place = r.key
	case key == KeyGroup && m.Group.Valid:
		r.key = []byte(m.Group.Name)
		r.place = r.key
	case key == KeyGroup:
		r.place = []byte{} // one partition for all rows without a group, which may be ordered
	}
}

// Names of the values of a receipt.
const (
	receiptTopic     = "topic"
	receiptPartition = "partition"
	receiptOffset    = "offset"
)

// delivered returns the outcome of a stored row.
func (s *Sink) delivered(t *topic, partition int32, offset int64) sink.Outcome {
	out := sink.Outcome{Class: sink.Delivered}
	if s.cfg.Receipts {
		out.Receipt = []sink.Receipt{
			{Name: receiptTopic, Value: t.name},
			{Name: receiptPartition, Value: strconv.Itoa(int(partition))},
			{Name: receiptOffset, Value: strconv.FormatInt(offset, 10)},
		}
	}
	return out
}
