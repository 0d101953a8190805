package redis

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/event"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/redact"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/template"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/tlsfiles"
	"github.com/sluicebox/sluicebox/store"
)

// dialTimeout bounds a dial.
const dialTimeout = 5 * time.Second

// maxMessage is the largest text that a server accepts by default (proto-max-bulk-len).
const maxMessage = 512 << 20

// Sink delivers to the streams of one server over a pool of connections. It runs one goroutine
// for each request.
type Sink struct {
	cfg     Config // without the secrets
	limits  sink.Limits
	stream  template.Template
	encoder *event.Encoder
	addr    string
	client  *redis.Client
	running sync.WaitGroup // requests, which may outlive their Deliver

	accepted atomic.Int64 // size of the largest message that the server accepted, if above minBulkLimit

	redactor func() *redact.Redactor
}

var (
	_ sink.Sink   = (*Sink)(nil)
	_ sink.Prober = (*Sink)(nil)
)

// New returns a Sink. It does not connect. It fails if the configuration is invalid. The error is a
// *sink.FileError if one of its files is missing or invalid.
func New(cfg Config) (*Sink, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	to, fault := parseServer(string(cfg.URL))
	if fault != "" {
		return nil, &store.FieldError{Key: "url", Text: fault} // not reached: it is valid
	}
	opt := &redis.Options{
		Addr: to.addr, DB: to.database, Username: cfg.User, Password: string(cfg.Password), Protocol: 2,
		OnConnect: setName(strings.Map(nameChar, cmp.Or(cfg.Client, "sluicebox"))), DisableIdentity: true,
		MaxRetries:            -1, // a repeated command may have been executed
		ContextTimeoutEnabled: true,
		DialTimeout:           min(dialTimeout, cfg.timeout()), ReadTimeout: cfg.timeout(), WriteTimeout: cfg.timeout(), PoolTimeout: cfg.timeout(),
		PoolSize: max(cfg.Senders, 10), MaxIdleConns: max(cfg.Senders, 10),
	}
	if to.tls {
		secure, err := tlsfiles.Config(cfg.CAFile, cfg.CertFile, cfg.KeyFile)
		if err != nil {
			return nil, err
		}
		opt.TLSConfig = secure
	}
	secrets := append(cfg.Secrets(), string(cfg.Password))
	secrets = append(secrets, redact.ReferencesSecrets(cfg.References)...)
	red := redact.New(cfg.ErrorDetail == sink.ErrorDetailStatus, secrets...)
	s := &Sink{
		limits: cfg.Limits(""), stream: template.MustParse(cfg.Stream), encoder: event.NewEncoder(cfg.Settings, event.Binding{Prefix: "ce_", ContentType: "content-type"}),
		addr: to.addr, client: redis.NewClient(opt), redactor: func() *redact.Redactor { return red },
	}
	cfg.URL, cfg.Password, cfg.Headers, cfg.References = "", "", nil, nil
	s.cfg = cfg
	return s, nil
}

// setName names a connection for CLIENT LIST. A user may have no permission for that, which does no
// harm. NOAUTH fails here, because a server closes the connection on a long command before a login.
func setName(name string) func(context.Context, *redis.Conn) error {
	return func(ctx context.Context, conn *redis.Conn) error {
		err := conn.ClientSetName(ctx, name).Err()
		if err != nil && (strings.HasPrefix(err.Error(), "NOPERM") || strings.HasPrefix(err.Error(), "ERR ")) {
			return nil
		}
		return err
	}
}

// nameChar replaces the characters that a client's name cannot have.
func nameChar(r rune) rune {
	if r <= ' ' || r > '~' {
		return '-'
	}
	return r
}

// Close closes the connections, and waits for the requests on them. Call it only when no Deliver is
// running.
func (s *Sink) Close() {
	_ = s.client.Close() // nothing is to be sent
	s.running.Wait()
}

// Limits implements sink.Sink, the same for every kind.
func (s *Sink) Limits(string) sink.Limits { return s.limits }

