package dispatch

import (
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// verdict is what a failure means for the row at the head of its lane.
type verdict uint8

const (
	// again: send the row again, it has cost nothing.
	again verdict = iota
	// halve: one of several rows is to blame; send half of them at once.
	halve
	// single: one of several rows may be to blame; send one after the back-off.
	single
	// count: the failure counts against the row.
	count
	// giveUp: the row has failed for long enough; it is FAILED.
	giveUp
)

// failure is what is known of a failed attempt.
type failure struct {
	sink.Outcome
	alone      bool // it is about the head row and no other
	searching  bool // the rows are what is left of an earlier failure
	retryAfter time.Duration
}

// refusal reports whether the receiver had something against the rows. Everything
// else is unavailability. A receiver that names the time to come back is alive and
// busy: that is no row's fault, whatever it takes from others meanwhile.
func (f *failure) refusal() bool {
	return f.Class == sink.Rejected || f.Class == sink.Refused && f.retryAfter == 0
}

// judge decides what a failed attempt means. It reads and then updates what the
// row remembers of its failures. Only refusals of the row alone count: a receiver
// that is away for some rows and takes others must not make dead letters.
func (c *core) judge(l *lane, rw *row, f *failure, now time.Time) verdict {
	proof := rw.proof
	rw.fail(f.Class, now)
	if !f.alone {
		return judgeSeveral(l.to, f, proof)
	}
	switch {
	case c.cfg.Compat != CompatNone:
		return c.judgeCompat(f)
	case !f.refusal():
	case proof || f.Class == sink.Rejected || !rw.refused.IsZero() && now.Sub(rw.refused) >= c.cfg.ProofWait:
		rw.refused = now
		return count
	case rw.refused.IsZero():
		rw.refused = now
	}
	if c.cfg.GiveUpAfter > 0 && now.Sub(rw.failing) >= c.cfg.GiveUpAfter {
		return giveUp
	}
	return again
}

// judgeSeveral decides about several rows of one lane, of which any may be to
// blame. Without proof a refusal is looked into once: an outage is no reason for
// a search.
func judgeSeveral(recv *receiver, f *failure, proof bool) verdict {
	switch {
	case recv.suspect || f.retryAfter > 0 && f.Class != sink.Rejected:
		return single
	case f.Class == sink.Rejected, proof, f.Class == sink.Refused && !f.searching:
		return halve
	}
	return single
}

// judgeCompat counts as the processors do that teams come from.
func (c *core) judgeCompat(f *failure) verdict {
	if c.cfg.Compat == CompatFlowCatalyst {
		return count
	}
	switch f.Reason {
	case store.ReasonBadRequest, store.ReasonUnauthorized, store.ReasonForbidden:
		return count // 4xx
	}
	return again
}

// fail notes a failed attempt. Refusals count from the first in a row.
func (rw *row) fail(class sink.Class, now time.Time) {
	rw.failed = now
	if rw.failing.IsZero() {
		rw.failing = now
	}
	if class != sink.Refused {
		rw.refused = time.Time{}
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
