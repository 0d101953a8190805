package lane

import (
	"iter"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// A row that the log has just brought is fresh. Its lane may send it before it is claimed, so
// that the claim costs it no time. The claim follows late, for rows whose request is not
// answered within ClaimAfter:
//
//	Row        Event                                                     To
//	fresh      NextClaims: a sender is free and Fresh.Allowed             sent unclaimed
//	fresh      a second passes, its lane is held, its payload is dropped  claimed first
//	untried    Checked: its table shows no change                         sent unclaimed
//	untried    its table shows one                                        claimed first
//	unclaimed  its request is answered within ClaimAfter                  never claimed
//	unclaimed  NextLate: it is not                                        claiming late
//	claiming   LateClaimed                                                claimed
//
// While a row is claimed late its outcome waits, because the two are written in different
// sessions. The answer changes nothing for its lane.
//
// A row that has waited for longer may have been settled or cancelled in its table. If nothing tried it yet,
// it is enough to read it: a claim would write every row of a backlog once more. Where requests usually
// take longer than ClaimAfter the claim follows anyway, so it is made first.
//
// These rows are claimed before they are sent: rows that were tried before, probes, large and spilled rows,
// and rows of a sink with a rate limit.

// checkValidity is how long after it was read a row may be sent before it is claimed.
const checkValidity = time.Second

// ClaimAfter is how long a request may stay unanswered before its rows are claimed.
const ClaimAfter = 100 * time.Millisecond

// Fresh holds the requests whose rows were not claimed.
type Fresh struct {
	// Allowed: rows may be sent before they are claimed. The caller sets it before NextClaims.
	Allowed bool

	// Wait: rows that need no claim wait for outcomes to be written. The caller sets it with Allowed.
	Wait bool

	// Unwritten are the outboxes whose claims write nothing. Their rows are not claimed late.
	Unwritten map[string]bool

	sent     Fifo[unclaimed] // in the order of due
	claiming []unclaimed     // in the statement that claims late
	compact  int             // the length of sent at which answered requests leave it
}

// minCompact is the least length of Fresh.sent at which answered requests leave it.
const minCompact = 64

// unclaimed is a request with rows to claim at a time, unless it is answered before.
type unclaimed struct {
	req    *Request
	due    time.Time
	rows   []*Row // that are being claimed
	locked bool   // the table of others is locked
}

// isFresh reports whether a row may be sent before it is claimed. It reads both clocks, because
// the monotonic clock may stop while the machine sleeps.
func (rw *Row) isFresh(now time.Time) bool {
	return !rw.FreshUntil.IsZero() && rw.isUntried() && isBefore(now, rw.FreshUntil)
}

// isUntried reports whether a row is as it was read, and no statement has seen it since.
func (rw *Row) isUntried() bool {
	return rw.Payload != nil && rw.Attempts == 0 && rw.Claimed.IsZero() &&
		rw.Sight == Unseen && rw.Stage == Open && rw.Copy == NoCopy && rw.Skip == nil
}

func isBefore(now, end time.Time) bool { return now.Before(end) && now.Round(0).Before(end.Round(0)) }

// MarkStale makes the lane claim the rows that it has by now before they are sent, because it was
// on hold.
func (l *Lane) MarkStale() { l.staleUpTo = max(l.staleUpTo, l.LastSeq()) }

// isFresh reports whether the lane may send its head before it is claimed.
func (l *Lane) isFresh(now time.Time) bool {
	return l.Job == nil && l.Lookups == 0 && len(l.Rows) > 0 && l.Rows[0].Seq > l.staleUpTo && l.Rows[0].isFresh(now)
}

// freshRows returns the leading fresh rows and their payload in bytes.
func freshRows(rows []*Row, now time.Time) (fresh []*Row, bytes int) {
	for i, rw := range rows {
		if !rw.isFresh(now) {
			return rows[:i], bytes
		}
		bytes += rw.PayloadSize
	}
	return rows, bytes
}

// goesUnclaimed reports whether the request that a lane begins now is sent before it is claimed.
func (s *Set) goesUnclaimed(l *Lane, now time.Time) bool {
	return s.Requests.Fresh.Allowed && !s.Requests.share.paced() && l.isFresh(now)
}

// StartFresh begins the requests that NextClaims would send unclaimed now, before those of replays. It
// needs no claim in between, so it may be called while one is in flight.
func (s *Set) StartFresh(now time.Time) {
	for s.Requests.Free() > 0 && s.Requests.senderIsFree() {
		ready, share := s.nextReady(true, now)
		if ready == nil || !s.goesUnclaimed(ready.items[0], now) {
			return
		}
		req := s.fillRequest(&Request{Unclaimed: true}, ready, share, now)
		s.Memory.reserveLarge(req)
		s.sendUnclaimed(req, now)
	}
}

// sendUnclaimed passes a request with fresh rows to the senders.
func (s *Set) sendUnclaimed(req *Request, now time.Time) {
	s.liveUntil = now.Add(flowPeriod)
	for _, r := range req.Runs {
		r.Lane.Send(len(r.Rows))
		for _, rw := range r.Rows {
			if req.FreshUntil.IsZero() || rw.FreshUntil.Before(req.FreshUntil) {
				req.FreshUntil = rw.FreshUntil
			}
		}
	}
	s.Requests.Push(req)
}

// mayCheck reports whether it is enough to read the head rows of a lane before they are sent.
func (f *Requests) mayCheck(l *Lane, head []*Row) bool {
	return l.Job == nil && l.Bisecting == 0 && l.Lookups == 0 && l.Receiver.usualAnswer < ClaimAfter &&
		!f.share.paced() && !f.Fresh.Unwritten[l.Name.Outbox] && head[0].Seq > l.staleUpTo &&
		!slices.ContainsFunc(head, func(rw *Row) bool { return !rw.isUntried() })
}

// waitsForOutcomes reports whether a lane waits until outcomes are written; see Fresh.Wait.
func (f *Requests) waitsForOutcomes(l *Lane) bool {
	return f.Fresh.Wait && len(l.Rows) > 0 && f.mayCheck(l, l.Rows[:1])
}

// Checked records that the tables show the rows of a request of NextClaims untried, as read at a time. The
// caller treats them as claimed.
func (r *Request) Checked(at time.Time) { r.Unclaimed, r.FreshUntil = true, at.Add(checkValidity) }

// IsStale reports whether a request that was to be sent unclaimed has waited for too long since.
func (r *Request) IsStale(now time.Time) bool { return r.Unclaimed && !isBefore(now, r.FreshUntil) }

// Withdraw takes back a request that a sender has, but has not sent.
func (s *Set) Withdraw(req *Request) {
	s.Requests.Answered(req)
	for rw := range req.Rows() {
		rw.Attempts--
	}
}

// watch remembers a request that was passed to a sender unclaimed.
func (f *Fresh) watch(req *Request, now time.Time) {
	if f.sent.Len() >= max(minCompact, f.compact) { // no claim has looked at them for long
		f.sent.RemoveAll(func(u unclaimed) bool { return u.req.answered })
		f.compact = 2 * f.sent.Len()
	}
	f.sent.Push(unclaimed{req: req, due: now.Add(ClaimAfter)})
}

// dropAnswered forgets the first requests that are answered.
func (f *Fresh) dropAnswered() {
	for f.sent.Len() > 0 && f.sent.Items()[0].req.answered {
		f.sent.Pop()
	}
}

// NextDue is when the next rows are to be claimed late; false if none are, or some are being
// claimed.
func (f *Fresh) NextDue() (at time.Time, ok bool) {
	f.dropAnswered()
	if f.sent.Len() == 0 || len(f.claiming) > 0 {
		return at, false
	}
	return f.sent.Items()[0].due, true
}

// All iterates over the rows in the statement that claims late.
func (f *Fresh) All() iter.Seq[*Row] {
	return func(yield func(*Row) bool) {
		for _, c := range f.claiming {
			for _, rw := range c.rows {
				if !yield(rw) {
					return
				}
			}
		}
	}
}

// NextLate returns the rows of unanswered requests to claim: at most limit, unless a single
// request has more. The caller reports them to LateClaimed.
func (s *Set) NextLate(limit int, now time.Time) (rows []*Row) {
	f := &s.Requests.Fresh
	if len(f.claiming) > 0 {
		return nil
	}
	for f.dropAnswered(); f.sent.Len() > 0; f.dropAnswered() {
		next := f.sent.Items()[0]
		if next.due.After(now) || len(rows) > 0 && len(rows)+next.req.Size() > limit {
			break
		}
		f.sent.Pop()
		for rw := range next.req.Rows() {
			switch {
			case f.Unwritten[rw.Outbox] || !rw.Claimed.IsZero():
			case s.aside[rw.Outbox].tableLocked():
				next.locked = true
			default:
				rw.LateClaiming = true
				next.rows = append(next.rows, rw)
			}
		}
		switch {
		case len(next.rows) > 0:
			rows = append(rows, next.rows...)
			f.claiming = append(f.claiming, next)
		case next.locked:
			f.watch(next.req, now)
		}
	}
	return rows
}

// LateClaimed takes the answers for the rows of NextLate, by position, and the timestamp written
// by the claim. Rows that it could not claim yet are claimed again if their request is still
// unanswered then.
func (s *Set) LateClaimed(answers []store.ClaimAnswer, at, now time.Time) (rows []*Row) {
	claiming := s.Requests.Fresh.claiming
	s.Requests.Fresh.claiming = nil
	for _, c := range claiming {
		again := c.locked
		for _, rw := range c.rows {
			rw.LateClaiming = false
			switch a := &answers[0]; a.Result {
			case store.Claimed:
				rw.recordLateClaim(a, at)
			case store.NotYetVisible, store.TableLocked:
				again = again || a.Error == ""
			}
			answers = answers[1:]
		}
		rows = append(rows, c.rows...)
		if again {
			s.Requests.Fresh.watch(c.req, now)
		}
	}
	return rows
}

// recordLateClaim records a successful late claim, unless a retry follows it at once.
func (rw *Row) recordLateClaim(a *store.ClaimAnswer, at time.Time) {
	rw.Sight = Seen
	if o := rw.PendingOutcome; !a.Unwritten && (o == nil || o.Status != store.Pending) {
		rw.Claimed = at
	}
}
