package rabbitmq

import (
	"cmp"
	"context"
	"net/url"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/event"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/link"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/redact"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/template"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/tlsfiles"
)

// prefix begins the header of an attribute of a CloudEvent (AMQP binding, section 3.1.3.1).
const prefix = "cloudEvents:"

// Sink delivers to one exchange over one connection. Besides the goroutines of the client it runs
// one that listens, and one for each channel that opens or closes.
type Sink struct {
	limits     sink.Limits
	exchange   string
	routingKey template.Template
	mandatory  bool
	persistent bool
	encoder    *event.Encoder
	idPrefix   string
	timeout    time.Duration
	limitAge   time.Duration

	link     *link.Link[*session]
	where    string // the broker, for details
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
	u, err := url.Parse(string(c.URL))
	if err != nil {
		return nil, err // not reached: it is valid
	}
	address := string(c.URL)
	d := dialer{url: func() string { return address }, client: cmp.Or(c.Client, "sluicebox"), timeout: c.timeout()}
	if u.Scheme == "amqps" {
		if d.tls, err = tlsfiles.Config(c.CAFile, c.CertFile, c.KeyFile); err != nil {
			return nil, err
		}
		if c.CertFile != "" && u.User == nil {
			d.sasl = []amqp.Authentication{&amqp.ExternalAuth{}}
		}
	}
	secrets := c.Secrets()
	if password, ok := u.User.Password(); ok {
		secrets = append(secrets, password)
	}
	secrets = append(secrets, redact.ReferencesSecrets(c.References)...)
	red := redact.New(c.ErrorDetail == sink.ErrorDetailStatus, secrets...)
	return &Sink{
		limits:     c.Limits(""),
		exchange:   c.Exchange,
		routingKey: template.MustParse(c.RoutingKey),
		mandatory:  c.Mandatory,
		persistent: c.Persistent,
		encoder:    event.NewEncoder(c.Settings, event.Binding{Prefix: prefix}),
		idPrefix:   c.IDPrefix,
		timeout:    c.timeout(),
		limitAge:   limitAge,
		link:       link.New(d.connect),
		where:      where(u),
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

// Deliver sends the messages and waits for the confirmations, for at most the request timeout.
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
	r := &request{sink: s, conn: conn, items: make([]sink.Outcome, len(msgs))}
	r.send(ctx, r.prepare(msgs))
	return r.result()
}

// result returns the outcomes.
func (r *request) result() sink.Result {
	res := sink.ResultOf(r.items, sink.SameClass)
	res.Unsent = !r.sent
	return res
}
