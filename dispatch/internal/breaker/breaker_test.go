package breaker

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/dispatch/sink"
)

const (
	backoffInitial = 200 * time.Millisecond
	backoffMax     = 30 * time.Second
	retryAfterMax  = time.Minute
	pingInterval   = 600 * time.Millisecond
)

func backoff(n int) time.Duration { return min(backoffInitial<<min(n-1, 20), backoffMax) }

// breakerModel is the reference model: the requests in flight, and the rules of the state
// table.
type breakerModel struct {
	t        *rapid.T
	b        Breaker
	cfg      *Config
	now      time.Time
	open     bool
	openedAt time.Time
	openings uint64
	accepted time.Time // latest start of an accepted request
	failed   int       // in a row, without rejected ones
	rejected int
	flight   []inFlight

	eager, timed int       // eager probes that began, and timed ones that failed, since the opening
	noEager      bool      // the endpoint sent Retry-After since the opening
	next         time.Time // earliest timed probe

	ping        bool // in flight
	pings       int  // accepted since an accepted row
	nextPing    time.Time
	unsupported bool
}

// inFlight is a request in flight.
type inFlight struct {
	probe Probe
	began time.Time
}

func newBreakerModel(t *rapid.T) *breakerModel {
	cfg := &Config{
		Backoff: backoff, RetryAfterMax: retryAfterMax, PingInterval: pingInterval,
		MaxConcurrentEager: rapid.IntRange(1, 5).Draw(t, "eager"),
		MaxPings:           rapid.IntRange(1, 4).Draw(t, "pings"),
	}
	return &breakerModel{t: t, b: New(cfg), cfg: cfg, now: time.Unix(1e9, 0)}
}

func (m *breakerModel) probes() (n int) {
	for _, f := range m.flight {
		if f.probe != None {
			n++
		}
	}
	return n
}

// send begins an ordinary request. It may still be in flight when the breaker opens.
func (m *breakerModel) send(*rapid.T) {
	if !m.open {
		m.flight = append(m.flight, inFlight{None, m.now})
	}
}

// request begins a probe for an operator.
func (m *breakerModel) request(*rapid.T) {
	m.b.Begin(Requested)
	m.flight = append(m.flight, inFlight{Requested, m.now})
}

// probe asks for a probe and checks when there may be one.
func (m *breakerModel) probe(t *rapid.T) {
	untried := rapid.Bool().Draw(t, "untried")
	want := None
	switch {
	case !m.open:
	case untried && m.eager < MaxEagerProbes && !m.noEager && m.probes() < m.cfg.MaxConcurrentEager:
		want = Eager
	case m.probes() == 0 && !m.now.Before(m.next):
		want = Timed
	}
	got := m.b.ProbeDue(untried, m.now)
	if got != want {
		t.Fatalf("probe due: got %d, want %d; %d are in flight, untried %v, next at %v", got, want, m.probes(), untried, m.next)
	}
	if got == None || rapid.IntRange(0, 4).Draw(t, "does not fit") == 0 {
		return
	}
	m.b.Begin(got)
	m.flight = append(m.flight, inFlight{got, m.now})
	if got == Eager {
		m.eager++
	}
}

// take removes one of the requests in flight.
func (m *breakerModel) take(t *rapid.T) (f inFlight, ok bool) {
	if len(m.flight) == 0 {
		return f, false
	}
	i := rapid.IntRange(0, len(m.flight)-1).Draw(t, "request")
	f = m.flight[i]
	m.flight = slices.Delete(m.flight, i, i+1)
	return f, true
}

// withdraw takes back a probe that was not sent.
func (m *breakerModel) withdraw(t *rapid.T) {
	if f, ok := m.take(t); ok {
		m.b.Withdraw(f.probe)
	}
}

