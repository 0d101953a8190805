package lane

import (
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// Verdict is the consequence of a failure for the head of a lane.
type Verdict uint8

const (
	// Retry means: send the row again; the failure does not count.
	Retry Verdict = iota

	// Halve means: one of several rows is bad; send half of them at once.
	Halve

	// Single means: one of several rows may be bad; send one after the backoff.
	Single

	// Count means: the failure counts against the row.
	Count

	// GiveUp means: the row has failed for GiveUpAfter; mark it FAILED.
	GiveUp
)

// Failure describes a failed attempt.
type Failure struct {
	sink.Outcome
	Single     bool // it concerns the head row only
	Bisecting  bool // the rows are part of an earlier failure
	RetryAfter time.Duration
}

// IsRefusal reports whether the receiver objected to the rows. Any other failure is
// unavailability. A refusal with Retry-After means that the receiver is alive and busy. It
// counts against no row, even if the receiver accepts others meanwhile.
func (f *Failure) IsRefusal() bool {
	return f.Class == sink.Rejected || f.Class == sink.Refused && f.RetryAfter == 0
}

// Policy decides which failures count against a row.
type Policy struct {
	// ProofWait is how often a refused row counts without proof that the receiver works.
	ProofWait time.Duration

	// GiveUpAfter is how long a row may fail for any reason; 0 means no limit.
	GiveUpAfter time.Duration

	// CountAll counts every failure, CountClientErrors every 4xx and nothing else. Both are
	// the rules of other processors.
	CountAll, CountClientErrors bool
}

// Judge returns the verdict on a failed attempt and updates the row's failure times. Only
// refusals of the row alone count, because a receiver that is down for some rows and
// accepts others must not create dead letters. A suspect row counts with proof only.
func (p *Policy) Judge(l *Lane, rw *Row, f *Failure, now time.Time) Verdict {
	proof := rw.Proof
	times := rw.RecordFailure(f.Class, now)
	if !f.Single {
		return judgeSeveral(l.Receiver, f, proof)
	}

	switch {
	case p.CountAll:
		return Count
	case p.CountClientErrors:
		return judgeClientError(f)
	case f.Final:
		return GiveUp
	case f.Suspect && proof:
		return Count
	case !f.IsRefusal():
	case proof || f.Class == sink.Rejected || !times.Refused.IsZero() && now.Sub(times.Refused) >= p.ProofWait:
		times.Refused = now
		return Count
	case times.Refused.IsZero():
		times.Refused = now
	}

	if p.GiveUpAfter > 0 && now.Sub(times.First) >= p.GiveUpAfter {
		return GiveUp
	}
	return Retry
}

// judgeSeveral returns the verdict on several rows of one lane. Without proof a refusal is
// bisected only once, because an outage does not justify a search.
func judgeSeveral(recv *Receiver, f *Failure, proof bool) Verdict {
	switch {
	case recv.Breaker.Open() || f.RetryAfter > 0 && f.Class != sink.Rejected:
		return Single
	case f.Class == sink.Rejected, proof, f.Class == sink.Refused && !f.Bisecting:
		return Halve
	}
	return Single
}

// judgeClientError counts every 4xx.
func judgeClientError(f *Failure) Verdict {
	switch f.Reason {
	case store.ReasonBadRequest, store.ReasonUnauthorized, store.ReasonForbidden:
		return Count
	}
	return Retry
}

// Delay returns the backoff after the n-th consecutive failure, n from 1. It is exponential
// and capped. A random reduction of up to a fifth keeps lanes that failed together from
// retrying together.
func Delay(n int, initial, maxDelay time.Duration, random func() float64) time.Duration {
	d := maxDelay
	if n-1 < 32 && initial < maxDelay>>(n-1) {
		d = initial << (n - 1)
	}
	return d - time.Duration(random()*float64(d)/5)
}
