package lane

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// In any span of time at most rate × span requests are sent, and one, and what the credit gives.
// A sender that always asks gets nearly as many.
func TestPace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := rapid.Float64Range(0.1, 5000).Draw(t, "rate")
		p := newPace(rate)
		now := time.Unix(1e9, 0)
		begin := now
		var sent []time.Time
		for range 300 {
			if p.allows(now) {
				p.sent(now)
				sent = append(sent, now)
				continue
			}
			now = p.next.Add(time.Duration(rapid.IntRange(0, 5000).Draw(t, "late")) * time.Microsecond)
		}
		for i := range sent {
			for j := i; j < len(sent); j++ {
				span := sent[j].Sub(sent[i]) + paceCredit
				if n := float64(j - i); n > rate*span.Seconds()+1.01 {
					t.Fatalf("%v requests in %s at %g/s", n+1, span, rate)
				}
			}
		}
		if want := rate * (now.Sub(begin) - paceCredit).Seconds() * 0.5; float64(len(sent)) < want {
			t.Fatalf("%d requests in %s at %g/s", len(sent), now.Sub(begin), rate)
		}
	})
	var unlimited pace
	for range 3 {
		now := time.Unix(1, 0)
		if !unlimited.allows(now) {
			t.Error("no limit is a limit")
		}
		unlimited.sent(now)
	}
}
