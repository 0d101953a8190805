package oauth

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/httpsink"
)

const (
	// fetchTimeout bounds a fetch from the dial to the last byte.
	fetchTimeout = 10 * time.Second
	// A token is fetched again when a part of its lifetime is left, maxRenewMargin at
	// most.
	renewFraction  = 5
	maxRenewMargin = time.Minute
	// minAge is how old a token must be for a 401 to have it fetched again.
	minAge = 5 * time.Second
	// failurePause stands between a failed fetch and the next. An endpoint may
	// ask for more, up to maxPause.
	failurePause = 2 * time.Second
	maxPause     = time.Minute
)

var (
	errSlow   = fmt.Errorf("no answer within %s", fetchTimeout)
	errClosed = errors.New("the sink is closed")
)

// Source hands out the current token. It runs nothing but a fetch at a time. All
// methods are safe for concurrent use.
type Source struct {
	// fetch and shut are functions, so that no printing of a Source shows the
	// secret.
	fetch       func(context.Context) (*grant, *Error)
	closeClient func()

	fetches sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	current *grant    // nil before the first; may have expired
	flight  *flight   // nil while none is in the air
	failure *Error    // of the last fetch; nil if it brought a token
	retryAt time.Time // no fetch before, if there is a failure
}

// grant is a token as the endpoint gave it.
type grant struct {
	token   string
	fetched time.Time // the answer was there
	renewAt time.Time
	expires time.Time
}

// flight is one fetch. The results are set before done is closed.
type flight struct {
	cancel context.CancelCauseFunc
	done   chan struct{}
	got    *grant
	err    *Error
}

// NewSource returns a source that has fetched nothing yet. The configuration
// must be valid and have a TokenURL. The error says what is wrong with the CA
// file, which may be empty for the system's authorities, or with the proxy in
// the environment.
func NewSource(cfg Config, caFile, userAgent string) (*Source, error) {
	address, err := parseURL(cfg.TokenURL)
	if err != nil {
		return nil, err
	}
	client, err := httpsink.NewClient(httpsink.Options{
		// The context of a fetch ends first, and its text names no key.
		RequestTimeout: fetchTimeout + time.Second,
		MaxConnections: 1,
		CAFile:         caFile,
	}, address)
	if err != nil {
		return nil, err
	}
	return &Source{fetch: newEndpoint(cfg, userAgent, client).fetch, closeClient: client.Close}, nil
}

// Token returns the current token. It waits for a fetch only where there is no
// valid one. The error is an *Error, or the context's if that ended first.
func (s *Source) Token(ctx context.Context) (string, error) {
	s.mu.Lock()
	now := time.Now()
	if s.valid(now) {
		defer s.mu.Unlock()
		if !now.Before(s.current.renewAt) && !s.paused(now) {
			s.start()
		}
		return s.current.token, nil
	}
	return s.await(ctx, now)
}

// Renew returns the token to use in place of one that was answered with a 401.
// It is the refused token itself where no other is to be had: the endpoint gave
// it just now, or gave it again. Sending it once more is no use then. The error
// is an *Error, or the context's if that ended first.
func (s *Source) Renew(ctx context.Context, refused string) (string, error) {
	s.mu.Lock()
	now := time.Now()
	if s.valid(now) {
		known := s.current.token != refused // somebody was first
		if known || s.flight == nil && now.Sub(s.current.fetched) < minAge {
			defer s.mu.Unlock()
			return s.current.token, nil
		}
	}
	return s.await(ctx, now)
}

// Close breaks off a fetch in flight, waits for its end, and closes the idle
// connection. Where a fetch is needed later there is an error in its place.
func (s *Source) Close() {
	s.mu.Lock()
	s.closed = true
	if s.flight != nil {
		s.flight.cancel(errClosed)
	}
	s.mu.Unlock()
	s.fetches.Wait()
	s.closeClient()
}

func (s *Source) valid(now time.Time) bool {
	return s.current != nil && now.Before(s.current.expires)
}

// paused reports whether a failed fetch is too fresh for the next.
func (s *Source) paused(now time.Time) bool {
	return s.failure != nil && now.Before(s.retryAt)
}

// await waits for the fetch in flight, which it starts if there is none. What
// that brings is used even if it has expired on the way: nothing newer can be
// had. The lock is held at the call and not at the return.
func (s *Source) await(ctx context.Context, now time.Time) (string, error) {
	switch {
	case ctx.Err() != nil: // no fetch for a sender that has gone
		s.mu.Unlock()
		return "", context.Cause(ctx)
	case s.flight == nil && s.paused(now):
		defer s.mu.Unlock()
		return "", s.failure.withRemaining(now)
	}
	f := s.start()
	s.mu.Unlock()
	if f == nil {
		return "", newError(sink.Unavailable, errClosed.Error())
	}
	select {
	case <-f.done:
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	if f.err != nil {
		return "", f.err
	}
	return f.got.token, nil
}

// start returns the fetch in flight, a new one if there is none, nil after
// Close. The lock is held.
func (s *Source) start() *flight {
	if s.flight != nil || s.closed {
		return s.flight
	}
	// The fetch is for all senders: the end of one's request does not end it.
	ctx, cancel := context.WithCancelCause(context.Background())
	f := &flight{cancel: cancel, done: make(chan struct{})}
	s.flight = f
	s.fetches.Go(func() {
		defer cancel(nil)
		ctx, stop := context.WithTimeoutCause(ctx, fetchTimeout, errSlow)
		defer stop()
		got, err := s.fetch(ctx)
		s.finishFetch(f, got, err)
	})
	return f
}

// finishFetch keeps what a fetch brought. A failed one leaves the old token.
func (s *Source) finishFetch(f *flight, got *grant, err *Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flight, s.failure = nil, err
	if err == nil {
		s.current = got
	} else {
		s.retryAt = time.Now().Add(min(max(failurePause, err.RetryAfter), maxPause))
	}
	f.got, f.err = got, err
	close(f.done)
}

// Error says why there is no token.
type Error struct {
	// Class is [sink.Unavailable] where waiting helps, and [sink.Misconfigured]
	// where the address, the credentials or the rights must be mended.
	Class sink.Class
	// RetryAfter is how long the endpoint asks to be left alone; zero if it does
	// not say.
	RetryAfter time.Duration

	text string
	at   time.Time // when RetryAfter began

	unknownClient bool   // the endpoint does not know the client
	code          string // of the endpoint's error, if it has one
}

// Error returns one line without secrets.
func (e *Error) Error() string { return e.text }

// withRemaining is the error with what is left of its RetryAfter.
func (e *Error) withRemaining(now time.Time) *Error {
	later := *e
	if e.RetryAfter > 0 {
		later.RetryAfter = max(e.RetryAfter-now.Sub(e.at), 0)
	}
	return &later
}