// Deliver sends the messages in one pipeline.
func (s *Sink) Deliver(ctx context.Context, msgs []sink.Message) sink.Result {
	if len(msgs) == 0 {
		return sink.Result{Outcome: sink.Outcome{Class: sink.Delivered}}
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	items := make([]sink.Outcome, len(msgs))
	var runs, large []run
	for first := 0; first < len(msgs); {
		end := first + 1
		for end < len(msgs) && msgs[end].Lane == msgs[first].Lane {
			end++
		}
		switch r := s.prepare(msgs[first:end], items[first:end]); {
		case r.large > 0:
			large = append(large, r)
		case r.n > 0:
			runs = append(runs, r)
		}
		first = end
	}
	if len(runs) > 0 {
		s.send(ctx, runs)
	}
	for i := range large {
		s.send(ctx, large[i:i+1])
	}
	res := sink.ResultOf(items, sink.SameClass)
	res.Unsent = len(runs)+len(large) == 0
	return res
}

// send sends runs in one pipeline and sets their outcomes.
func (s *Sink) send(ctx context.Context, runs []run) {
	pipe := s.client.Pipeline()
	for i := range runs {
		runs[i].cmd = pipe.Do(ctx, runs[i].command...)
	}
	err := s.exec(ctx, pipe)
	if err != nil {
		s.accepted.Store(0) // the limit may be lower now
	}
	for _, r := range runs {
		switch {
		case err == nil:
			s.settle(r)
		case r.large > 0:
			fail(r.items, 0, s.largeFailure(ctx, r.large, err))
		default:
			fail(r.items, 0, s.failure(err))
		}
	}
}

// fail sets the outcome of the message at which a lane stops, and of those behind it.
func fail(items []sink.Outcome, at int, out sink.Outcome) {
	for i := at; i < len(items); i++ {
		items[i] = sink.Outcome{Class: sink.NotSent}
	}
	items[at] = out
}

// bounded returns a context with the bound of a request.
func (s *Sink) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, s.cfg.timeout(), errors.New(s.timeoutText()))
}

// exec sends the commands of a pipeline and waits for their answers. The error is one of the
// connection: each command has its own.
func (s *Sink) exec(ctx context.Context, pipe redis.Pipeliner) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	if ctx.Err() != nil {
		return &cancelledError{context.Cause(ctx)}
	}
	done := make(chan error, 1)
	s.running.Go(func() { // the client does not notice that a context is cancelled
		cmds, err := pipe.Exec(ctx)
		answered := func(cmd redis.Cmder) bool { return cmd.Err() != nil }
		if isAnswer(err) && slices.ContainsFunc(cmds, answered) {
			err = nil // of a command; otherwise the server refused the connection
		}
		done <- err
	})
	select {
	case err := <-done:
		if err != nil && !isAnswer(err) && ctx.Err() != nil {
			err = &cancelledError{context.Cause(ctx)}
		}
		return err
	case <-ctx.Done():
		return &cancelledError{context.Cause(ctx)}
	}
}

// Probe implements sink.Prober. It asks for the role of the server and for the type of the stream,
// and stores nothing.
func (s *Sink) Probe(ctx context.Context, _ string) sink.Outcome {
	pipe := s.client.Pipeline()
	ping := pipe.Ping(ctx)
	if err := s.exec(ctx, pipe); err != nil {
		return s.failure(err)
	}
	if err := ping.Err(); err != nil && !strings.HasPrefix(err.Error(), "NOPERM") {
		return s.failure(err)
	}
	text := "server answers and accepts the credentials"
	if s.stream.Fixed() {
		pipe = s.client.Pipeline()
		kind := pipe.Type(ctx, s.limits.Endpoint)
		if err := s.exec(ctx, pipe); err != nil {
			return s.failure(err)
		}
		switch err := kind.Err(); {
		case err != nil && !strings.HasPrefix(err.Error(), "NOPERM"): // it may still write
			return s.failure(err)
		case err == nil && kind.Val() != "stream" && kind.Val() != "none":
			return s.outcome(sink.Misconfigured, store.ReasonBadRequest, "key %s is a %s; name a stream", s.limits.Endpoint, kind.Val())
		case err == nil && kind.Val() == "stream":
			text += ", stream " + s.limits.Endpoint + " exists"
		}
	}
	return s.outcome(sink.Delivered, store.ReasonNone, "%s; only a delivery proves that it stores rows", text)
}
