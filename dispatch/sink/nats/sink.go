package nats

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/event"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/link"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/redact"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/template"
)

// maxOpenBatches is how many batches the sink has open at once. A stream refuses the 51st by
// default (ADR-50), and other clients may have some.
const maxOpenBatches = 32

// Sink delivers to the streams of one NATS system. Besides the goroutines of the client it runs
// one while it connects.
type Sink struct {
	limits     sink.Limits
	subject    template.Template
	stream     template.Template
	encoder    *event.Encoder
	idPrefix   string
	timeout    time.Duration
	receipts   bool
	maxBackoff time.Duration
	limitAge   time.Duration
	atomic     bool // BatchAtomic

	link     *link.Link[*session]
	batches  chan struct{} // a token for each open batch
	answered atomic.Bool   // a stream has acknowledged a message
	where    string        // the servers, for details
	redactor func() *redact.Redactor
}

var (
	_ sink.Sink   = (*Sink)(nil)
	_ sink.Prober = (*Sink)(nil)
)

// New returns a Sink, which connects when it is used. It fails if the configuration is invalid. The
// error is a *sink.FileError if one of its files is missing or invalid.
func New(c Config) (*Sink, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	all, err := options(&c)
	if err != nil {
		return nil, err
	}
	servers, hosts := c.servers(), []string{}
	for _, server := range servers {
		u, err := url.Parse(server)
		if err != nil {
			return nil, err // not reached: the address is valid
		}
		hosts = append(hosts, u.Host)
	}
	secrets := append(c.Secrets(), string(c.Password), string(c.Token))
	secrets = append(secrets, redact.ReferencesSecrets(c.References)...)
	red := redact.New(c.ErrorDetail == sink.ErrorDetailStatus, secrets...)
	return &Sink{
		limits:     c.Limits(""),
		subject:    template.MustParse(c.Subject),
		stream:     template.MustParse(c.Stream),
		encoder:    event.NewEncoder(c.Settings, event.Binding{Prefix: "ce-", ContentType: "Content-Type"}),
		idPrefix:   c.IDPrefix,
		timeout:    c.timeout(),
		receipts:   c.Receipts,
		maxBackoff: c.MaxBackoff,
		limitAge:   limitAge,
		atomic:     c.Batch == BatchAtomic,
		link:       link.New(connector(servers, all)),
		batches:    make(chan struct{}, maxOpenBatches),
		where:      strings.Join(hosts, ","),
		redactor:   func() *redact.Redactor { return red },
	}, nil
}

// Clean returns an error of a client of this configuration, which must be valid, without secrets in its
// text: a server may quote the login that it refuses. It returns nil for nil.
func Clean(c Config, err error) error {
	s, invalid := New(c)
	if invalid != nil {
		return invalid
	}
	return s.redactor().Error(err)
}

// Close closes the connection. Call it only when no Deliver is running.
func (s *Sink) Close() { s.link.Close() }

// Limits implements sink.Sink, the same for every kind.
func (s *Sink) Limits(string) sink.Limits { return s.limits }

// Deliver sends the messages of each lane and waits for the answers, for at most the request
// timeout. A lane stops at its first message that is not stored.
func (s *Sink) Deliver(ctx context.Context, msgs []sink.Message) sink.Result {
	if len(msgs) == 0 {
		return sink.Result{Outcome: sink.Outcome{Class: sink.Delivered}}
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	conn, err := s.link.Get(ctx)
	if err != nil {
		return sink.Result{Outcome: s.noConnection(err)}
	}

	r := &request{
		sink: s, conn: conn, ctx: ctx, msgs: msgs, maxPayload: conn.nc.MaxPayload(), inbox: conn.openInbox(),
		items: make([]sink.Outcome, len(msgs)), flights: make([]flight, len(msgs)),
	}
	defer conn.closeInbox(r.inbox)
	return r.deliver()
}

// rejected returns the outcome of a message that can never be sent.
func (s *Sink) rejected(format string, args ...any) sink.Outcome {
	return sink.RejectFirst(1, redact.OneLine("not sent: "+fmt.Sprintf(format, args...))).Outcome
}
