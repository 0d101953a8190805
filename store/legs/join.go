package legs

import (
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// plan is what the routes of an outbox ask of a row.
type plan struct {
	box  *store.Outbox
	rule store.LegRule
}

func newPlan(box *store.Outbox) *plan { return &plan{box, box.LegRule()} }

// dropsSettled reports whether a leg need not deliver a row that was found settled. Otherwise the
// row may be settled without this leg.
func (p *plan) dropsSettled(matched store.LegSet, leg int) bool {
	legs, anyOf := p.rule.Needed(matched)
	return !anyOf && legs.Has(leg)
}

// drops is plan.dropsSettled, unless the row was settled without the leg before its route was required.
func (j *join) drops(p *plan, leg int) bool {
	return p.dropsSettled(j.matched, leg) && !j.again.Has(leg)
}

func (p *plan) names(legs store.LegSet) (names []string) {
	for i := range legs.All() {
		names = append(names, p.box.Routes[i].Name)
	}
	return names
}

// claimFresh is how long a claim by one leg answers the claims of others. It is far below every
// sensible takeover timeout.
const claimFresh = 5 * time.Second

// join is what is known of a row whose legs are not over. It is pure. A leg that matched is in
// exactly one of done, failed, spilled and discarded, or in none of them.
type join struct {
	matched, done, failed, spilled, discarded store.LegSet

	// live are the legs that hold the row in memory and nowhere else. holders are those that
	// claimed the row and have neither ended nor given it back.
	live, holders store.LegSet

	retries map[int]store.LegRetry // of legs; never changed in place

	claimedAt time.Time // the latest claim of this leader; zero: none
	unwritten bool      // it wrote nothing
	settled   bool      // the row has its outcome, or was found settled
	recorded  bool      // there is a LegRow
	unmarked  bool      // no mark covers the row, so that each end is recorded
	behind    bool      // the record does not say what the join knows

	// again are the legs that are to deliver the row whatever their marks and its status, and the FAILED
	// ones whose requeue is under way; see store.LegRow.
	again store.LegSet
}

// enter takes over what is known of a row that enters memory. That its legs have a verdict does not
// show that the outcome was written: the routes may be others since, or a crash came between. The
// table tells.
func (j *join) enter(p *plan, r *Row) {
	if j.live|j.holders == 0 {
		j.unmarked = j.unmarked || r.Unmarked
	}
	j.matched |= r.Matched
	before, waiting := j.done, j.open()&^j.live
	j.done |= waiting & r.Passed &^ j.again
	if r.Settled {
		j.settled = true
		for i := range waiting.All() {
			if j.drops(p, i) {
				j.done = j.done.With(i)
			}
		}
	}
	j.live |= j.open()
	j.behind = j.behind || j.recorded && j.done != before && j.live == 0 // otherwise the next end records it
}

// lacks returns the outcome that the legs have decided and the row may lack, 0 if none. The end of a
// leg that holds or has spilled a row which is to be FAILED writes that.
func (j *join) lacks(p *plan) store.Status {
	v := j.verdict(p)
	if j.settled || v == store.Failed && (j.live|j.spilled != 0 || !p.box.Layout.Stores(v)) {
		return 0
	}
	return v
}

// redeliver opens the legs that decided the outcome of a row which is open in its table nevertheless.
func (j *join) redeliver(p *plan) {
	legs := j.needed(p) & j.done
	j.done, j.live, j.again = j.done&^legs, j.live|legs, j.again|legs
	j.behind = j.recorded
}

// setBack returns the FAILED legs for which a row was set back.
func (j *join) setBack() store.LegSet {
	if requeued := j.failed & j.again; requeued != 0 {
		return requeued
	}
	return j.failed
}

// reopen opens a leg whose FAILED record is gone.
func (j *join) reopen(leg int) {
	j.failed, j.live, j.again = j.failed.Without(leg), j.live.With(leg), j.again.With(leg)
	j.dropRetry(leg)
}

// restore takes over what the record of a row says; nil: there is none. Failed and spilled legs,
// retries, and legs that are to deliver the row again are known by the record alone. A leg that
// the join has seen end without a record stays done.
func (j *join) restore(p *plan, rec *store.LegRow) {
	if rec == nil && !j.recorded {
		return
	}
	if j.recorded = rec != nil; rec == nil {
		rec = &store.LegRow{}
		j.done |= j.spilled // the copy has ended with the record
		j.discarded |= j.failed
	}
	wasFailed := j.failed
	j.matched |= p.box.RouteSet(rec.Matched)
	j.failed, j.spilled, j.again = p.box.RouteSet(rec.Failed), p.box.RouteSet(rec.Spilled), p.box.RouteSet(rec.Again)
	j.discarded |= p.box.RouteSet(rec.Discarded)
	j.done = (j.done | p.box.RouteSet(rec.Done)) &^ (j.failed | j.spilled | j.discarded)
	j.live &^= j.ended() | j.spilled
	j.holders &^= j.ended()
	if wasFailed&^j.failed != 0 { // a requeue opens the row
		j.settled, j.claimedAt = j.verdict(p) != 0, time.Time{}
	}
	j.retries = nil
	for i, r := range p.box.Routes {
		if retry, has := rec.Retries[r.Name]; has {
			j.setRetry(i, retry)
		}
	}
}

// record returns the record of the row; nil if it needs none. A FAILED leg keeps it, because a
// requeue must know which legs delivered the row.
func (j *join) record(p *plan, row store.Ref) *store.LegRow {
	if j.over() && j.failed == 0 {
		return nil
	}
	rec := &store.LegRow{
		Ref: row, Matched: p.names(j.matched), Done: p.names(j.done), Failed: p.names(j.failed), Spilled: p.names(j.spilled),
		Again: p.names((j.again | j.aside(p)) & j.matched &^ (j.done | j.discarded)), Discarded: p.names(j.discarded),
	}
	for i, retry := range j.retries {
		if rec.Retries == nil {
			rec.Retries = map[string]store.LegRetry{}
		}
		rec.Retries[p.box.Routes[i].Name] = retry
	}
	return rec
}

// aside returns the legs that are to deliver the row although it has its outcome. Their routes may be
// required at the next start.
func (j *join) aside(p *plan) (legs store.LegSet) {
	if !j.settled && j.verdict(p) == 0 {
		return 0
	}
	for i := range (j.matched &^ j.ended()).All() {
		if !p.dropsSettled(j.matched, i) {
			legs = legs.With(i)
		}
	}
	return legs
}

// open are the legs that have the row in memory or are to get it.
func (j *join) open() store.LegSet { return j.matched &^ (j.ended() | j.spilled) }

// ended are the legs that are over with the row.
func (j *join) ended() store.LegSet { return j.done | j.failed | j.discarded }

// takes reports whether a leg is to deliver the row.
func (j *join) takes(leg int) bool { return (j.matched &^ j.ended()).Has(leg) }

// over reports whether every leg has ended.
func (j *join) over() bool { return j.matched&^j.ended() == 0 }

// needed returns the legs that decide the status of the row.
func (j *join) needed(p *plan) store.LegSet {
	legs, _ := p.rule.Needed(j.matched &^ j.discarded)
	return legs
}

// idle reports whether no leg needs the join in memory.
func (j *join) idle() bool { return j.live|j.holders == 0 && !j.behind }

func (j *join) setRetry(leg int, r store.LegRetry) {
	retries := make(map[int]store.LegRetry, len(j.retries)+1)
	for i, old := range j.retries {
		retries[i] = old
	}
	retries[leg] = r
	j.retries = retries
}

func (j *join) dropRetry(leg int) {
	if _, has := j.retries[leg]; !has {
		return
	}
	retries := make(map[int]store.LegRetry, len(j.retries))
	for i, old := range j.retries {
		if i != leg {
			retries[i] = old
		}
	}
	j.retries = retries
}

// verdict returns the status that the ends of the legs give the row; 0 if it is open.
func (j *join) verdict(p *plan) store.Status {
	if j.unmarked && j.open() != 0 {
		return 0 // the row is all that tells a successor of its open legs
	}
	return p.rule.Verdict(j.matched&^j.discarded, j.done, j.failed)
}

// reason returns why the legs made the row FAILED: the first needed route that failed, with its
// error and its count.
func (j *join) reason(p *plan) (text string, retries int) {
	for i := range (j.needed(p) & j.failed).All() {
		return "route " + p.box.Routes[i].Name + ": " + j.retries[i].Error, j.retries[i].Count
	}
	return "", 0
}

// end is what the end of a leg requires.
type end uint8

const (
	keep   end = iota + 1 // nothing: the join remembers it
	record                // a change of records
	settle                // the outcome of the row, perhaps with a change of records
	giveUp                // the row is given back: PENDING
	ended                 // nothing: the leg had ended
)

// settleLeg changes the join by the outcome of a leg, as it is once it is written.
func (j *join) settleLeg(leg int, o *store.Outcome) {
	switch o.Status {
	case store.Completed:
		j.done = j.done.With(leg)
		j.dropRetry(leg)
	case store.Failed:
		j.failed = j.failed.With(leg)
		j.setRetry(leg, store.LegRetry{Count: o.RetryCount, Error: o.Error})
	default:
		if j.counts(leg, o) {
			j.setRetry(leg, store.LegRetry{Count: o.RetryCount, Error: o.Error})
		}
		j.holders = j.holders.Without(leg)
		return
	}
	j.spilled, j.live, j.holders, j.again = j.spilled.Without(leg), j.live.Without(leg), j.holders.Without(leg), j.again.Without(leg)
}

// counts reports whether a Pending outcome is a counted retry, and no claim that is given back.
func (j *join) counts(leg int, o *store.Outcome) bool {
	return o.Status == store.Pending && (o.Error != "" || o.RetryCount > j.retries[leg].Count)
}

// next returns what an outcome of a leg requires, and the join after it.
func (j *join) next(p *plan, leg int, o *store.Outcome) (end, join) {
	after := *j
	if !j.takes(leg) {
		return ended, after
	}
	after.settleLeg(leg, o)
	switch {
	case o.Status == store.Pending && j.counts(leg, o):
		return record, after
	case o.Status == store.Pending:
		others := (j.done | j.failed | j.spilled).Without(leg)
		if j.settled || others|after.holders != 0 {
			return keep, after
		}
		return giveUp, after
	case !j.settled && after.verdict(p) != 0:
		after.settled = true
		return settle, after
	case j.recorded || j.unmarked || o.Status == store.Failed || o.SpilledSeq != 0:
		return record, after
	}
	return keep, after
}

// legEnd returns what accompanies an outcome of a leg; nil if it is nothing.
func (j *join) legEnd(p *plan, leg int, o *store.Outcome, row store.Ref, after *join) *store.LegEnd {
	rec := after.record(p, row)
	needs := rec != nil && (after.failed|after.spilled != 0 || after.unmarked || len(after.retries) > 0)
	if !j.recorded && !needs && o.SpilledSeq == 0 && o.Status != store.Failed {
		return nil
	}
	return &store.LegEnd{Outcome: *o, Of: row, Record: rec, Own: o.Status == store.Failed && !j.drops(p, leg)}
}

// spill records that a leg has a copy among the spilled rows.
func (j *join) spill(leg int) {
	j.spilled, j.live, j.recorded = j.spilled.With(leg), j.live.Without(leg), true
}

// requeue records that a FAILED leg has a copy among the spilled rows again. It reports whether
// the row, which may be FAILED, is open by that.
func (j *join) requeue(p *plan, leg int) (open bool) {
	j.failed, j.again = j.failed.Without(leg), j.again.Without(leg)
	j.dropRetry(leg)
	j.spill(leg)
	j.settled = j.verdict(p) != 0
	return !j.settled
}

// discard ends a FAILED leg: nobody is to deliver the row for it any more.
func (j *join) discard(leg int) {
	j.discarded, j.failed = j.discarded.With(leg), j.failed.Without(leg)
	j.dropRetry(leg)
}

// answer answers the claim of a leg from memory; false if the table must be asked.
func (j *join) answer(p *plan, leg int, r *store.ClaimRow, at time.Time) (a store.ClaimAnswer, known bool) {
	a = store.ClaimAnswer{Result: store.Claimed, RetryCount: j.retries[leg].Count, Unwritten: j.unwritten}
	switch {
	case !j.takes(leg):
		return store.ClaimAnswer{Result: store.AlreadySettled}, true
	case j.settled && !r.WantPayload && !j.drops(p, leg):
		a.Unwritten = true
		return a, true // the content of the row is in memory, or in a copy
	case j.settled || r.WantPayload || j.claimedAt.IsZero() || !r.OwnClaimAt.IsZero() || at.Sub(j.claimedAt) >= claimFresh:
		return a, false
	}
	j.holders = j.holders.With(leg)
	return a, true
}

// claim returns the row to claim for a leg.
func (j *join) claim(r *store.ClaimRow, row store.Ref) store.ClaimRow {
	ask := *r
	ask.Ref, ask.RetryCount = row, 0       // retries are counted in the record
	if j.claimedAt.After(ask.OwnClaimAt) { // by another leg
		ask.OwnClaimAt = j.claimedAt
	}
	return ask
}

// claimed takes the table's answer to the claim of a leg, and returns the leg's.
func (j *join) claimed(p *plan, leg int, r *store.ClaimRow, a store.ClaimAnswer, at time.Time) store.ClaimAnswer {
	switch a.Result {
	case store.Claimed:
		j.claimedAt, j.unwritten = at, a.Unwritten
		j.holders = j.holders.With(leg)
		a.RetryCount = j.retries[leg].Count
	case store.AlreadySettled, store.Gone:
		j.settled = true
		if !j.drops(p, leg) && !r.WantPayload {
			// Perhaps this relay settled it, before a restart. So the leg delivers it, because
			// its content is in memory.
			return store.ClaimAnswer{Result: store.Claimed, RetryCount: j.retries[leg].Count, Unwritten: true}
		}
		j.drop(leg)
	}
	return a
}

// drop ends a leg that need not deliver the row, or cannot because its content is gone. A copy
// stays until it is deleted.
func (j *join) drop(leg int) {
	j.done, j.live, j.holders = j.done.With(leg), j.live.Without(leg), j.holders.Without(leg)
	j.spilled = j.spilled.Without(leg)
	j.dropRetry(leg)
}

// dropOpen is drop, unless the leg has ended.
func (j *join) dropOpen(leg int) {
	if j.takes(leg) {
		j.drop(leg)
	}
}
