package dispatch

import (
	"slices"
	"time"

	lanes "github.com/sluicebox/sluicebox/dispatch/internal/lane"
	pending "github.com/sluicebox/sluicebox/dispatch/internal/outcome"
	"github.com/sluicebox/sluicebox/store"
)

// Fresh rows, and those that the table shows untried, are sent before they are claimed; package lane says
// which, and which of them are claimed late. A crash sends the rows in flight again, and those whose outcome is not
// written. So these rows wait while too many outcomes do. While outcomes do not reach the table, for example
// because the database is read-only, every row is claimed first: such a claim fails too, and nothing is sent.

// lateClaims decides whether fresh rows go unclaimed, and takes the answers of late claims.
type lateClaims struct {
	core    *core
	allowed func() bool // see Options.Late

	// writingSince is when each write of outcomes in flight began; zero if none is. Without any, dueSince is from
	// when on one was due.
	writingSince [pending.Writers]time.Time
	dueSince     time.Time

	unwritten []store.ClaimAnswer // of rows that are read, each the same
}

// maxUnwritten is how many outcomes may wait to be written while rows go unclaimed: what the senders
// may have in flight.
func (p *lateClaims) maxUnwritten() int {
	return p.core.cfg.MaxConcurrentGroups * p.core.cfg.APIBatchSize
}

// decide decides whether rows may be sent before they are claimed, or wait for outcomes to be written.
func (p *lateClaims) decide(now time.Time) {
	fresh, outcomes := &p.core.lanes.Requests.Fresh, &p.core.outcomes
	fresh.Allowed, fresh.Wait = false, false
	if p.dueSince.IsZero() && outcomes.Writing() == 0 && outcomes.Waiting() > 0 {
		p.dueSince = now // a writer is about to begin
	}
	if slow, some := p.slowFrom(); p.allowed == nil || some && !now.Before(slow) || !p.allowed() {
		return
	}
	room := p.maxUnwritten() - p.waiting()
	fresh.Allowed = outcomes.Len()-outcomes.Writing() <= room
	// Not for outcomes that the table refuses or whose row is locked: they may take long.
	fresh.Wait = outcomes.Refused() == 0 && outcomes.Waiting() > room
}

// slowFrom is from when on a write of outcomes in flight, or due, counts as slow; false if there is none.
func (p *lateClaims) slowFrom() (slow time.Time, ok bool) {
	since := p.dueSince
	for _, began := range p.writingSince {
		if !began.IsZero() && (since.IsZero() || began.Before(since)) {
			since = began
		}
	}
	return since.Add(lanes.ClaimAfter), !since.IsZero()
}

// start begins requests with fresh rows.
func (p *lateClaims) start(now time.Time) {
	if p.allowed == nil || !p.core.mayClaim(now) {
		return
	}
	if p.decide(now); p.core.lanes.Requests.Fresh.Allowed {
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

// checked takes the result of reading the rows of a request instead of claiming them, by position, and when they
// were read. It reports whether the request goes on; otherwise its rows are to be claimed.
func (p *lateClaims) checked(req *request, untried []bool, at, now time.Time) bool {
	if slices.Contains(untried, false) {
		return false
	}
	req.Checked(at)
	for len(p.unwritten) < len(untried) {
		p.unwritten = append(p.unwritten, store.ClaimAnswer{Result: store.Claimed, Unwritten: true})
	}
	p.core.claimed(req, p.unwritten[:len(untried)], at, now)
	return true
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

// writeEnded records that the write of a writer has ended.
func (p *lateClaims) writeEnded(writer int) {
	p.writingSince[writer], p.core.lanes.Requests.Fresh.Wait = time.Time{}, false
}

// nextOutcomes begins to write outcomes with a writer; see outcome.Queue.Next.
func (p *lateClaims) nextOutcomes(writer, limit int, now time.Time) []outcome {
	batch := p.core.outcomes.Next(writer, limit)
	if len(batch) > 0 {
		p.writingSince[writer], p.dueSince = now, time.Time{}
	}
	return batch
}
