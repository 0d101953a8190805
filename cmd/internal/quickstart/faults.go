package quickstart

import (
	"math/rand/v2"
	"sync"
)

// fault is what the receiver does with a request. It takes the rows of a request
// only under none, so that a fault never makes a duplicate.
type fault int

const (
	noFault      fault = iota
	unavailable        // 503 Service Unavailable
	serverError        // 500 Internal Server Error
	disconnected       // the connection is closed in place of an answer
	faultKinds
)

// maxStrikes is how often a row may be in a request that fails. A row is FAILED
// after more than dispatch.max-retries (3) counted failures, so no row is.
const maxStrikes = 2

// faults chooses the requests that fail.
type faults struct {
	rate   float64
	random func() float64

	mu      sync.Mutex
	strikes map[order]int // of the rows that wait for their next try
	count   faultCount
}

// faultCount says which requests failed so far, and what became of their rows.
type faultCount struct {
	requests    int // all of them
	failed      [faultKinds]int
	retriedRows int // retriedRows that were taken at a later try
	maxTries    int // the most tries that such a row took
}

func newFaults(rate float64) *faults {
	return &faults{rate: rate, random: rand.Float64, strikes: map[order]int{}}
}

// choose decides what happens to a request with these rows.
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

// total is how many requests failed.
func (c *faultCount) total() int {
	n := 0
	for _, failed := range c.failed {
		n += failed
	}
	return n
}
