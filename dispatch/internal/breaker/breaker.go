package breaker

import (
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
)

const (
	// MaxFailures is the number of consecutive failed requests that opens a breaker.
	MaxFailures = 5

	// MaxRejections is the number of consecutive rejected requests that opens it, because a
	// new endpoint may be configured for another wire format. That must not turn a whole
	// outbox into dead letters.
	MaxRejections = 20

	// MaxEagerProbes is the number of lanes probed without backoff once a breaker opens. If
	// the rows were bad and not the endpoint, another lane closes the breaker at once. If
	// the endpoint is down, more probes would only add load.
	MaxEagerProbes = 16

	// Maximum pause between two probes while untried lanes are left, in general and after a
	// rejected probe.
	maxUntriedPause, maxRejectedPause = time.Second, 2 * time.Second
)

// Config is shared by the breakers of a sink.
type Config struct {
	// Backoff returns the wait after the n-th consecutive failure, n from 1.
	Backoff func(n int) time.Duration

	// RetryAfterMax caps the Retry-After of an endpoint.
	RetryAfterMax time.Duration

	// MaxConcurrentEager is how many eager probes may be in flight.
	MaxConcurrentEager int

	// PingInterval is the minimum time between two pings. MaxPings is how many may be
	// accepted without an accepted row.
	PingInterval time.Duration
	MaxPings     int
}

// state is the state of a breaker, which its users share.
type state struct {
	cfg  *Config
	open bool

	openings    uint64
	openedAt    time.Time
	lastFailure sink.Outcome

	// lastAccepted is the latest start of a request with an accepted row.
	lastAccepted time.Time

	// failures counts failed requests since the endpoint last accepted or rejected a row,
	// rejections the rejected requests since it last accepted one.
	failures, rejections int

	// probes are in flight, eagerLeft more may skip the backoff, and failedProbes have
	// failed with it.
	probes, eagerLeft, failedProbes int
	nextProbe                       time.Time

	pings pings
	users int
}

// acceptedSince reports whether the endpoint accepted a row in a request that began after
// t. An earlier request may have been answered late and proves nothing about the time
// since. Nothing is proven if t is zero.
func (b *state) acceptedSince(t time.Time) bool {
	return !t.IsZero() && b.lastAccepted.After(t)
}

// Probe tells how a request probes an endpoint.
type Probe uint8

const (
	// None is an ordinary request, or no probe.
	None Probe = iota

	// Timed is a probe after the backoff.
	Timed

	// Eager is a probe of an untried lane without backoff.
	Eager

	// Requested is a probe that an operator asked for.
	Requested
)

// probeDue returns the probe that may go now; None if the breaker is closed or no probe is
// due. untried tells that an untried lane is ready.
func (b *state) probeDue(untried bool, now time.Time) Probe {
	switch {
	case !b.open:
		return None
	case untried && b.eagerLeft > 0 && b.probes < b.cfg.MaxConcurrentEager:
		return Eager
	case b.probes > 0 || now.Before(b.nextProbe):
		return None
	}
	return Timed
}

// begin records that a probe is in flight, until answered or withdraw.
func (b *state) begin(p Probe) {
	if p == None {
		return
	}
	b.probes++
	if p == Eager {
		b.eagerLeft--
	}
}

// withdraw records that a probe was not sent.
func (b *state) withdraw(p Probe) {
	if p != None {
		b.probes--
	}
}

// Answer is the result of a request.
type Answer struct {
	Started time.Time // of the request
	Probe   Probe

	// Accepted: the endpoint accepted a row of the request. Otherwise Failure is the first
	// failure, with RetryAfter.
	Accepted   bool
	Failure    sink.Outcome
	RetryAfter time.Duration

	// Proof: when the request began, the endpoint had accepted another row since the last
	// failure of the request's first row.
	Proof bool

	// Untried: an untried lane is ready.
	Untried bool
}

// Change is the effect of an answer on the breaker.
type Change uint8

