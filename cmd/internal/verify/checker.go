package verify

import (
	"cmp"
	"encoding/binary"
	"hash/maphash"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/deploy/inbox/chain"
)

// Options of a Checker.
type Options struct {
	// Slack is the distance of two values of Row.Order up to which rows have no order between
	// them, because the table does not tell which transaction committed first.
	Slack int64
	// MaxFindings limits the findings of each kind in a report; 0 means 100. Counts are not limited.
	MaxFindings int
}

// defaultMaxFindings fills a screen.
const defaultMaxFindings = 100

// Checker joins rows and arrivals. It is for one goroutine.
type Checker struct {
	options Options
	seed    maphash.Seed

	entries []entry
	index   map[uint64]uint32 // hash of the id to the entry; a taken hash continues at the next number
	ids     arena
	lanes   map[string]uint32
	names   []string // of lanes, by number; 0 is no lane

	round uint32
	last  map[int]int64 // the latest arrival of each source

	chains *chain.Checker
}

// entry is an id with its row, its arrivals, or both. Its size decides how many rows fit into memory.
type entry struct {
	id      uint64 // in ids
	order   int64
	first   int64  // when it arrived first, in nanoseconds; 0 if it did not
	want    uint64 // hash of the row's sum; 0 if unknown
	got     uint64 // hash of the first arrival's sum
	lane    uint32
	round   uint32 // the round that gave the row
	copies  uint32 // arrivals
	state   State
	differs bool // two arrivals differ
	gap     bool // see Gap
}

// New returns a checker in its first round.
func New(o Options) *Checker {
	if o.MaxFindings == 0 {
		o.MaxFindings = defaultMaxFindings
	}
	return &Checker{
		options: o, seed: maphash.MakeSeed(), index: map[uint64]uint32{}, lanes: map[string]uint32{"": 0}, names: []string{""},
		round: 1, last: map[int]int64{}, chains: chain.New(),
	}
}

// Row takes a row of the outbox. The last row of an id counts.
func (c *Checker) Row(r Row) {
	e := c.at(r.ID)
	e.order, e.state, e.want, e.round = r.Order, r.State, c.hashSum(r.Sum), c.round
	lane, known := c.lanes[r.Lane]
	if !known {
		lane = uint32(len(c.names))
		name := strings.Clone(r.Lane)
		c.lanes[name], c.names = lane, append(c.names, name)
	}
	e.lane = lane
}

// Arrive takes a receipt.
func (c *Checker) Arrive(a Arrival) {
	at := max(c.last[a.Source]+1, nanoseconds(a.At))
	c.last[a.Source] = at
	e, sum := c.at(a.ID), c.hashSum(a.Sum)
	switch {
	case e.copies == 0:
		e.first, e.got = at, sum
	case sum != 0 && e.got != 0:
		e.differs = e.differs || sum != e.got
	default:
		e.got = max(e.got, sum)
	}
	e.first = min(e.first, at)
	e.gap = e.gap || c.chains.Accept(a.Chain) == chain.Gap
	if e.copies < math.MaxUint32 {
		e.copies++
	}
}

// Round forgets the rows of the outbox, which the caller reads again, and the arrivals before
// keep of ids that no row of the last round had. A later copy of such an id counts as new.
func (c *Checker) Round(keep time.Time) {
	old, round := *c, c.round
	c.round++
	c.entries, c.ids = nil, arena{}
	clear(c.index)
	for i := range old.entries {
		e := old.entries[i]
		if e.copies == 0 || e.round != round && e.first < nanoseconds(keep) {
			continue
		}
		to := c.at(old.ids.at(e.id))
		id := to.id
		*to = e
		to.id, to.round, to.lane = id, 0, 0
	}
	c.lanes, c.names = map[string]uint32{"": 0}, []string{""}
}

