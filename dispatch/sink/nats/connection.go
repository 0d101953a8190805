package nats

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/tlsfiles"
)

const (
	// dialTimeout bounds the attempt to connect to one server, TLS and login included.
	dialTimeout = 5 * time.Second

	// reconnectWait is the pause before the same server is tried again.
	reconnectWait = 250 * time.Millisecond

	// pingInterval is how often an idle connection is checked. After the third ping without an
	// answer it is made again.
	pingInterval = 10 * time.Second

	// limitAge is how long the limit of a server is believed for a row that it ends.
	limitAge = 10 * time.Second

	// writeTimeout bounds a write to a server that reads nothing. Meanwhile every sender waits,
	// so it is at most the request timeout.
	writeTimeout = 10 * time.Second
)

// errInbox reports that the user may not subscribe to the subjects of answers.
var errInbox = errors.New("user may not subscribe to answers; allow subscribe to _INBOX.>")

// errDenied reports that the user may not publish to a subject.
var errDenied = errors.New("permissions violation for publish")

// session is one connection, which the client makes again if it is lost.
type session struct {
	nc     *nats.Conn
	js     jetstream.JetStream // for questions about streams
	closed chan struct{}       // closed when the client has ended
	failed chan struct{}       // closed when the user gets no answers

	inboxPrefix string // of the subjects of answers

	// connect makes another connection to a server.
	connect func(server string) (*nats.Conn, error)
	asking  sync.Mutex
	asked   time.Time // when limit was read
	limit   int64     // max_payload

	mu          sync.Mutex
	watched     map[string]*watch // by subject
	inboxes     map[string]*inbox // by number of the request
	lastRequest uint64
}

// watch ends the questions to a subject to which the user may not publish. The server reports that
// beside the answers, so a question would otherwise wait until it times out.
type watch struct {
	senders int
	denied  chan struct{}
}

func newSession() *session {
	return &session{
		closed: make(chan struct{}), failed: make(chan struct{}), inboxPrefix: nats.InboxPrefix + rand.Text() + ".",
		watched: map[string]*watch{}, inboxes: map[string]*inbox{},
	}
}

// Close implements link.Session. Nothing is drained, because Deliver awaits every answer.
func (s *session) Close() {
	s.nc.Close()
	<-s.closed
}

// Usable implements link.Session. A client gives up, for example, if the server refuses its
// credentials.
func (s *session) Usable() bool { return !s.nc.IsClosed() && !s.broken() }

// broken reports whether the session has failed for good.
func (s *session) broken() bool {
	select {
	case <-s.failed:
		return true
	default:
		return false
	}
}

// askLimit returns max_payload of the server, which may be the answer of a moment ago. A server tells its
// limit once a connection, so a new connection asks. If the limit was raised, the session connects again. ok
// is false if the server is away. An answer that cannot be had, for example because the user may have no
// second connection, is the limit of the session.
func (s *session) askLimit(age time.Duration) (limit int64, ok bool) {
	s.asking.Lock()
	defer s.asking.Unlock()
	if !s.asked.IsZero() && time.Since(s.asked) < age {
		return s.limit, true
	}
	known, server := s.nc.MaxPayload(), s.nc.ConnectedUrl()
	if server == "" {
		return 0, false
	}
	limit = known
	other, err := s.connect(server)
	if err == nil {
		// A server tells the limit of an account only behind its answer to the login.
		if err = other.FlushTimeout(other.Opts.Timeout); err == nil {
			limit = other.MaxPayload()
		}
		other.Close()
	}
	if err != nil && !s.nc.IsConnected() {
		return 0, false
	}
	s.asked, s.limit = time.Now(), limit
	if limit > known {
		_ = s.nc.ForceReconnect() // it fails only if the session has ended
	}
	return limit, true
}

// watch returns the watch of a subject for one sender, who calls unwatch.
func (s *session) watch(subject string) *watch {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.watched[subject]
	if w == nil {
		w = &watch{denied: make(chan struct{})}
		s.watched[subject] = w
	}
	w.senders++
	return w
}

func (s *session) unwatch(subject string, w *watch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.senders--; w.senders == 0 && s.watched[subject] == w {
		delete(s.watched, subject)
	}
}

// onError handles the errors that a server reports beside the answers.
func (s *session) onError(_ *nats.Conn, _ *nats.Subscription, err error) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return // the next request fails too, and has the reason
	}
	text := err.Error()
	_, quoted, isPublish := strings.Cut(text, `Publish to "`)
	subject, _, _ := strings.Cut(quoted, `"`)
	if isPublish {
		s.failAll(subject, errDenied)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if isPublish {
		if w := s.watched[subject]; w != nil {
			close(w.denied)
			delete(s.watched, subject)
		}
		return
	}
	if !s.broken() && strings.Contains(text, "Subscription to") {
		close(s.failed)
	}
}

// options returns the settings of the client. An error about a file is a *sink.FileError.
func options(c *Config) ([]nats.Option, error) {
	all := []nats.Option{
		nats.Name(c.Client),
		nats.Timeout(min(dialTimeout, c.timeout())),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(reconnectWait),
		nats.ReconnectJitter(reconnectWait, reconnectWait),
		nats.ReconnectBufSize(-1), // a message that waited here could arrive behind its retry
		nats.PingInterval(pingInterval),
		nats.MaxPingsOutstanding(2),
		nats.FlusherTimeout(min(writeTimeout, c.timeout())),
	}
	for key, file := range map[string]string{"creds-file": c.CredsFile, "nkey-file": c.NKeyFile} {
		if file == "" {
			continue
		}
		if _, err := os.ReadFile(file); err != nil {
			return nil, &sink.FileError{Key: key, Err: err}
		}
	}
	switch {
	case c.CredsFile != "":
		all = append(all, nats.UserCredentials(c.CredsFile))
	case c.NKeyFile != "":
		option, err := nats.NkeyOptionFromSeed(c.NKeyFile)
		if err != nil {
			return nil, &sink.FileError{Key: "nkey-file", Err: fmt.Errorf("%s contains no NKey seed of a user: %w", c.NKeyFile, err)}
		}
		all = append(all, option)
	case c.User != "":
		all = append(all, nats.UserInfo(c.User, string(c.Password)))
	case c.Token != "":
		all = append(all, nats.Token(string(c.Token)))
	}
	if c.CAFile == "" && c.CertFile == "" && !strings.Contains(string(c.URL), "tls://") {
		return all, nil
	}
	config, err := tlsfiles.Config(c.CAFile, c.CertFile, c.KeyFile)
	if err != nil {
		return nil, err
	}
	return append(all, nats.Secure(config)), nil
}

// connector returns the function that connects.
func connector(servers []string, all []nats.Option) func() (*session, error) {
	return func() (*session, error) {
		s := newSession()
		s.connect = func(server string) (*nats.Conn, error) {
			return nats.Connect(server, append(all[:len(all):len(all)], nats.NoReconnect())...)
		}
		own := append(all[:len(all):len(all)], nats.ErrorHandler(s.onError),
			nats.DisconnectErrHandler(func(*nats.Conn, error) { s.failAll("", nats.ErrDisconnected) }),
			nats.ClosedHandler(func(*nats.Conn) { close(s.closed) }))
		var err error
		if s.nc, err = nats.Connect(strings.Join(servers, ","), own...); err != nil {
			return nil, err
		}
		if s.js, err = jetstream.New(s.nc); err == nil {
			_, err = s.nc.Subscribe(s.inboxPrefix+"*", s.onAnswer)
		}
		if err != nil {
			s.Close()
			return nil, err
		}
		return s, nil
	}
}
