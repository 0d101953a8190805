package rabbitmq

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// dialTimeout bounds an attempt to connect, TLS and login included.
	dialTimeout = 5 * time.Second

	// writeTimeout bounds a write to a broker that reads nothing. Meanwhile every sender waits.
	writeTimeout = 10 * time.Second

	// heartbeat is the interval of heartbeats. A connection without any for 15 s is lost.
	heartbeat = 10 * time.Second

	// limitAge is how long the limit of a broker is believed for a row that it ends.
	limitAge = 10 * time.Second

	// closeTimeout bounds the farewell to the broker.
	closeTimeout = 2 * time.Second
)

// wire is the transport of a connection. It bounds writes, which the client does not.
type wire struct {
	net.Conn
	timeout  time.Duration
	received atomic.Int64 // bytes
	late     atomic.Bool  // a read has timed out
}

func (w *wire) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	w.received.Add(int64(n))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		w.late.Store(true)
	}
	return n, err
}

func (w *wire) Write(p []byte) (int, error) {
	if err := w.SetWriteDeadline(time.Now().Add(w.timeout)); err != nil {
		return 0, err
	}
	return w.Conn.Write(p)
}

// dialer makes sessions.
type dialer struct {
	url     func() string // a function, so that printing a Sink does not show it
	tls     *tls.Config
	sasl    []amqp.Authentication // nil: the user of the URL
	client  string
	timeout time.Duration
}

// silentClose is less than the 3 s after which RabbitMQ closes a connection with a wrong password
// (rabbit_reader.erl, SILENT_CLOSE_DELAY).
const silentClose = 2500 * time.Millisecond

// connect makes a session. RabbitMQ reports a wrong password by closing the connection, as a broker
// that ends does, only later. So an early end is asked again.
func (d *dialer) connect() (*session, error) {
	began := time.Now()
	s, err := d.dial()
	if errors.Is(err, amqp.ErrCredentials) && time.Since(began) < silentClose {
		return d.dial()
	}
	return s, err
}

func (d *dialer) dial() (*session, error) {
	var w *wire
	timeout := min(dialTimeout, d.timeout)
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName(d.client)
	config := amqp.Config{
		SASL: d.sasl, Heartbeat: heartbeat, Properties: properties,
		Dial: func(network, addr string) (net.Conn, error) {
			conn, err := amqp.DefaultDial(timeout)(network, addr)
			if err != nil {
				return nil, err
			}
			w = &wire{Conn: conn, timeout: min(writeTimeout, d.timeout)}
			return w, nil
		},
	}
	if d.tls != nil {
		config.TLSClientConfig = d.tls.Clone()
	}
	conn, err := amqp.DialConfig(d.url(), config)
	if err != nil {
		if w != nil {
			_ = w.Close()
			if w.late.Load() {
				err = os.ErrDeadlineExceeded // else the client takes it for a refused login
			}
		}
		return nil, err
	}
	s := &session{conn: conn, wire: w}
	blocked := conn.NotifyBlocked(make(chan amqp.Blocking, 1))
	s.spawn(func() {
		for b := range blocked {
			s.setBlocked(b)
		}
	})
	return s, nil
}

// usualSize is a size in bytes that every broker takes in practice: max_message_size is 16 MiB or
// more by default.
const usualSize = 128 << 10

// session is one connection with its channels.
type session struct {
	conn *amqp.Connection
	wire *wire
	work sync.WaitGroup // goroutines, which end with the connection at the latest

	mu      sync.Mutex
	ended   bool // no goroutine may start
	idle    []*channel
	blocked string // why the broker reads no messages; "" if it does
	limit   int    // bytes of a message, as the broker said when it refused one; 0: not known
	limitAt time.Time
	proven  int // bytes of the largest message that it took
}

// Usable implements link.Session.
func (s *session) Usable() bool { return !s.conn.IsClosed() }