// answer answers a request.
func (m *breakerModel) answer(t *rapid.T) {
	f, ok := m.take(t)
	if !ok {
		return
	}
	class := rapid.SampledFrom([]sink.Class{
		sink.Delivered, sink.Refused, sink.Rejected, sink.Rejected, sink.Unavailable, sink.Unavailable, sink.Misconfigured,
	}).Draw(t, "class")
	a := Answer{
		Started: f.began, Probe: f.probe, Accepted: class == sink.Delivered, Failure: sink.Outcome{Class: class},
		Proof: rapid.Bool().Draw(t, "proof"), Untried: rapid.Bool().Draw(t, "untried"),
	}
	if !a.Accepted && rapid.IntRange(0, 5).Draw(t, "busy") == 0 {
		a.RetryAfter = time.Duration(rapid.IntRange(1, 100).Draw(t, "retry after")) * time.Second
	}
	proof := a.Proof || m.accepted.After(f.began)
	got := m.b.Answered(&a, m.now)

	if a.Accepted {
		m.rejected, m.pings = 0, 0
		m.expect(got, m.accept(f.began))
		return
	}
	if class == sink.Rejected {
		m.failed, m.rejected = 0, m.rejected+1
	} else {
		m.failed++
	}
	if m.b.LastFailure().Class != class {
		t.Fatalf("last failure: got %v, want %v", m.b.LastFailure().Class, class)
	}
	m.expect(got, m.fail(&a, proof))
}

// accept records that a request that began at a time was accepted.
func (m *breakerModel) accept(began time.Time) Change {
	if m.failed = 0; began.After(m.accepted) {
		m.accepted = began
	}
	if !m.open || began.Before(m.openedAt) {
		return Unchanged
	}
	m.open = false
	return Closed
}

// fail records a failure.
func (m *breakerModel) fail(a *Answer, proof bool) Change {
	change, n, limit := Unchanged, 1, backoffMax
	switch {
	case m.open:
		if a.Probe == Timed {
			m.timed++
		}
		n = m.timed + 1
		if a.Untried {
			limit = time.Second
			if a.Failure.Class == sink.Rejected {
				limit = 2 * time.Second
			}
		}
	case m.failed >= MaxFailures, m.rejected >= MaxRejections, a.Failure.Class == sink.Misconfigured && !proof:
		change = Opened
		m.open, m.openedAt, m.openings = true, m.now, m.openings+1
		m.eager, m.timed, m.noEager, m.next = 0, 0, false, m.now
	default:
		return Unchanged
	}
	for _, wait := range []time.Duration{min(backoff(n), limit), min(a.RetryAfter, retryAfterMax)} {
		if at := m.now.Add(wait); at.After(m.next) {
			m.next = at
		}
	}
	m.noEager = m.noEager || a.RetryAfter > 0
	return change
}

// sendPing begins or answers a ping.
func (m *breakerModel) sendPing(t *rapid.T) {
	want := !m.ping && !m.unsupported && m.pings < m.cfg.MaxPings && !m.now.Before(m.nextPing)
	if got := m.b.PingDue(m.now); got != want {
		t.Fatalf("ping due: got %v, want %v; %d accepted, next at %v", got, want, m.pings, m.nextPing)
	}
	if want {
		m.b.BeginPing()
		m.ping = true
	}
}

func (m *breakerModel) answerPing(t *rapid.T) {
	if !m.ping {
		return
	}
	a := PingAnswer{
		Began: m.now.Add(-time.Millisecond), Accepted: rapid.Bool().Draw(t, "accepted"),
		Unsupported: rapid.IntRange(0, 9).Draw(t, "unsupported") == 0,
		RetryAfter:  time.Duration(rapid.IntRange(0, 3).Draw(t, "retry after")) * time.Minute,
	}
	m.ping, m.unsupported = false, a.Unsupported
	m.nextPing = m.now.Add(max(pingInterval, min(a.RetryAfter, retryAfterMax)))
	got, want := m.b.PingAnswered(&a, m.now), Unchanged
	if a.Accepted && !a.Unsupported {
		m.pings++
		want = m.accept(a.Began)
	}
	m.expect(got, want)
}

func (m *breakerModel) expect(got, want Change) {
	if got != want {
		m.t.Fatalf("change: got %d, want %d; open %v, %d failed, %d rejected", got, want, m.open, m.failed, m.rejected)
	}
}

