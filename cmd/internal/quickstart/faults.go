package quickstart

import (
	"math/rand/v2"
	"sync"
)

// fault is the way in which the receiver fails a request. It accepts rows only
// under noFault, so that a fault never causes a duplicate.
type fault int

const (
	noFault      fault = iota
	unavailable        // 503 Service Unavailable
	serverError        // 500 Internal Server Error
	disconnected       // the connection is closed without a response
	faultKinds
)

// maxStrikes is the number of failed requests that a row may be in. A row is marked
// FAILED after more than dispatch.max-retries (3) counted failures, so no row is.
const maxStrikes = 2

// faults picks the requests that fail.
type faults struct {
	rate   float64
	random func() float64

	mu      sync.Mutex
	strikes map[order]int // failed requests so far, of rows not yet accepted
	count   faultCount
}

// faultCount counts the requests so far and the rows that were retried.
type faultCount struct {
	requests    int // failed ones included
	failed      [faultKinds]int
	retriedRows int // rows accepted after at least one failed request
	maxTries    int // the largest number of attempts of such a row
}

func newFaults(rate float64) *faults {
	return &faults{rate: rate, random: rand.Float64, strikes: map[order]int{}}
}

// choose picks the fault of a request with these rows, or noFault.
func (f *faults) choose(rows []order) fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count.requests++
	if f.rate > 0 && f.random() < f.rate && f.mayFail(rows) {
		kind := unavailable + fault(f.random()*float64(faultKinds-unavailable))
		f.count.failed[kind]++
		for _, r := range rows {
			f.strikes[r]++
		}
		return kind
	}

	for _, r := range rows {
		if n := f.strikes[r]; n > 0 {
			f.count.retriedRows++
			f.count.maxTries = max(f.count.maxTries, n+1)
			delete(f.strikes, r)
		}
	}
	return noFault
}

// mayFail reports whether each of the rows may fail once more.
func (f *faults) mayFail(rows []order) bool {
	for _, r := range rows {
		if f.strikes[r] >= maxStrikes {
			return false
		}
	}
	return true
}

func (f *faults) counts() faultCount {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count
}

// total returns the number of failed requests.
func (c *faultCount) total() int {
	n := 0
	for _, failed := range c.failed {
		n += failed
	}
	return n
}
