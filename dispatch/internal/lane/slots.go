package lane

import (
	"slices"
	"sync"
	"time"
)

// Slots are the requests that a destination takes at a time, and its rate limit. The dispatchers
// that share them have a Share each. Slots are safe for concurrent use.
//
// A slot that becomes free goes to the share that has waited longest, and a share that wants another
// one waits again behind the others. So the shares take turns, request by request, however many rows
// each of them has. With a rate limit the share that has waited longest sends the next request.
type Slots struct {
	mu      sync.Mutex
	size    int
	rate    float64
	used    int // granted ones included
	pace    pace
	waiting []*Share // the longest first
}

// NewSlots returns the slots for a number of requests at a time and in a second; a rate of 0 is no
// limit.
func NewSlots(size int, rate float64) *Slots {
	return &Slots{size: size, rate: rate, pace: newPace(rate)}
}

// Configure changes the limits. Requests in flight stay.
func (s *Slots) Configure(size int, rate float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.size = size; s.rate != rate {
		next := s.pace.next
		s.rate, s.pace = rate, newPace(rate)
		s.pace.next = next
	}
	s.grant()
}

// Usage returns the requests in flight, their limit, and the shares that wait.
func (s *Slots) Usage() (used, size, waiting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used, s.size, len(s.waiting)
}

// Join returns a share. wake is called when a request may be sent that take has refused, from any
// goroutine. It must return at once and call no method of the share. nil: the slots have no other share.
func (s *Slots) Join(wake func()) *Share { return &Share{slots: s, wake: wake} }

// Share is the part of one dispatcher. The core that has it is not safe for concurrent use.
type Share struct {
	slots   *Slots
	wake    func()
	held    int // slots of requests in flight
	granted int // slots for the next requests
	waits   bool
	left    bool
}

// paced reports whether there is a rate limit.
func (s *Share) paced() bool {
	s.slots.mu.Lock()
	defer s.slots.mu.Unlock()
	return s.slots.pace.interval > 0
}

// free is how many requests of this share find a slot at once.
func (s *Share) free() int {
	s.slots.mu.Lock()
	defer s.slots.mu.Unlock()
	if len(s.slots.waiting) > 0 && s.slots.waiting[0] != s {
		return s.granted
	}
	return s.granted + max(0, s.slots.size-s.slots.used)
}

// take takes a slot for a request that is sent now. If it returns false, the share waits, and is
// woken.
func (s *Share) take(now time.Time) bool {
	of := s.slots
	of.mu.Lock()
	defer of.mu.Unlock()
	if s.granted > 0 {
		s.granted--
		s.held++
		return true
	}
	first := len(of.waiting) == 0 || of.waiting[0] == s
	if !first || s.left || of.used >= of.size || !of.pace.allows(now) {
		if !s.waits && !s.left {
			s.waits = true
			of.waiting = append(of.waiting, s)
		}
		return false
	}
	of.leave(s)
	of.used++
	s.held++
	of.pace.sent(now)
	of.grant()
	return true
}

// giveBack gives back the slot of a request.
func (s *Share) giveBack() {
	s.slots.mu.Lock()
	defer s.slots.mu.Unlock()
	if s.held > 0 { // none after Leave
		s.held--
		s.slots.used--
	}
	s.slots.grant()
}

// rest says that no request of the share waits for a slot.
func (s *Share) rest() {
	s.slots.mu.Lock()
	defer s.slots.mu.Unlock()
	if s.granted == 0 && !s.waits {
		return
	}
	s.slots.used -= s.granted
	s.granted = 0
	s.slots.leave(s)
	s.slots.grant()
}

// Leave gives back all slots, also those of requests that are never answered.
func (s *Share) Leave() {
	s.slots.mu.Lock()
	defer s.slots.mu.Unlock()
	s.slots.used -= s.granted + s.held
	s.granted, s.held, s.left = 0, 0, true
	s.slots.leave(s)
	s.slots.grant()
}

// nextSend is when the rate limit allows the next request; false if another share sends it, or if it
// waits for a slot.
func (s *Share) nextSend() (at time.Time, ok bool) {
	of := s.slots
	of.mu.Lock()
	defer of.mu.Unlock()
	first := len(of.waiting) == 0 || of.waiting[0] == s
	return of.pace.next, of.pace.interval > 0 && first && of.used < of.size
}

// claimable reports whether the rate limit allows another claim, if some claimed requests wait.
func (s *Share) claimable(waiting int, now time.Time) bool {
	s.slots.mu.Lock()
	defer s.slots.mu.Unlock()
	return s.slots.pace.claimable(waiting, now)
}

// claimableAt is when the rate limit allows another claim.
func (s *Share) claimableAt(waiting int, now time.Time) time.Time {
	s.slots.mu.Lock()
	defer s.slots.mu.Unlock()
	return s.slots.pace.claimableAt(waiting, now)
}

// grant gives free slots to the shares that have waited longest. With a rate limit it wakes the first
// of them, which knows the time. The caller holds the lock.
func (s *Slots) grant() {
	for len(s.waiting) > 0 && s.used < s.size {
		first := s.waiting[0]
		if s.pace.interval == 0 {
			s.leave(first)
			s.used++
			first.granted++
		}
		if first.wake != nil {
			first.wake()
		}
		if s.pace.interval > 0 {
			return
		}
	}
}

// leave takes a share out of the queue. The caller holds the lock.
func (s *Slots) leave(share *Share) {
	if share.waits {
		share.waits = false
		s.waiting = slices.DeleteFunc(s.waiting, func(other *Share) bool { return other == share })
	}
}
