// Package chain lets a receiver notice by itself that a message is missing or out of order, by the
// header Sluicebox-Chain (dispatch.chain: true). It has no dependency, so that it can be copied.
//
// A message has the name of its chain, the number of messages of it that the receiver had accepted
// when the relay sent the message, the hash of the messages before, and the hash with it. The
// receiver knows a hash if it has accepted a message with it. A message follows if the hash before it
// is known; else a message is missing, if the receiver has seen the chain before. Hashes are needed until
// a later message has a higher number.
//
// A verdict is no reason to drop a message. Only its id tells whether it is a duplicate.
package chain

import (
	"container/list"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Verdict is what the header of a message says.
type Verdict uint8

// Verdicts.
const (
	// None: the message has no header, or one that cannot be read.
	None Verdict = iota
	// Follows: no message is missing before this one.
	Follows
	// Repeat: the message was accepted before, or it arrives behind a later one. The latter may be the
	// message that was missing at a Gap.
	Repeat
	// Joined: the checker has not seen the chain, and this is not its first message. It says
	// nothing of the messages before. The first one may be a late copy, so a message with a higher
	// number joins again, until one has followed with a higher number.
	Joined
	// Gap: a message before this one is missing. It may still arrive, out of order.
	Gap
)

// String returns the verdict as a word.
func (v Verdict) String() string {
	return [...]string{"none", "follows", "repeat", "joined", "gap"}[v]
}

const (
	maxChains = 100_000 // chains that are remembered; a chain that was forgotten is joined again
	maxHashes = 10_000  // of a chain; more than any request has
)

// Checker has the state of each chain. It is safe for concurrent use.
type Checker struct {
	mu     sync.Mutex
	chains map[string]*list.Element
	recent list.List // of *state, the last used first
}

type state struct {
	name     string
	accepted uint64
	joined   bool     // no message has followed with a higher number
	known    []string // the hashes since the number
}

// New returns a checker that has seen nothing.
func New() *Checker { return &Checker{chains: map[string]*list.Element{}} }

// Accept takes the header of a message that the receiver accepts. Call it in the order of the
// answers, before the answer is sent, and once for each copy.
func (c *Checker) Accept(header string) Verdict {
	part := strings.Split(header, ";")
	if len(part) != 4 {
		return None
	}
	accepted, err := strconv.ParseUint(part[1], 10, 64)
	if err != nil {
		return None
	}
	before, hash := part[2], part[3]

	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.chains[part[0]]
	if e == nil {
		first := accepted == 0 && before == "0"
		c.remember(&state{name: part[0], accepted: accepted, joined: !first, known: []string{before, hash}})
		if first {
			return Follows
		}
		return Joined
	}
	c.recent.MoveToFront(e)
	return e.Value.(*state).accept(accepted, before, hash)
}

func (s *state) accept(accepted uint64, before, hash string) Verdict {
	if accepted < s.accepted || accepted == s.accepted && slices.Contains(s.known, hash) {
		return Repeat
	}
	verdict := Gap
	switch {
	case slices.Contains(s.known, before):
		verdict = Follows
		if accepted > s.accepted {
			s.known, s.joined = append(s.known[:0], before), false
		}
	case s.joined:
		verdict = Joined
		if accepted > s.accepted {
			s.known = append(s.known[:0], before)
		}
	default:
		s.known = append(s.known, before)
	}
	s.accepted, s.known = accepted, append(s.known, hash)
	if len(s.known) > maxHashes {
		s.known = slices.Delete(s.known, 0, maxHashes/2)
	}
	return verdict
}

// remember adds a chain, and forgets the one that was not used for the longest time.
func (c *Checker) remember(s *state) {
	s.known = slices.Clip(s.known)
	s.name = strings.Clone(s.name)
	c.chains[s.name] = c.recent.PushFront(s)
	if c.recent.Len() > maxChains {
		delete(c.chains, c.recent.Remove(c.recent.Back()).(*state).name)
	}
}
