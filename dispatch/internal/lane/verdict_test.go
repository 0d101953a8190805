package lane

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/internal/breaker"
	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// TestJudge fails one row several times while the receiver accepts other rows in between.
// Times are in seconds. Without proof, refusals count every 300 s.
func TestJudge(t *testing.T) {
	type attempt struct {
		at        int
		class     sink.Class
		suspect   bool // the row may be the cause
		final     bool // no attempt can succeed
		several   bool // other rows were in the request
		searching bool // the request was part of a failed one
		after     int  // Retry-After
		accepted  int  // start of the latest accepted request
		want      Verdict
	}
	const (
		refused       = sink.Refused
		rejected      = sink.Rejected
		unavailable   = sink.Unavailable
		misconfigured = sink.Misconfigured
	)
	tests := map[string][]attempt{
		"rejected alone is the row's":   {{at: 1, class: rejected, want: Count}, {at: 2, class: rejected, want: Count}},
		"rejected for good, alone":      {{at: 1, class: rejected, final: true, want: GiveUp}},
		"rejected for good, of several": {{at: 1, class: rejected, final: true, several: true, want: Halve}},
		"rejected among several":        {{at: 1, class: rejected, several: true, want: Halve}},
		"rejected, whatever else":       {{at: 1, class: rejected, after: 60, want: Count}},
		"rejected of several and busy":  {{at: 1, class: rejected, several: true, after: 60, want: Halve}},

		"refused among several is looked into once": {
			{at: 1, class: refused, several: true, want: Halve},
			{at: 2, class: refused, several: true, searching: true, want: Single},
		},
		"unavailable among several":   {{at: 1, class: unavailable, several: true, want: Single}},
		"misconfigured among several": {{at: 1, class: misconfigured, several: true, want: Single}},

		"unavailable never counts without proof": {
			{at: 1, class: unavailable, want: Retry}, {at: 1000, class: unavailable, want: Retry}, {at: 2000, class: unavailable, want: Retry},
		},
		"misconfigured never counts without proof": {
			{at: 1, class: misconfigured, want: Retry}, {at: 1000, class: misconfigured, want: Retry}, {at: 2000, class: misconfigured, want: Retry},
		},
		"an unknown class is as unavailable": {{at: 1, want: Retry}, {at: 1000, want: Retry}, {at: 1001, several: true, want: Single}},

		"a first failure has no proof": {{at: 10, class: unavailable, accepted: 9, want: Retry}},
		"unavailable never counts with proof either": {
			{at: 10, class: unavailable, want: Retry},
			{at: 20, class: unavailable, accepted: 15, want: Retry},
			{at: 1000, class: misconfigured, accepted: 900, want: Retry},
			{at: 2000, class: unavailable, accepted: 1900, want: Retry},
		},
		"a suspect row counts with proof, and never without": {
			{at: 10, class: unavailable, suspect: true, want: Retry},
			{at: 20, class: unavailable, suspect: true, accepted: 15, want: Count},
			{at: 1000, class: unavailable, suspect: true, accepted: 15, want: Retry},
			{at: 2000, class: unavailable, suspect: true, accepted: 15, want: Retry},
			{at: 2010, class: unavailable, accepted: 2005, want: Retry},
			{at: 2020, class: unavailable, suspect: true, several: true, accepted: 2015, want: Halve},
		},
		"an unavailability before it is a failure to prove against": {
			{at: 10, class: unavailable, want: Retry},
			{at: 20, class: refused, accepted: 15, want: Count},
			{at: 30, class: unavailable, accepted: 25, want: Retry},
			{at: 40, class: rejected, want: Count},
		},
		"proof counts once": {
			{at: 10, class: refused, want: Retry},
			{at: 20, class: refused, accepted: 15, want: Count},
			{at: 30, class: refused, accepted: 15, want: Retry},
			{at: 40, class: refused, accepted: 35, want: Count},
		},
		"a request that began before the failure proves nothing": {
			{at: 10, class: refused, want: Retry},
			{at: 20, class: refused, accepted: 9, want: Retry},
			{at: 30, class: refused, accepted: 20, want: Retry}, // at the same moment
			{at: 40, class: refused, accepted: 31, want: Count},
		},
		"proof looks for the row among several": {
			{at: 10, class: unavailable, several: true, want: Single},
			{at: 20, class: unavailable, several: true, accepted: 15, want: Halve},
			{at: 30, class: refused, several: true, searching: true, accepted: 25, want: Halve},
		},

		"refused counts once in a while": {
			{at: 1, class: refused, want: Retry},
			{at: 300, class: refused, want: Retry},
			{at: 301, class: refused, want: Count},
			{at: 600, class: refused, want: Retry},
			{at: 601, class: refused, want: Count},
		},
		"refused counts from the first in a row": {
			{at: 1, class: refused, want: Retry},
			{at: 200, class: unavailable, want: Retry},
			{at: 400, class: refused, want: Retry},
			{at: 699, class: refused, want: Retry},
			{at: 700, class: refused, want: Count},
		},
		"refused among several counts towards nothing": {
			{at: 1, class: refused, several: true, want: Halve},
			{at: 400, class: refused, want: Retry},
			{at: 700, class: refused, want: Count},
		},
		"a count with proof begins the wait anew": {
			{at: 1, class: refused, want: Retry},
			{at: 310, class: refused, accepted: 305, want: Count},
			{at: 311, class: refused, accepted: 305, want: Retry},
			{at: 610, class: refused, accepted: 305, want: Count},
		},

		"a receiver that sends Retry-After is not at fault": {
			{at: 1, class: unavailable, want: Retry},
			{at: 10, class: unavailable, after: 5, accepted: 5, want: Retry},
			{at: 20, class: refused, after: 5, accepted: 15, want: Retry},
			{at: 30, class: refused, several: true, after: 5, accepted: 25, want: Single},
			{at: 400, class: refused, after: 5, accepted: 25, want: Retry},
			{at: 401, class: refused, accepted: 400, want: Retry},
			{at: 402, class: refused, accepted: 400, want: Retry},
		},
	}
	epoch := time.Unix(1e9, 0)
	second := func(n int) time.Time { return epoch.Add(time.Duration(n) * time.Second) }
	for name, attempts := range tests {
		t.Run(name, func(t *testing.T) {
			p := Policy{ProofWait: 300 * time.Second}
			rw, l := &Row{}, &Lane{Receiver: &Receiver{Breaker: breaker.New(&breaker.Config{})}}
			for i, a := range attempts {
				if a.accepted > 0 {
					l.Receiver.Breaker.Answered(&breaker.Answer{Started: second(a.accepted), Accepted: true}, second(a.accepted))
				}
				rw.Proof = l.Receiver.Breaker.AcceptedSince(rw.FailureTimes().Last)
				f := Failure{
					Outcome: sink.Outcome{Class: a.class, Suspect: a.suspect, Final: a.final}, Single: !a.several, Bisecting: a.searching,
					RetryAfter: time.Duration(a.after) * time.Second,
				}
				if got := p.Judge(l, rw, &f, second(a.at)); got != a.want {
					t.Fatalf("attempt %d, %s at %d s: got verdict %d, want %d", i+1, a.class, a.at, got, a.want)
				}
			}
		})
	}
}

func TestDelay(t *testing.T) {
	const initial, most = 200 * time.Millisecond, 30 * time.Second
	tests := []struct {
		n    int
		want time.Duration // before the random reduction
	}{
		{1, initial}, {2, 2 * initial}, {3, 4 * initial}, {8, 128 * initial},
		{9, most}, {32, most}, {33, most}, {64, most}, {65, most}, {1 << 40, most},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.n), func(t *testing.T) {
			for random, want := range map[float64]time.Duration{0: tt.want, 0.5: tt.want * 9 / 10, 1: tt.want * 4 / 5} {
				if got := Delay(tt.n, initial, most, func() float64 { return random }); got != want {
					t.Errorf("got %s with %v at random, want %s", got, random, want)
				}
			}
		})
	}
	for _, same := range []time.Duration{1, time.Hour, 1<<63 - 1} {
		if got := Delay(1<<30, same, same, func() float64 { return 0 }); got != same {
			t.Errorf("from %s to %s: %s", same, same, got)
		}
	}
	if got := Delay(40, 1, 1<<62, func() float64 { return 0 }); got <= 0 {
		t.Errorf("overflow: %s", got)
	}
}
