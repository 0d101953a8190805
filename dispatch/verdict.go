package dispatch

import (
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// verdict is what a failure means for the row at the head of its lane.
type verdict uint8

const (
	// verdictRetry: send the row again, it has cost nothing.
	verdictRetry verdict = iota
	// verdictHalve: one of several rows is to blame; send half of them at once.
	verdictHalve
	// verdictSingle: one of several rows may be to blame; send one after the back-off.
	verdictSingle
	// verdictCount: the failure counts against the row.
	verdictCount
	// verdictGiveUp: the row has failed for long enough; it is FAILED.
	verdictGiveUp
)

// failure is what is known of a failed attempt.
type failure struct {
	sink.Outcome
	single     bool // it is about the head row and no other
	bisecting  bool // the rows are what is left of an earlier failure
	retryAfter time.Duration
}

// isRefusal reports whether the receiver had something against the rows. Everything
// else is unavailability. A receiver that names the time to come back is alive and
// busy: that is no row's fault, whatever it takes from others meanwhile.
func (f *failure) isRefusal() bool {
	return f.Class == sink.Rejected || f.Class == sink.Refused && f.retryAfter == 0
}

// judge decides what a failed attempt means. It reads and then updates what the
// row remembers of its failures. Only refusals of the row alone count: a receiver
// that is away for some rows and takes others must not make dead letters.
func (c *core) judge(l *lane, rw *row, f *failure, now time.Time) verdict {
	proof := rw.proof
	rw.recordFailure(f.Class, now)
	if !f.single {
		return judgeSeveral(l.receiver, f, proof)
	}
	switch {
	case c.cfg.Compat != CompatNone:
		return c.judgeCompat(f)
	case !f.isRefusal():
	case proof || f.Class == sink.Rejected || !rw.lastRefused.IsZero() && now.Sub(rw.lastRefused) >= c.cfg.ProofWait:
		rw.lastRefused = now
		return verdictCount
	case rw.lastRefused.IsZero():
		rw.lastRefused = now
	}
	if c.cfg.GiveUpAfter > 0 && now.Sub(rw.firstFailed) >= c.cfg.GiveUpAfter {
		return verdictGiveUp
	}
	return verdictRetry
}

// judgeSeveral decides about several rows of one lane, of which any may be to
// blame. Without proof a refusal is looked into once: an outage is no reason for
// a search.
func judgeSeveral(recv *receiver, f *failure, proof bool) verdict {
	switch {
	case recv.breakerOpen || f.retryAfter > 0 && f.Class != sink.Rejected:
		return verdictSingle
	case f.Class == sink.Rejected, proof, f.Class == sink.Refused && !f.bisecting:
		return verdictHalve
	}
	return verdictSingle
}

// judgeCompat counts as the processors do that teams come from.
func (c *core) judgeCompat(f *failure) verdict {
	if c.cfg.Compat == CompatFlowCatalyst {
		return verdictCount
	}
	switch f.Reason {
	case store.ReasonBadRequest, store.ReasonUnauthorized, store.ReasonForbidden:
		return verdictCount // 4xx
	}
	return verdictRetry
}

// recordFailure notes a failed attempt. Refusals count from the first in a row.
func (rw *row) recordFailure(class sink.Class, now time.Time) {
	rw.lastFailed = now
	if rw.firstFailed.IsZero() {
		rw.firstFailed = now
	}
	if class != sink.Refused {
		rw.lastRefused = time.Time{}
	}
}

// delay returns the wait after a lane's n-th failed attempt in a row, n from 1:
// exponential, capped, shortened by up to a fifth so that lanes that failed
// together do not knock together.
func delay(n int, initial, most time.Duration, random func() float64) time.Duration {
	d := most
	if n-1 < 32 && initial < most>>(n-1) {
		d = initial << (n - 1)
	}
	return d - time.Duration(random()*float64(d)/5)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
