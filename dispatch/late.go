package dispatch

import (
	"time"

	lanes "github.com/sluicebox/sluicebox/dispatch/internal/lane"
	"github.com/sluicebox/sluicebox/store"
)

// Fresh rows are sent before they are claimed; package lane says which, and which of them are
// claimed late. A crash sends the rows in flight again, and those whose outcome is not
// written. So while outcomes do not reach the table, for example because the database is
// read-only, every row is claimed first: such a claim fails too, and nothing is sent.

// lateClaims decides whether fresh rows go unclaimed, and takes the answers of late claims.
type lateClaims struct {
	core    *core
	allowed func() bool // see Options.Late

	// writingSince is when the write of outcomes in flight began; zero if none is.
	writingSince time.Time
}

// maxUnwritten is how many outcomes may be unwritten while rows go unclaimed: what the senders
// may have in flight.
func (p *lateClaims) maxUnwritten() int {
	return p.core.cfg.MaxConcurrentGroups * p.core.cfg.APIBatchSize
}

// mayGo reports whether fresh rows may be sent before they are claimed.
func (p *lateClaims) mayGo(now time.Time) bool {
	writesAreSlow := !p.writingSince.IsZero() && now.Sub(p.writingSince) > lanes.ClaimAfter
	return p.allowed != nil && !writesAreSlow && p.core.outcomes.Len()+p.waiting() <= p.maxUnwritten() && p.allowed()
}

// start begins requests with fresh rows.
func (p *lateClaims) start(now time.Time) {
	if p.allowed == nil || !p.core.mayClaim(now) {
		return
	}
	if p.core.lanes.Requests.Fresh.Allowed = p.mayGo(now); p.core.lanes.Requests.Fresh.Allowed {
		p.core.lanes.StartFresh(now)
	}
}

// waiting is how many outcomes wait for a late claim.
func (p *lateClaims) waiting() (n int) {
	for rw := range p.core.lanes.Requests.Fresh.All() {
		if rw.PendingOutcome != nil {
			n++
		}
	}
	return n
}

// claiming is how many rows are being claimed late.
func (p *lateClaims) claiming() (n int) {
	for range p.core.lanes.Requests.Fresh.All() {
		n++
	}
	return n
}

// next returns rows to claim late. The caller reports them to claimed.
func (p *lateClaims) next(limit int, now time.Time) []*row {
	if p.core.ended {
		return nil
	}
	return p.core.lanes.NextLate(limit, now)
}

// claimed takes the answers for the rows of next, by position, and the timestamp written by the
// claim. No answer changes a lane: the request of the row decides. Only a locked table is noted.
func (p *lateClaims) claimed(answers []store.ClaimAnswer, at, now time.Time) {
	c := p.core
	for i, rw := range c.lanes.LateClaimed(answers, at, now) {
		if answers[i].Result == store.TableLocked {
			c.lockTable(rw.Outbox, now)
		}
		if o := rw.PendingOutcome; o != nil && rw.Copy != lanes.CopyWriting {
			rw.PendingOutcome = nil
			c.Enqueue(*o)
		}
		if l := c.lanes.Get(c.lanes.NameOf(&rw.Item)); c.ended && l != nil && l.State != lanes.Claiming && l.State != lanes.Sending {
			c.unclaimLane(l) // its request failed meanwhile
		}
	}
}

// nextOutcomes begins to write outcomes; see outcome.Queue.Next.
func (p *lateClaims) nextOutcomes(limit int, now time.Time) []outcome {
	batch := p.core.outcomes.Next(limit)
	if len(batch) > 0 {
		p.writingSince = now
	}
	return batch
}