// Report joins rows and arrivals.
func (c *Checker) Report() *Report {
	r := &Report{Findings: []Finding{}}
	found := map[Kind][]Finding{}
	add := func(k Kind, e *entry, n int, behind string) {
		*r.count(k) += n
		if len(found[k]) < c.options.MaxFindings {
			found[k] = append(found[k], Finding{k, c.ids.at(e.id), c.names[e.lane], behind, int(e.copies)})
		}
	}
	for i := range c.entries {
		e := &c.entries[i]
		if e.round != c.round {
			r.Unknown++
			continue
		}
		c.count(r, e)
		switch {
		case e.copies > 0:
		case e.state == Owed:
			add(Lost, e, 1, "")
		case e.state == Completed:
			add(FalseCompleted, e, 1, "")
		}
		if e.differs || e.want != 0 && e.got != 0 && e.want != e.got {
			add(BodyDiffers, e, 1, "")
		}
		if e.gap {
			add(Gap, e, 1, "")
		}
		if e.copies > 1 {
			add(Duplicate, e, int(e.copies)-1, "")
		}
	}
	c.eachInversion(func(e, behind *entry) { add(OutOfOrder, e, 1, c.ids.at(behind.id)) })
	for _, k := range Kinds() {
		r.Findings = append(r.Findings, found[k]...)
	}
	return r
}

func (c *Checker) count(r *Report, e *entry) {
	r.Rows++
	switch {
	case e.state == Completed:
		r.Completed++
	case e.state == Failed:
		r.Failed++
	case e.state == Waiting && e.copies == 0:
		r.Waiting++
	}
	if e.copies > 0 {
		r.Arrived++
	}
}

// eachInversion calls found for each row that arrived first behind a later row of its lane. A FAILED
// row is a gap, whether it arrived or not.
func (c *Checker) eachInversion(found func(e, behind *entry)) {
	var arrived []uint32
	for i := range c.entries {
		if e := &c.entries[i]; e.round == c.round && e.copies > 0 && e.lane != 0 && e.state != Failed {
			arrived = append(arrived, uint32(i))
		}
	}
	slices.SortFunc(arrived, func(a, b uint32) int {
		x, y := &c.entries[a], &c.entries[b]
		return cmp.Or(cmp.Compare(x.lane, y.lane), cmp.Compare(x.first, y.first), cmp.Compare(x.order, y.order))
	})
	var last *entry
	for _, i := range arrived {
		e := &c.entries[i]
		switch {
		case last == nil || last.lane != e.lane || e.order > last.order:
			last = e
		case last.order-e.order > c.options.Slack:
			found(e, last)
		}
	}
}

// at returns the entry of an id. It is valid until the next call.
func (c *Checker) at(id string) *entry {
	for h := maphash.String(c.seed, id); ; h++ {
		i, taken := c.index[h]
		if !taken {
			c.index[h] = uint32(len(c.entries))
			c.entries = append(c.entries, entry{id: c.ids.add(id)})
			return &c.entries[len(c.entries)-1]
		}
		if e := &c.entries[i]; c.ids.is(e.id, id) {
			return e
		}
	}
}

// hashSum returns a number for a sum that is 0 only for "".
func (c *Checker) hashSum(sum string) uint64 {
	if sum == "" {
		return 0
	}
	return max(1, maphash.String(c.seed, strings.ToLower(sum)))
}

func nanoseconds(at time.Time) int64 {
	if at.IsZero() {
		return 0
	}
	return at.UnixNano()
}

// arena keeps texts one behind the other, without a header for each.
type arena struct{ chunks [][]byte }

// chunkBits is 20 because a chunk of 1 MiB wastes little and needs no copy to grow.
const chunkBits = 20

// add returns the place of a text: the number of its chunk, then its offset.
func (a *arena) add(s string) uint64 {
	need := len(s) + binary.MaxVarintLen64
	n := len(a.chunks) - 1
	if n < 0 || cap(a.chunks[n])-len(a.chunks[n]) < need {
		a.chunks = append(a.chunks, make([]byte, 0, max(need, 1<<chunkBits)))
		n++
	}
	at := uint64(n)<<32 | uint64(len(a.chunks[n]))
	a.chunks[n] = append(binary.AppendUvarint(a.chunks[n], uint64(len(s))), s...)
	return at
}

func (a *arena) bytes(at uint64) []byte {
	text := a.chunks[at>>32][uint32(at):]
	n, size := binary.Uvarint(text)
	return text[size : size+int(n)]
}

func (a *arena) at(at uint64) string            { return string(a.bytes(at)) }
func (a *arena) is(at uint64, text string) bool { return string(a.bytes(at)) == text }
