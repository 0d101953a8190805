package dispatch

import (
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// verdict is the consequence of a failure for the head of a lane.
type verdict uint8

const (
	// verdictRetry: send the row again; the failure does not count.
	verdictRetry verdict = iota

	// verdictHalve: one of several rows is bad; send half of them at once.
	verdictHalve

	// verdictSingle: one of several rows may be bad; send one after the backoff.
	verdictSingle

	// verdictCount: the failure counts against the row.
	verdictCount

	// verdictGiveUp: the row has failed for GiveUpAfter; mark it FAILED.
	verdictGiveUp
)

// failure describes a failed attempt.
type failure struct {
	sink.Outcome
	single     bool // it concerns the head row only
	bisecting  bool // the rows are part of an earlier failure
	retryAfter time.Duration
}

// isRefusal reports whether the receiver objected to the rows. Any other failure is
// unavailability. A refusal with Retry-After means that the receiver is alive and busy. It
// counts against no row, even if the receiver accepts others meanwhile.
func (f *failure) isRefusal() bool {
	return f.Class == sink.Rejected || f.Class == sink.Refused && f.retryAfter == 0
}

// judge returns the verdict on a failed attempt and updates the row's failure times. Only
// refusals of the row alone count, because a receiver that is down for some rows and
// accepts others must not create dead letters.
func (c *core) judge(l *lane, rw *row, f *failure, now time.Time) verdict {
	proof := rw.Proof
	rw.RecordFailure(f.Class, now)
	if !f.single {
		return judgeSeveral(l.Receiver, f, proof)
	}

	switch {
	case c.cfg.Compat != CompatNone:
		return c.judgeCompat(f)
	case !f.isRefusal():
	case proof || f.Class == sink.Rejected || !rw.LastRefused.IsZero() && now.Sub(rw.LastRefused) >= c.cfg.ProofWait:
		rw.LastRefused = now
		return verdictCount
	case rw.LastRefused.IsZero():
		rw.LastRefused = now
	}

	if c.cfg.GiveUpAfter > 0 && now.Sub(rw.FirstFailed) >= c.cfg.GiveUpAfter {
		return verdictGiveUp
	}
	return verdictRetry
}

// judgeSeveral returns the verdict on several rows of one lane. Without proof a refusal is
// bisected only once, because an outage does not justify a search.
func judgeSeveral(recv *receiver, f *failure, proof bool) verdict {
	switch {
	case recv.Breaker.Open() || f.retryAfter > 0 && f.Class != sink.Rejected:
		return verdictSingle
	case f.Class == sink.Rejected, proof, f.Class == sink.Refused && !f.bisecting:
		return verdictHalve
	}
	return verdictSingle
}

// judgeCompat counts failures like the processor named by Compat.
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

// RecordFailure records a failed attempt. A failure other than a refusal restarts the
// ProofWait interval.
func (rw *row) RecordFailure(class sink.Class, now time.Time) {
	rw.LastFailed = now
	if rw.FirstFailed.IsZero() {
		rw.FirstFailed = now
	}
	if class != sink.Refused {
		rw.LastRefused = time.Time{}
	}
}

// delay returns the backoff after a lane's n-th consecutive failure, n from 1. It is
// exponential and capped. A random reduction of up to a fifth keeps lanes that failed
// together from retrying together.
func delay(n int, initial, maxDelay time.Duration, random func() float64) time.Duration {
	d := maxDelay
	if n-1 < 32 && initial < maxDelay>>(n-1) {
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
