package dispatch

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// TestJudge fails one row several times while the receiver accepts other rows in between.
// Times are in seconds. Without proof, refusals count every 300 s.
func TestJudge(t *testing.T) {
	type attempt struct {
		at        int
		class     sink.Class
		several   bool // other rows were in the request
		searching bool // the request was part of a failed one
		after     int  // Retry-After
		accepted  int  // start of the latest accepted request
		want      verdict
	}
	const (
		refused       = sink.Refused
		rejected      = sink.Rejected
		unavailable   = sink.Unavailable
		misconfigured = sink.Misconfigured
	)
	tests := map[string][]attempt{
		"rejected alone is the row's":  {{at: 1, class: rejected, want: verdictCount}, {at: 2, class: rejected, want: verdictCount}},
		"rejected among several":       {{at: 1, class: rejected, several: true, want: verdictHalve}},
		"rejected, whatever else":      {{at: 1, class: rejected, after: 60, want: verdictCount}},
		"rejected of several and busy": {{at: 1, class: rejected, several: true, after: 60, want: verdictHalve}},

		"refused among several is looked into once": {
			{at: 1, class: refused, several: true, want: verdictHalve},
			{at: 2, class: refused, several: true, searching: true, want: verdictSingle},
		},
		"unavailable among several":   {{at: 1, class: unavailable, several: true, want: verdictSingle}},
		"misconfigured among several": {{at: 1, class: misconfigured, several: true, want: verdictSingle}},

		"unavailable never counts without proof": {
			{at: 1, class: unavailable, want: verdictRetry}, {at: 1000, class: unavailable, want: verdictRetry}, {at: 2000, class: unavailable, want: verdictRetry},
		},
		"misconfigured never counts without proof": {
			{at: 1, class: misconfigured, want: verdictRetry}, {at: 1000, class: misconfigured, want: verdictRetry}, {at: 2000, class: misconfigured, want: verdictRetry},
		},
		"an unknown class is as unavailable": {{at: 1, want: verdictRetry}, {at: 1000, want: verdictRetry}, {at: 1001, several: true, want: verdictSingle}},

		"a first failure has no proof": {{at: 10, class: unavailable, accepted: 9, want: verdictRetry}},
		"unavailable never counts with proof either": {
			{at: 10, class: unavailable, want: verdictRetry},
			{at: 20, class: unavailable, accepted: 15, want: verdictRetry},
			{at: 1000, class: misconfigured, accepted: 900, want: verdictRetry},
			{at: 2000, class: unavailable, accepted: 1900, want: verdictRetry},
		},
		"an unavailability before it is a failure to prove against": {
			{at: 10, class: unavailable, want: verdictRetry},
			{at: 20, class: refused, accepted: 15, want: verdictCount},
			{at: 30, class: unavailable, accepted: 25, want: verdictRetry},
			{at: 40, class: rejected, want: verdictCount},
		},
		"proof counts once": {
			{at: 10, class: refused, want: verdictRetry},
			{at: 20, class: refused, accepted: 15, want: verdictCount},
			{at: 30, class: refused, accepted: 15, want: verdictRetry},
			{at: 40, class: refused, accepted: 35, want: verdictCount},
		},
		"a request that began before the failure proves nothing": {
			{at: 10, class: refused, want: verdictRetry},
			{at: 20, class: refused, accepted: 9, want: verdictRetry},
			{at: 30, class: refused, accepted: 20, want: verdictRetry}, // at the same moment
			{at: 40, class: refused, accepted: 31, want: verdictCount},
		},
		"proof looks for the row among several": {
			{at: 10, class: unavailable, several: true, want: verdictSingle},
			{at: 20, class: unavailable, several: true, accepted: 15, want: verdictHalve},
			{at: 30, class: refused, several: true, searching: true, accepted: 25, want: verdictHalve},
		},

		"refused counts once in a while": {
			{at: 1, class: refused, want: verdictRetry},
			{at: 300, class: refused, want: verdictRetry},
			{at: 301, class: refused, want: verdictCount},
			{at: 600, class: refused, want: verdictRetry},
			{at: 601, class: refused, want: verdictCount},
		},
		"refused counts from the first in a row": {
			{at: 1, class: refused, want: verdictRetry},
			{at: 200, class: unavailable, want: verdictRetry},
			{at: 400, class: refused, want: verdictRetry},
			{at: 699, class: refused, want: verdictRetry},
			{at: 700, class: refused, want: verdictCount},
		},
		"refused among several counts towards nothing": {
			{at: 1, class: refused, several: true, want: verdictHalve},
			{at: 400, class: refused, want: verdictRetry},
			{at: 700, class: refused, want: verdictCount},
		},
		"a count with proof begins the wait anew": {
			{at: 1, class: refused, want: verdictRetry},
			{at: 310, class: refused, accepted: 305, want: verdictCount},
			{at: 311, class: refused, accepted: 305, want: verdictRetry},
			{at: 610, class: refused, accepted: 305, want: verdictCount},
		},

		"a receiver that sends Retry-After is not at fault": {
			{at: 1, class: unavailable, want: verdictRetry},
			{at: 10, class: unavailable, after: 5, accepted: 5, want: verdictRetry},
			{at: 20, class: refused, after: 5, accepted: 15, want: verdictRetry},
			{at: 30, class: refused, several: true, after: 5, accepted: 25, want: verdictSingle},
			{at: 400, class: refused, after: 5, accepted: 25, want: verdictRetry},
			{at: 401, class: refused, accepted: 400, want: verdictRetry},
			{at: 402, class: refused, accepted: 400, want: verdictRetry},
		},
	}
	epoch := time.Unix(1e9, 0)
	second := func(n int) time.Time { return epoch.Add(time.Duration(n) * time.Second) }
	for name, attempts := range tests {
		t.Run(name, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.ProofWait = 300 * time.Second
			rw, c, l := &row{}, newCore(cfg, nil, nil), &lane{Receiver: &receiver{}}
			for i, a := range attempts {
				if a.accepted > 0 {
					setAccepted(l.Receiver, second(a.accepted))
				}
				rw.Proof = l.Receiver.Breaker.AcceptedSince(rw.LastFailed)
				f := failure{
					Outcome: sink.Outcome{Class: a.class}, single: !a.several, bisecting: a.searching,
					retryAfter: time.Duration(a.after) * time.Second,
				}
				if got := c.judge(l, rw, &f, second(a.at)); got != a.want {
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
				if got := delay(tt.n, initial, most, func() float64 { return random }); got != want {
					t.Errorf("got %s with %v at random, want %s", got, random, want)
				}
			}
		})
	}
	for _, same := range []time.Duration{1, time.Hour, 1<<63 - 1} {
		if got := delay(1<<30, same, same, func() float64 { return 0 }); got != same {
			t.Errorf("from %s to %s: %s", same, same, got)
		}
	}
	if got := delay(40, 1, 1<<62, func() float64 { return 0 }); got <= 0 {
		t.Errorf("overflow: %s", got)
	}
}
