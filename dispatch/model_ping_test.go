package dispatch

import (
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// sentPing is a ping in flight.
type sentPing struct {
	*ping
	began time.Time
}

// sendPings takes the pings of the core and checks when there may be one:
//
//   - after the refusal of a row, if no other lane waits for the receiver
//   - one at a time
//   - since the last accepted row, no more than one row needs to become FAILED
func (w *coreModel) sendPings() {
	for p := w.core.nextPing(); p != nil; p = w.core.nextPing() {
		if w.named[p.kind] {
			w.t.Fatalf("a ping to %s, which rows name", p.to.Endpoint)
		}
		by := w.endpointNamed(w.limits[p.kind].Endpoint)
		if under := slices.ContainsFunc(w.pings, func(o sentPing) bool { return o.to == p.to }); under || !w.canPing || w.ended {
			w.t.Fatalf("a ping to %s, one under way %v, possible %v, ended %v", p.to.Endpoint, under, w.canPing, w.ended)
		}
		if by.pings > w.cfg.MaxRetries || w.now.Before(by.nextPing) {
			w.t.Fatalf("a ping to %s after %d proofs at %v, the next may go at %v", p.to.Endpoint, by.pings, w.now, by.nextPing)
		}
		lanes := 0
		for name, left := range w.queue {
			if len(left) > 0 && !w.onHold(name) && !w.pauses[name.Outbox] && w.endpointNamed(w.limits[name.Kind].Endpoint) == by {
				lanes++
			}
		}
		if lanes > 1 {
			w.t.Fatalf("a ping to %s, which %d lanes wait for", p.to.Endpoint, lanes)
		}
		w.pings = append(w.pings, sentPing{p, w.now})
	}
}

func (w *coreModel) answerPing(t *rapid.T) {
	if len(w.pings) == 0 {
		return
	}
	p := w.pings[0]
	w.pings = w.pings[1:]
	classes := []sink.Class{sink.Delivered, sink.Delivered, sink.Refused, sink.Rejected, sink.Unavailable, sink.Misconfigured}
	if w.down {
		classes = classes[2:]
	}
	res := sink.Result{Outcome: outcomeOf(rapid.SampledFrom(classes).Draw(t, "pinged"))}
	by := w.endpointNamed(w.limits[p.kind].Endpoint)
	by.nextPing = w.now.Add(w.cfg.Backoff.Initial)
	if res.Class == sink.Delivered {
		by.pings++
		by.recordAccepted(w, later(p.began, p.after.Add(1)))
	}
	w.core.pinged(p.ping, &res, true, p.began, w.now)
	w.check()
}
