package sessions

import (
	"context"
	"sync"
	"time"
)

const (
	// openTimeout bounds the opening of a second session, its first answer included.
	openTimeout = 5 * time.Second
	// reopenAfter is how long a second session that cannot be opened is not tried again: the server may have
	// none to spare.
	reopenAfter = time.Minute
	// trustedPause is how long after its last call the second session is used without a test.
	trustedPause = time.Second
)

// Pair chooses between two sessions that serve the same calls. The second one is used while a call has the
// first, once it is open: it is opened, and tested after a pause, in the background, so that no call waits
// for it. It is safe for concurrent use.
type Pair struct {
	life *Lifetime
	test func(context.Context) error // opens the second session, and returns after an answer

	mu      sync.Mutex
	taken   [2]bool
	testing bool
	good    time.Time // when the second one last answered; zero: it is not open
	without time.Time // until when it is not tried
}

// NewPair returns a pair that ends with a lifetime.
func NewPair(life *Lifetime, test func(context.Context) error) *Pair {
	return &Pair{life: life, test: test}
}

// Take returns which session serves a call, 0 or 1. The caller passes the result of the call to done.
func (p *Pair) Take() (number int, done func(error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !p.taken[0]:
		p.taken[0] = true
		return 0, func(error) { p.free(0) }
	case p.taken[1]:
	case time.Since(p.good) < trustedPause:
		p.taken[1] = true
		return 1, p.second
	case !p.testing && !time.Now().Before(p.without) && p.life.Begin():
		p.testing = true
		go p.open()
	}
	return 0, func(error) {} // it waits for the first
}

func (p *Pair) free(number int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken[number] = false
}

// second ends a call on the second session.
func (p *Pair) second(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken[1], p.good = false, time.Now()
	if err != nil {
		p.good = time.Time{} // its link may be closed
	}
}

// open tests the second session. Lifetime.Wait waits for it.
func (p *Pair) open() {
	defer p.life.Done()
	bound, unbind := p.life.Bind(context.Background())
	defer unbind()
	ctx, cancel := context.WithTimeout(bound, openTimeout)
	defer cancel()
	err := p.test(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.testing = false; err != nil {
		p.without = time.Now().Add(reopenAfter)
		return
	}
	p.good = time.Now()
}