const (
	// Unchanged means that the breaker stays open or closed.
	Unchanged Change = iota

	// Opened means that the breaker was closed and is open.
	Opened

	// Closed means that the breaker was open and is closed.
	Closed
)

// answered records the result of a request.
func (b *state) answered(a *Answer, now time.Time) {
	b.withdraw(a.Probe)
	if a.Accepted {
		b.rejections, b.pings.proofs = 0, 0
		b.accepted(a.Started)
		return
	}

	b.failures++
	if a.Failure.Class == sink.Rejected { // the endpoint is up
		b.failures = 0
		b.rejections++
	}
	b.lastFailure = a.Failure
	if b.open {
		b.delayNextProbe(a, now)
		return
	}

	proof := a.Proof || b.lastAccepted.After(a.Started)
	if b.failures < MaxFailures && b.rejections < MaxRejections && (a.Failure.Class != sink.Misconfigured || proof) {
		return
	}
	b.open, b.openedAt = true, now
	b.openings++
	b.eagerLeft, b.failedProbes = MaxEagerProbes, 0
	b.nextProbe = now.Add(b.cfg.Backoff(1))
	b.applyRetryAfter(a.RetryAfter, now)
}

// accepted records that the endpoint accepted a request that began at a time.
func (b *state) accepted(began time.Time) {
	b.lastAccepted = later(b.lastAccepted, began)
	b.failures = 0
	if !began.Before(b.openedAt) { // an older request proves nothing about now
		b.open = false
	}
}

// delayNextProbe schedules the next probe. The pause is long only once every lane was
// tried, because each untried lane may be the one that closes the breaker.
func (b *state) delayNextProbe(a *Answer, now time.Time) {
	if a.Probe == Timed {
		b.failedProbes++
	}
	pause := b.cfg.Backoff(b.failedProbes + 1)
	if a.Untried {
		limit := maxUntriedPause
		if a.Failure.Class == sink.Rejected {
			limit = maxRejectedPause // each costs its row an attempt
		}
		pause = min(pause, limit)
	}

	b.nextProbe = later(b.nextProbe, now.Add(pause))
	b.applyRetryAfter(a.RetryAfter, now)
}

// applyRetryAfter obeys the endpoint's Retry-After.
func (b *state) applyRetryAfter(after time.Duration, now time.Time) {
	if after = min(after, b.cfg.RetryAfterMax); after > 0 {
		b.nextProbe = later(b.nextProbe, now.Add(after))
		b.eagerLeft = 0
	}
}

// pings is the state of an endpoint's pings: requests without rows, whose acceptance is
// proof like an accepted row.
type pings struct {
	inFlight    bool
	next        time.Time // earliest next ping
	proofs      int       // accepted pings since the last accepted row
	unsupported bool      // the endpoint has no such request
}

// pingDue reports whether a ping may go: one at a time, in intervals, and at most MaxPings
// accepted ones without an accepted row. An endpoint that answers pings and fails on every
// row therefore costs at most one row.
func (b *state) pingDue(now time.Time) bool {
	p := &b.pings
	return !p.unsupported && !p.inFlight && !now.Before(p.next) && p.proofs < b.cfg.MaxPings
}

// PingAnswer is the answer to a ping.
type PingAnswer struct {
	Began       time.Time
	Accepted    bool // no other answer proves anything
	Unsupported bool // the endpoint has no such request: no ping is sent any more
	RetryAfter  time.Duration
}

// pingAnswered records the answer to a ping.
func (b *state) pingAnswered(a *PingAnswer, now time.Time) {
	b.pings.inFlight = false
	b.pings.next = now.Add(max(b.cfg.PingInterval, min(a.RetryAfter, b.cfg.RetryAfterMax)))
	b.pings.unsupported = a.Unsupported
	if a.Unsupported || !a.Accepted {
		return
	}
	b.pings.proofs++
	b.accepted(a.Began)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