// Close implements link.Session. Nothing is drained, because Deliver awaits every answer.
func (s *session) Close() {
	_ = s.conn.CloseDeadline(time.Now().Add(closeTimeout)) // it is closed in any case
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.work.Wait()
}

// spawn starts a goroutine, unless the session has ended.
func (s *session) spawn(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.work.Go(f)
	}
	return !s.ended
}

func (s *session) setBlocked(b amqp.Blocking) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blocked = ""
	if b.Active {
		s.blocked = "broker blocks publishers"
		if b.Reason != "" {
			s.blocked += ": " + b.Reason
		}
	}
}

// blockedBy returns why the broker reads no messages, "" if it does.
func (s *session) blockedBy() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.blocked
}

// sizes returns the largest message that the broker takes, 0 if it has not said so for the given time, and
// the largest that it took.
func (s *session) sizes(age time.Duration) (limit, proven int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	limit = s.limit
	if time.Since(s.limitAt) >= age {
		limit = 0 // it may have been raised
	}
	return limit, max(s.proven, usualSize)
}

func (s *session) refused(limit int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit, s.limitAt = limit, time.Now()
}

func (s *session) took(size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proven = max(s.proven, size)
}

// channel is a channel of which one request at a time uses the confirmations.
type channel struct {
	*amqp.Channel
	used    bool // the limit of the broker may be another one than when the channel was opened
	closed  chan *amqp.Error
	returns chan amqp.Return
}

// channel returns a channel, which the caller gives to put or discard.
func (s *session) channel(ctx context.Context) (*channel, error) {
	s.mu.Lock()
	for len(s.idle) > 0 {
		last := len(s.idle) - 1
		ch := s.idle[last]
		s.idle = s.idle[:last]
		if !ch.IsClosed() {
			s.mu.Unlock()
			return ch, nil
		}
	}
	s.mu.Unlock()
	return s.opened(ctx)
}

// fresh returns a new channel, in place of one that is idle.
func (s *session) fresh(ctx context.Context) (*channel, error) {
	s.mu.Lock()
	var old *channel
	if last := len(s.idle) - 1; last >= 0 {
		old, s.idle = s.idle[last], s.idle[:last]
	}
	s.mu.Unlock()
	if old != nil {
		s.discard(old)
	}
	return s.opened(ctx)
}

// opened returns a channel once the broker has opened it.
func (s *session) opened(ctx context.Context) (*channel, error) {
	type opening struct {
		ch  *channel
		err error
	}
	opened := make(chan opening)
	if !s.spawn(func() {
		ch, err := s.open()
		select {
		case opened <- opening{ch, err}:
		case <-ctx.Done():
			if err == nil {
				s.put(ch)
			}
		}
	}) {
		return nil, amqp.ErrClosed
	}
	select {
	case o := <-opened:
		return o.ch, o.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// open opens a channel with confirmations. It waits for the broker.
func (s *session) open() (*channel, error) {
	ch, err := s.conn.Channel()
	if err != nil {
		return nil, err
	}
	if err := ch.Confirm(false); err != nil {
		_ = ch.Close()
		return nil, err
	}
	// The client waits until a returned message is taken, and takes no other answer meanwhile.
	return &channel{
		Channel: ch, closed: ch.NotifyClose(make(chan *amqp.Error, 1)), returns: ch.NotifyReturn(make(chan amqp.Return, maxLanes)),
	}, nil
}

// put gives back a channel without unanswered messages.
func (s *session) put(ch *channel) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ch.used = true
	s.idle = append(s.idle, ch)
}

// discard closes a channel with unanswered messages, without waiting for the broker.
func (s *session) discard(ch *channel) {
	s.spawn(func() { _ = ch.Close() }) // else the connection is closed
}

// abortIfSilent ends the connection if a request has timed out and nothing has arrived since the
// broker had sent that many bytes.
func (s *session) abortIfSilent(received int64, err error) {
	if errors.Is(err, context.DeadlineExceeded) && s.wire.received.Load() == received {
		_ = s.wire.Close()
	}
}
