package leader

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

var errGone = errors.New("the session is gone")

// server is the lock in a fake database. It is free after a release, after the end of the
// holder's session, or after MinLockLease without a ping.
type server struct {
	mu      sync.Mutex
	held    *hold
	cut     map[string]bool // relays without network: they get no answer
	slow    time.Duration   // response time
	opening time.Duration   // time to open a connection
	down    bool            // every call fails
	tries   int
	wishes  int64
}

// hold is one acquisition of the lock.
type hold struct {
	*server
	who   string
	ended chan struct{} // closed at the end of the session, which the relay notices
	heard time.Time     // time of the holder's latest ping
	freed bool
	// wishes is the request count at the latest ping.
	wishes int64
}

// relay is a store.Locker of the server for one relay.
type relay struct {
	*server
	who string
}

// answers waits for the response time.
func (s *server) answers(ctx context.Context, who string) error {
	if err := ctx.Err(); err != nil {
		return err
	}

	s.mu.Lock()
	slow, cut, down := s.slow, s.cut[who], s.down
	s.mu.Unlock()
	if down {
		return errGone
	}

	var answer <-chan time.Time
	if !cut {
		answer = time.After(slow)
	}

	select {
	case <-answer:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// taken returns the valid acquisition, nil if the lock is free. The caller holds s.mu.
func (s *server) taken() *hold {
	if h := s.held; h != nil && !h.freed && time.Since(h.heard) < store.MinLockLease {
		return h
	}
	return nil
}

func (r relay) Lock(ctx context.Context) (store.Lock, error) {
	if err := r.answers(ctx, r.who); err != nil {
		return nil, err
	}

	r.mu.Lock()
	opening := r.opening
	r.mu.Unlock()
	select {
	case <-time.After(opening):
	case <-ctx.Done():
		return nil, ctx.Err()
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	r.tries++
	if h := r.taken(); h != nil {
		return nil, &store.LockedError{Holder: h.who}
	}

	r.held = &hold{server: r.server, who: r.who, ended: make(chan struct{}), heard: time.Now()}
	return r.held, nil
}

func (h *hold) Ping(ctx context.Context) error {
	if err := h.answers(ctx, h.who); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.taken() != h {
		return errGone
	}
	h.heard, h.wishes = time.Now(), h.server.wishes
	return nil
}

func (h *hold) RequestCount() int64 { return h.wishes }

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
	h.freed = true
}

// end ends the holder's session, as an administrator would.
func (s *server) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.held; h != nil && !h.freed {
		h.freed = true
		close(h.ended)
	}
}

func (s *server) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}
