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

	// A token is renewed when 1/renewFraction of its lifetime is left, at most
	// maxRenewMargin before it expires.
	renewFraction  = 5
	maxRenewMargin = time.Minute

	// minAge is the minimum age of a token for a 401 to renew it.
	minAge = 5 * time.Second

	// failurePause is the pause after a failed fetch. An endpoint may ask for a
	// longer one, up to maxPause.
	failurePause = 2 * time.Second
	maxPause     = time.Minute
)

var (
	errSlow   = fmt.Errorf("no response within %s", fetchTimeout)
	errClosed = errors.New("sink is closed")
)

// Source provides the current token. It runs at most one fetch at a time. All methods
// are safe for concurrent use.
type Source struct {
	// fetch and closeClient are functions, so that printing a Source does not show
	// the secret.
	fetch       func(context.Context) (*grant, *Error)
	closeClient func()

	fetches sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	current *grant    // nil before the first; may have expired
	flight  *flight   // nil if there is no fetch in flight
	failure *Error    // of the last fetch; nil if it brought a token
	retryAt time.Time // earliest next fetch after a failure
}

// grant is a token and its times.
type grant struct {
	token   string
	fetched time.Time // when the response arrived
	renewAt time.Time
	expires time.Time
}

// flight is a fetch. Its results are set before done is closed.
type flight struct {
	cancel context.CancelCauseFunc
	done   chan struct{}
	got    *grant
	err    *Error
}

// NewSource returns a Source. It does not connect. The configuration must be valid
// and have a TokenURL; an empty caFile stands for the system's authorities. NewSource
// fails if the CA file is unusable or the proxy in the environment is invalid.
func NewSource(cfg Config, caFile, userAgent string) (*Source, error) {
	address, err := parseURL(cfg.TokenURL)
	if err != nil {
		return nil, err
	}

	client, err := httpsink.NewClient(&httpsink.Settings{
		// The context of a fetch ends first, and its error names no configuration
		// key.
		RequestTimeout: fetchTimeout + time.Second,
		MaxConnections: 1,
		CAFile:         caFile,
	}, address)
	if err != nil {
		return nil, err
	}
	return &Source{fetch: newEndpoint(cfg, address, userAgent, client).fetch, closeClient: client.Close}, nil
}

// Token returns the current token. It waits for a fetch only if there is no valid
// token. The error is an *Error, or the context's if that ended first.
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

// Renew returns the token to use after a 401. It is the refused token if the endpoint
// issued that less than 5 s ago or issued it again. Sending it a second time is then
// useless. The error is an *Error, or the context's if that ended first.
func (s *Source) Renew(ctx context.Context, refused string) (string, error) {
	s.mu.Lock()
	now := time.Now()
	if s.valid(now) {
		known := s.current.token != refused // another sender renewed it
		if known || s.flight == nil && now.Sub(s.current.fetched) < minAge {
			defer s.mu.Unlock()
			return s.current.token, nil
		}
	}
	return s.await(ctx, now)
}

// Close cancels a fetch in flight, waits for it, and closes the idle connection. A
// later fetch fails.
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

// paused reports whether the pause after a failed fetch is still running.
func (s *Source) paused(now time.Time) bool {
	return s.failure != nil && now.Before(s.retryAt)
}

// await waits for the fetch in flight, and starts it if there is none. It returns the
// token even if it has expired meanwhile, because no newer one exists. The caller
// holds the lock; await releases it.
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

// start returns the fetch in flight, and starts it if there is none. It returns nil
// after Close. The caller holds the lock.
func (s *Source) start() *flight {
	if s.flight != nil || s.closed {
		return s.flight
	}

	// The fetch is for all senders, so it does not use the context of one request.
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

// finishFetch records the result of a fetch. A failure keeps the old token.
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

// Error is the reason why there is no token.
type Error struct {
	// Class is [sink.Unavailable] if waiting helps, and [sink.Misconfigured] if the
	// operator must fix the address, the credentials or the client's rights.
	Class sink.Class

	// RetryAfter is the pause that the endpoint asks for, 0 for none.
	RetryAfter time.Duration

	text string
	at   time.Time // start of RetryAfter

	unknownClient bool   // the endpoint does not know the client
	code          string // the endpoint's error code, if any
}

// Error returns one line without secrets.
func (e *Error) Error() string { return e.text }

// withRemaining returns the error with the remaining part of its RetryAfter.
func (e *Error) withRemaining(now time.Time) *Error {
	later := *e
	if e.RetryAfter > 0 {
		later.RetryAfter = max(e.RetryAfter-now.Sub(e.at), 0)
	}
	return &later
}
