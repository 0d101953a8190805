package leader

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/backoff"
)

var errGone = errors.New("the session is gone")

// server is the lock in a fake database. It is free after a release, after the end of the
// holder's session, or after MinLockLease without a ping.
type server struct {
	mu          sync.Mutex
	held        *hold
	unreachable map[string]bool // relays without network: they get no answer
	slow        time.Duration   // response time
	opening     time.Duration   // time to open a connection
	down        bool            // every call fails
	tries       int
	requests    int64
}

// hold is one acquisition of the lock.
type hold struct {
	*server
	name     string
	ended    chan struct{} // closed at the end of the session, which the relay notices
	pingedAt time.Time     // time of the holder's latest ping
	released bool
	// requests is the request count at the latest ping.
	requests int64
}

// relay is a store.Locker of the server for one relay.
type relay struct {
	*server
	name string
}

// respond waits for the response time.
func (s *server) respond(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}

	s.mu.Lock()
	slow, unreachable, down := s.slow, s.unreachable[name], s.down
	s.mu.Unlock()
	if down {
		return errGone
	}

	if unreachable {
		<-ctx.Done()
		return ctx.Err()
	}
	return backoff.Sleep(ctx, slow)
}

// holder returns the valid acquisition, nil if the lock is free. The caller holds s.mu.
func (s *server) holder() *hold {
	if h := s.held; h != nil && !h.released && time.Since(h.pingedAt) < store.MinLockLease {
		return h
	}
	return nil
}

func (r relay) Lock(ctx context.Context) (store.Lock, error) {
	if err := r.respond(ctx, r.name); err != nil {
		return nil, err
	}

	r.mu.Lock()
	opening := r.opening
	r.mu.Unlock()
	if err := backoff.Sleep(ctx, opening); err != nil {
		return nil, err
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	r.tries++
	if h := r.holder(); h != nil {
		return nil, &store.LockedError{Holder: h.name}
	}

	r.held = &hold{server: r.server, name: r.name, ended: make(chan struct{}), pingedAt: time.Now()}
	return r.held, nil
}

func (h *hold) Ping(ctx context.Context) error {
	if err := h.respond(ctx, h.name); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.holder() != h {
		return errGone
	}
	h.pingedAt, h.requests = time.Now(), h.server.requests
	return nil
}

func (h *hold) RequestCount() int64 { return h.requests }

func (h *hold) Watch(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-h.ended:
		return errGone
	}
}

func (h *hold) Release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.released = true
}

// end ends the holder's session, as an administrator would.
func (s *server) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.held; h != nil && !h.released {
		h.released = true
		close(h.ended)
	}
}

func (s *server) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}
