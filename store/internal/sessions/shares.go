package sessions

import "sync"

// maxShares is how many sessions of each purpose the stores beside one have together. Calls wait for their turn.
const maxShares = 4

// Shares are the sessions that stores beside one share. S has a session for each purpose, and opens none before a call
// needs it. The first S is that of the store that has them. All methods are safe for concurrent use.
type Shares[S any] struct {
	owner *Lifetime
	open  func() (S, error)

	mu   sync.Mutex
	sets []S
	n    int
}

// NewShares returns the shares of a store. own are its sessions, and open returns more, which end with its lifetime.
func NewShares[S any](owner *Lifetime, own S, open func() (S, error)) *Shares[S] {
	return &Shares[S]{owner: owner, open: open, sets: []S{own}}
}

// Next returns the sessions of another store, in turn.
func (s *Shares[S]) Next() (S, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.sets) < maxShares {
		set, err := s.open()
		if err != nil {
			return set, err
		}
		s.sets = append(s.sets, set)
	}
	s.n++
	return s.sets[s.n%maxShares], nil
}

// Of returns all sessions if they end with a lifetime.
func (s *Shares[S]) Of(life *Lifetime) []S {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owner != life {
		return nil
	}
	return s.sets
}