// check checks the state, and that an open breaker never waits for good.
func (m *breakerModel) check(t *rapid.T) {
	if m.b.Open() != m.open || m.b.Openings() != m.openings || m.open && !m.b.OpenedAt().Equal(m.openedAt) {
		t.Fatalf("open: got %v, %d openings, want %v, %d openings", m.b.Open(), m.b.Openings(), m.open, m.openings)
	}
	if m.open && !m.b.NextProbe().Equal(m.next) {
		t.Fatalf("next probe: got %v, want %v", m.b.NextProbe(), m.next)
	}
	if m.b.Probes() != m.probes() {
		t.Fatalf("probes in flight: got %d, want %d", m.b.Probes(), m.probes())
	}
	since := m.now.Add(-time.Duration(rapid.IntRange(0, 5).Draw(t, "since")) * time.Second)
	if got, want := m.b.AcceptedSince(since), m.accepted.After(since); got != want || m.b.AcceptedSince(time.Time{}) {
		t.Fatalf("accepted since %v: got %v, want %v", since, got, want)
	}
	if m.open && m.probes() == 0 {
		if wait := m.b.NextProbe().Sub(m.now); wait > max(backoffMax, retryAfterMax) {
			t.Fatalf("the next probe waits for %v", wait)
		}
		if at := slices.MaxFunc([]time.Time{m.now, m.b.NextProbe()}, time.Time.Compare); m.b.ProbeDue(false, at) != Timed {
			t.Fatalf("no probe is due at %v", at)
		}
	}
}

func TestBreakerAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newBreakerModel(t)
		for range rapid.IntRange(0, MaxFailures).Draw(t, "failed before") {
			m.send(t)
			m.answer(t)
		}
		actions := map[string]func(*rapid.T){
			"":            m.check,
			"send":        m.send,
			"send more":   m.send,
			"probe":       m.probe,
			"probe more":  m.probe,
			"request":     m.request,
			"answer":      m.answer,
			"answer more": m.answer,
			"withdraw":    m.withdraw,
			"ping":        m.sendPing,
			"answer ping": m.answerPing,
			"time": func(t *rapid.T) {
				m.now = m.now.Add(time.Duration(rapid.IntRange(1, 5000).Draw(t, "ms")) * time.Millisecond)
			},
		}
		for range 10 { // longer than one run of rapid
			t.Repeat(actions)
		}
	})
}

// The example of the package documentation: an endpoint with 40 lanes that is down. A
// rejected probe costs its row an attempt, so these are rarer.
func TestProbesOfAnEndpointThatIsDown(t *testing.T) {
	for class, want := range map[sink.Class]struct {
		requests int // until the breaker opens
		pause    time.Duration
	}{
		sink.Unavailable: {MaxFailures, time.Second},
		sink.Rejected:    {MaxRejections, 2 * time.Second},
	} {
		b := New(&Config{Backoff: backoff, RetryAfterMax: retryAfterMax, MaxConcurrentEager: 5})
		now, failed, requests := time.Unix(1e9, 0), sink.Outcome{Class: class}, 0
		for ; !b.Open(); requests++ {
			b.Answered(&Answer{Started: now, Failure: failed}, now)
		}
		if requests != want.requests {
			t.Errorf("%v: requests until the breaker opens: got %d, want %d", class, requests, want.requests)
		}

		var at []time.Time // of each probe
		for len(at) < 50 {
			untried := len(at) < 40
			probe := b.ProbeDue(untried, now)
			if probe == None {
				now = b.NextProbe()
				continue
			}
			b.Begin(probe)
			at = append(at, now)
			b.Answered(&Answer{Started: now, Probe: probe, Failure: failed, Untried: len(at) < 40}, now)
		}
		if eager := at[MaxEagerProbes-1].Sub(at[0]); eager != 0 {
			t.Errorf("%v: the last eager probe: got %v after the first, want 0", class, eager)
		}
		if pause := at[39].Sub(at[38]); pause != want.pause {
			t.Errorf("%v: pause while untried lanes are left: got %v, want %v", class, pause, want.pause)
		}
		if pause := at[49].Sub(at[48]); pause != backoffMax {
			t.Errorf("%v: pause once every lane was tried: got %v, want %v", class, pause, backoffMax)
		}
	}
}
