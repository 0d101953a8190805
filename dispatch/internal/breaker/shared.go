package breaker

import (
	"sync"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// Shared are the breakers of a destination that several users have, by endpoint. It is safe for
// concurrent use. The zero value has none.
type Shared struct {
	// Changed, if not nil, is called when a breaker opened or closed, or when a probe or ping ended,
	// so that each user calls Follow and looks for a probe that is due. It must return at once.
	Changed func()

	mu     sync.Mutex
	states map[string]*state
}

// Breaker returns the breaker of an endpoint for one more user, who calls Leave at the end. The
// configuration of the latest user holds for all.
func (s *Shared) Breaker(endpoint string, cfg *Config) Breaker {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.states[endpoint]
	if of == nil {
		if s.states == nil {
			s.states = map[string]*state{}
		}
		of = &state{}
		s.states[endpoint] = of
	}
	of.cfg = cfg
	of.users++
	return Breaker{shared: s, endpoint: endpoint, of: of, open: of.open, openings: of.openings}
}

// Open returns how many breakers are open.
func (s *Shared) Open() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range s.states {
		if of.open {
			n++
		}
	}
	return n
}

// Breaker is the circuit breaker of one endpoint, as one user knows it. A user is not safe for
// concurrent use, several of one breaker are. Open and Openings change only with Answered,
// PingAnswered and Follow, whose caller moves its lanes then.
type Breaker struct {
	shared   *Shared
	endpoint string
	of       *state

	open     bool // as this user knows it
	openings uint64
	probes   int  // of this user, in flight
	paused   int  // of these, those that hold no other user back
	pings    bool // this user has a ping in flight
}

// New returns a closed breaker with one user.
func New(cfg *Config) Breaker { return new(Shared).Breaker("", cfg) }

// locked calls with the state.
func (b *Breaker) locked(with func(*state)) {
	b.shared.mu.Lock()
	defer b.shared.mu.Unlock()
	with(b.of)
}

// tell tells all users of a change, or of a probe or ping that has ended.
func (b *Breaker) tell() {
	if b.shared.Changed != nil {
		b.shared.Changed()
	}
}

// Open reports whether only probes may be sent.
func (b *Breaker) Open() bool { return b.open }

// Fresh reports whether the breaker is closed and has counted no failure, so that a new one
// would do the same.
func (b *Breaker) Fresh() (fresh bool) {
	b.locked(func(of *state) { fresh = !b.open && !of.open && of.failures+of.rejections+of.probes == 0 })
	return fresh
}

// Openings counts how often the breaker has opened. A lane that was probed at the current
// count is tried.
func (b *Breaker) Openings() uint64 { return b.openings }

// OpenedAt is when the breaker opened last.
func (b *Breaker) OpenedAt() (at time.Time) {
	b.locked(func(of *state) { at = of.openedAt })
	return at
}

// LastFailure is the endpoint's latest failure.
func (b *Breaker) LastFailure() (out sink.Outcome) {
	b.locked(func(of *state) { out = of.lastFailure })
	return out
}

// NextProbe is the earliest time of a probe with backoff.
func (b *Breaker) NextProbe() (at time.Time) {
	b.locked(func(of *state) { at = of.nextProbe })
	return at
}

// Probes is the number of this user's probes in flight.
func (b *Breaker) Probes() int { return b.probes }

// Probing reports whether a probe of any user is in flight.
func (b *Breaker) Probing() (is bool) {
	b.locked(func(of *state) { is = of.probes > 0 })
	return is
}

// AcceptedSince reports whether the endpoint accepted a row in a request that began after
// t. An earlier request may have been answered late and proves nothing about the time
// since. Nothing is proven if t is zero.
func (b *Breaker) AcceptedSince(t time.Time) (is bool) {
	b.locked(func(of *state) { is = of.acceptedSince(t) })
	return is
}

// ProbeDue returns the probe that may go now; None if the breaker is closed or no probe is
// due. untried tells that an untried lane is ready.
func (b *Breaker) ProbeDue(untried bool, now time.Time) (p Probe) {
	b.locked(func(of *state) { p = of.probeDue(untried, now) })
	return p
}

// Begin records that a probe is in flight, until Answered or Withdraw.
func (b *Breaker) Begin(p Probe) {
	if p == None {
		return
	}
	b.probes++
	b.locked(func(of *state) { of.begin(p) })
}

// Withdraw records that a probe was not sent.
func (b *Breaker) Withdraw(p Probe) {
	if p == None {
		return
	}
	b.probes--
	b.locked(func(of *state) { of.withdraw(p) })
	b.tell()
}

// Pause lets other users probe, because a probe in flight cannot be sent for now. Resume ends that.
func (b *Breaker) Pause(p Probe) {
	if p == None {
		return
	}
	b.paused++
	b.locked(func(of *state) { of.withdraw(p) })
	b.tell()
}

// Resume ends Pause.
func (b *Breaker) Resume(p Probe) {
	if p == None {
		return
	}
	b.paused--
	b.locked(func(of *state) { of.probes++ })
}

// Answered records the result of a request.
func (b *Breaker) Answered(a *Answer, now time.Time) Change {
	if a.Probe != None {
		b.probes--
	}
	var changed bool
	b.locked(func(of *state) {
		was := of.open
		of.answered(a, now)
		changed = of.open != was
	})
	if changed || a.Probe != None {
		b.tell()
	}
	return b.Follow()
}

// PingDue reports whether a ping may go: one at a time, in intervals, and at most MaxPings
// accepted ones without an accepted row. An endpoint that answers pings and fails on every
// row therefore costs at most one row.
func (b *Breaker) PingDue(now time.Time) (is bool) {
	b.locked(func(of *state) { is = of.pingDue(now) })
	return is
}

// BeginPing records that a ping is in flight, until PingAnswered.
func (b *Breaker) BeginPing() {
	b.pings = true
	b.locked(func(of *state) { of.pings.inFlight = true })
}

// PingAnswered records the answer to a ping.
func (b *Breaker) PingAnswered(a *PingAnswer, now time.Time) Change {
	b.pings = false
	b.locked(func(of *state) { of.pingAnswered(a, now) })
	b.tell()
	return b.Follow()
}

// Follow takes over a change that another user caused. It returns one change at a time: a breaker
// that closed and opened again meanwhile has two.
func (b *Breaker) Follow() (change Change) {
	b.locked(func(of *state) {
		switch {
		case b.open && (!of.open || b.openings != of.openings):
			b.open, change = false, Closed
		case !b.open && of.open:
			b.open, b.openings, change = true, of.openings, Opened
		}
	})
	return change
}

// Leave ends the use of the breaker. Probes and pings of the user that were not answered count no
// more. The last user takes the state along.
func (b *Breaker) Leave() {
	b.locked(func(of *state) {
		of.probes -= b.probes - b.paused
		of.pings.inFlight = of.pings.inFlight && !b.pings
		if of.users--; of.users == 0 {
			delete(b.shared.states, b.endpoint)
		}
	})
	b.probes, b.paused, b.pings = 0, 0, false
	b.tell()
}
