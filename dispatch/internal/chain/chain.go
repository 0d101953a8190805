// Package chain gives each row of a lane a header by which its receiver notices that a row is missing
// or out of order. It is pure.
//
// A header has four parts, for example
//
//		Sluicebox-Chain: 5f0c9e21b7d3a846-1a;41;9f86d081884c7d65;2c26b46b68ffc68f
//
//	  - the chain: the relay's session, and the number of the chain in it
//	  - how many rows of the chain the receiver had accepted when the request began
//	  - the hash of the rows before this one
//	  - the hash with this one: FNV-1a of 64 bits over the hash before and the id
//
// A chain advances by a row when the receiver has accepted it, and by nothing else. So a row that is
// FAILED, skipped or settled elsewhere is no gap: the next row continues at the last accepted one. A
// repeat has the same hashes in the same chain; the number may be higher, if rows before it in its
// request were accepted. If an answer was lost, the receiver has accepted a row
// that the chain does not know, and the next row may fork from the row before. So a receiver keeps
// the hashes since the last count, which are as many as a request has rows of a lane; package
// deploy/inbox/chain has the rules.
//
// The state is in memory alone, because a write for each row is too dear. Each session, and each lane
// that was evicted, starts another chain, and nothing is proven between two chains.
package chain

import (
	"hash/maphash"
	"strconv"
)

// maxLanes is how many lanes half of a Chains has. Both halves take about 20 MB.
const maxLanes = 1 << 17

// Chains are the chains of the lanes of one sink in one session. It is not safe for concurrent use.
type Chains[K comparable] struct {
	session uint64
	started uint64
	seed    maphash.Seed

	// A full half replaces the other one: a lane that is used stays.
	recent, before map[uint64]Link
	max            int
}

// New returns no chains. The session is random, because no two sessions may have the same.
func New[K comparable](session uint64) *Chains[K] {
	return &Chains[K]{session: session, seed: maphash.MakeSeed(), recent: map[uint64]Link{}, max: maxLanes}
}

// Link is the place of a row in a chain, or that of the last accepted row. The zero Link is of no
// chain.
type Link struct{ session, chain, count, hash uint64 }

// Of returns the place of the last row that the receiver of a lane has accepted.
func (c *Chains[K]) Of(lane K) Link {
	key := maphash.Comparable(c.seed, lane)
	link, ok := c.recent[key]
	if ok {
		return link
	}
	if link, ok = c.before[key]; !ok {
		c.started++
		link = Link{session: c.session, chain: c.started}
	}
	c.put(key, link)
	return link
}

// Accept records the place of the last row that the receiver of a lane has accepted.
func (c *Chains[K]) Accept(lane K, link Link) { c.put(maphash.Comparable(c.seed, lane), link) }

// Restart begins another chain, because what the receiver has accepted is no chain.
func (c *Chains[K]) Restart(lane K) {
	c.started++
	c.Accept(lane, Link{session: c.session, chain: c.started})
}

func (c *Chains[K]) put(key uint64, link Link) {
	if len(c.recent) >= c.max {
		c.before, c.recent = c.recent, map[uint64]Link{} // without a size: the core waits for this
	}
	c.recent[key] = link
}

// Next returns the place of the row that follows.
func (l Link) Next(id string) Link {
	const offset, prime = 14695981039346656037, 1099511628211 // of FNV-1a
	h := uint64(offset)
	for i := range 8 {
		h = (h ^ l.hash>>(8*i)&0xff) * prime
	}
	for i := range len(id) {
		h = (h ^ uint64(id[i])) * prime
	}
	l.count, l.hash = l.count+1, h
	return l
}

// Valid reports whether the link is of a chain.
func (l Link) Valid() bool { return l.chain != 0 }

// Header returns the header of the row that follows l in a request. accepted is the place of the last
// accepted row.
func (l Link) Header(next, accepted Link) string {
	b := make([]byte, 0, 80)
	b = strconv.AppendUint(b, l.session, 16)
	b = append(b, '-')
	b = strconv.AppendUint(b, l.chain, 16)
	b = append(b, ';')
	b = strconv.AppendUint(b, accepted.count, 10)
	b = append(b, ';')
	b = strconv.AppendUint(b, l.hash, 16)
	b = append(b, ';')
	return string(strconv.AppendUint(b, next.hash, 16))
}
