package dispatch

import (
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// receiver is what the core knows of the sink's receiver.
type receiver struct {
	// accepted is the latest beginning of a request of which it took a row.
	accepted time.Time
}

// livedSince reports whether the receiver took a row in a request that began
// after t. A request that began earlier may have been answered late and proves
// nothing about the time between.
func (r *receiver) livedSince(t time.Time) bool {
	return !t.IsZero() && r.accepted.After(t)
}

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
)

// judge decides what a failed attempt means. It reads and then updates what the
// row remembers of its failures.
//
// A receiver that names the time to come back is alive and busy: that is no
// row's fault, whatever it takes from others meanwhile.
func judge(rw *row, class sink.Class, f failure, recv *receiver, proofWait time.Duration, now time.Time) verdict {
	proof := recv.livedSince(rw.failed)
	rw.failed = now
	if class != sink.Refused {
		rw.refused = time.Time{} // refusals are counted from the first in a row
	}
	switch {
	case f.retryAfter > 0 && class != sink.Rejected:
		return again
	case !f.alone && (proof || class == sink.Rejected):
		return halve
	case !f.alone && class == sink.Refused:
		return single
	case !f.alone:
		return again
	case proof || class == sink.Rejected:
		rw.refused = now
		return count
	case class != sink.Refused:
		return again
	}
	if rw.refused.IsZero() {
		rw.refused = now
	}
	if now.Sub(rw.refused) < proofWait {
		return again
	}
	rw.refused = now
	return count
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
