package lane

import (
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// A row that is not yet visible is claimed again after MinVisibilityWait, doubling up to
// MaxVisibilityWait. Visibility follows the log by well under a millisecond, unless the
// server waits for a synchronous standby.
const (
	MinVisibilityWait = time.Millisecond
	MaxVisibilityWait = time.Second

	// maxSoloLookups is how often a row is claimed again on its own. Later tries are
	// aligned so that waiting rows share a statement, because another session may lock the
	// heads of many lanes.
	maxSoloLookups = 7
)

// NextClaims begins requests while senders are free and the statement has fewer than
// maxRows rows, and returns those to claim. Requests with replayed rows need no claim and
// go straight to the senders, as do fresh rows; see fresh.go.
func (s *Set) NextClaims(maxRows int, now time.Time) []*Request {
	var reqs []*Request
	n := 0
	for n < maxRows {
		req := s.Requests.nextToClaim()
		if req == nil {
			break
		}
		n += req.Size()
		reqs = append(reqs, req)
	}

	for n < maxRows && s.Requests.mayClaim(now) {
		req := s.nextProbe(now)
		if req == nil {
			req = s.nextLarge()
		}
		if req == nil {
			req = s.buildRequest(now)
		}
		if req == nil {
			break
		}
		s.Memory.reserveLarge(req)
		if req.Unclaimed {
			s.sendUnclaimed(req, now)
			continue
		}
		state := Sending
		if req.Job() == nil {
			state, s.liveUntil = Claiming, now.Add(flowPeriod)
		}
		for _, r := range req.Runs {
			r.Lane.State, r.Lane.InFlight = state, len(r.Rows)
		}
		if state == Sending {
			s.Requests.Push(req)
			continue
		}
		s.Requests.claim(req)
		n += req.Size()
		reqs = append(reqs, req)
	}

	return reqs
}

// NextClaim is when claims may go that cannot go now; false if there is no such time. No
// claim goes before notBefore, if it is set.
func (s *Set) NextClaim(notBefore, now time.Time) (at time.Time, ok bool) {
	mayProbe := s.Endpoints.mayProbe(now)
	for _, recv := range s.Endpoints.all {
		next := notBefore
		switch open := recv.Breaker.Open(); {
		case recv.waiting() == 0, open && recv.Named && !mayProbe[groupOf(recv, now)], open && recv.Breaker.Probing(), !open && notBefore.IsZero():
			continue
		case open && recv.Breaker.NextProbe().After(notBefore):
			next = recv.Breaker.NextProbe()
		}
		if !ok || next.Before(at) {
			at, ok = next, true
		}
	}
	return at, ok
}

// nextLarge builds a request for the large row that has waited longest; nil if it does not
// fit yet.
func (s *Set) nextLarge() *Request {
	for s.reroute(&s.large) {
	}
	i := slices.IndexFunc(s.large.items, func(l *Lane) bool { return s.Requests.hasRoom(l.Receiver) })
	if i < 0 || !s.Memory.fitsLarge(s.large.items[i].Rows[0]) {
		return nil
	}
	l, req := s.large.items[i], &Request{}
	s.large.Remove(func(other *Lane) bool { return other == l })
	rows, _ := s.Endpoints.head(l, 1, 0)
	req.add(l, rows)
	return req
}

// waitsForLarge reports whether a lane must wait for large rows that are in flight or
// queued before it.
func (s *Set) waitsForLarge(l *Lane) bool {
	rw := l.Rows[0]
	return !s.Memory.fitsLarge(rw) || s.Memory.largeSize(rw) > 0 && s.large.Len() > 0
}

// nextReady returns the queue whose first lane begins the next request, and the number of lanes
// that share it; nil if none is ready.
func (s *Set) nextReady(liveOnly bool, now time.Time) (ready *Fifo[*Lane], share int) {
	ready, share = s.nextQueue(liveOnly, now)
	for ready != nil && (s.reroute(ready) || s.waitsForLarge(ready.items[0])) {
		if ready.Len() > 0 && s.waitsForLarge(ready.items[0]) {
			s.large.Push(ready.Pop())
		}
		ready, share = s.nextQueue(liveOnly, now)
	}
	return ready, share
}

// buildRequest builds one request from the lanes whose turn it is; nil if none is ready.
func (s *Set) buildRequest(now time.Time) *Request {
	ready, share := s.nextReady(false, now)
	if ready == nil {
		return nil
	}
	unclaimed := s.goesUnclaimed(ready.items[0], now) && !s.Requests.waitsForOthers() // who waits is claimed meanwhile
	if unclaimed && !s.Requests.senderIsFree() {
		return nil // it needs no claim ahead
	}
	if s.Requests.waitsForOutcomes(ready.items[0]) {
		return nil
	}
	req := s.fillRequest(&Request{Unclaimed: unclaimed}, ready, share, now)
	req.Checks = s.Requests.Fresh.Allowed && !unclaimed && !slices.ContainsFunc(req.Runs, func(r *Run) bool { return !s.Requests.mayCheck(r.Lane, r.Rows) })
	return req
}

// fillRequest adds the lanes whose turn it is to a request. Each free sender takes its share of
// the ready lanes, as far as they fit. Rows of a replay job share requests only with rows of the
// same job, because the receiver sees a replay marker.
func (s *Set) fillRequest(req *Request, ready *Fifo[*Lane], share int, now time.Time) *Request {
	first := ready.items[0]
	kind, job := first.Name.Kind, first.Job
	limits := s.Endpoints.limitsOf(kind)
	if limits.MaxLanes > 0 {
		share = min(share, limits.MaxLanes)
	}
	roomRows, roomBytes := max(1, min(s.cfg.BatchRows, limits.MaxItems)), limits.MaxBytes
	if job == nil {
		roomBytes = int(min(int64(roomBytes), s.Memory.RequestShare()))
	}

	for left := together(ready, share); left > 0 && roomRows > 0; left-- {
		l := ready.items[0]
		alone := l.sharesNone(limits.Mode)
		if len(req.Runs) > 0 && (alone || s.Endpoints.isMisrouted(l) || l.Isolated != first.Isolated || l.Job != job || l.Name.Kind != kind || l.Rows[0].PayloadSize > roomBytes || req.Unclaimed && !l.isFresh(now)) {
			break
		}
		most := min(roomRows, l.maxRunRows(limits.Mode))
		if share > 1 && limits.MaxRun > 0 {
			most = min(most, limits.MaxRun, (roomRows+left-1)/left) // many lanes fill it without runs
		}
		rows, bytes := s.Endpoints.head(l, most, roomBytes)
		if req.Unclaimed {
			rows, bytes = freshRows(rows, now)
		}
		req.add(ready.Pop(), rows)
		roomRows -= len(rows)
		roomBytes -= bytes
		if alone {
			break
		}
	}

	return req
}

// together returns how many lanes at the front of a queue are of one kind and job, at most most.
func together(ready *Fifo[*Lane], most int) (n int) {
	first := ready.items[0]
	for _, l := range ready.items[:min(most, ready.Len())] {
		if l.Name.Kind != first.Name.Kind || l.Job != first.Job {
			break
		}
		n++
	}
	return n
}

// nextQueue returns the queue of the lane that has waited longest and the number of lanes
// that share a request; nil if none is ready. Replay jobs get part of the senders, and while live rows
// flow as few requests as possible.
func (s *Set) nextQueue(liveOnly bool, now time.Time) (queue *Fifo[*Lane], share int) {
	var live, replay *Fifo[*Lane]
	lanes, replayLanes := 0, 0
	for _, recv := range s.Endpoints.all {
		if recv.Breaker.Open() || !s.Requests.hasRoom(recv) {
			continue
		}
		live, replay = longerWaiting(live, &recv.ready), longerWaiting(replay, &recv.readyReplay)
		lanes += recv.ready.Len()
		replayLanes += recv.readyReplay.Len()
	}

	if !liveOnly && replay != nil && longerWaiting(live, replay) == replay {
		if senders := s.ReplayRequestRoom(now); senders > 0 {
			if s.liveRowsFlow(now) {
				senders = 1
			}
			return replay, (replayLanes + senders - 1) / senders
		}
	}

	senders := max(1, s.Requests.Free()-s.cfg.ClaimAhead)
	return live, (lanes + senders - 1) / senders
}

// longerWaiting returns the queue whose first lane has waited longer.
func longerWaiting(a, b *Fifo[*Lane]) *Fifo[*Lane] {
	if b.Len() == 0 || a != nil && a.items[0].ReadyOrder < b.items[0].ReadyOrder {
		return a
	}
	return b
}

// ReplayRequestRoom is how many requests with replayed rows may begin. The limit keeps
// senders free for live lanes:
//
//   - a quarter of the senders while live rows flow, or a live lane waits for one
//   - otherwise every sender not used by live requests, except a quarter
//
// Probes and halves of a failed request may exceed it.
func (s *Set) ReplayRequestRoom(now time.Time) int {
	jobs := s.Requests.replays()
	n := max(1, s.cfg.Senders/4)
	if !s.liveRowsFlow(now) && !slices.ContainsFunc(s.Endpoints.all, func(r *Receiver) bool { return !r.Breaker.Open() && r.ready.Len() > 0 }) {
		live := s.Requests.Len() - jobs
		n = max(n, s.cfg.Senders-n-live)
	}
	return n - jobs
}

// flowPeriod is the time after a live request in which live rows count as flowing.
const flowPeriod = time.Second

// liveRowsFlow reports whether a live request has begun recently. Requests with replayed rows would
// take processors from the next one.
func (s *Set) liveRowsFlow(now time.Time) bool { return now.Before(s.liveUntil) }

// NextReplay is when live rows no longer flow, if rows of replays wait; false otherwise.
func (s *Set) NextReplay(now time.Time) (at time.Time, ok bool) {
	waits := func(r *Receiver) bool { return !r.Breaker.Open() && r.readyReplay.Len() > 0 }
	return s.liveUntil, s.liveRowsFlow(now) && slices.ContainsFunc(s.Endpoints.all, waits)
}

// RecordClaim records a successful claim of a row, with the timestamp that it wrote.
func (s *Set) RecordClaim(rw *Row, a *store.ClaimAnswer, at time.Time) {
	if rw.Sight == Unseen {
		rw.Sight = Seen
	}
	if !a.Unwritten {
		rw.Claimed = at
	}
	rw.RetryCount = max(rw.RetryCount, a.RetryCount) // a table may have no column for it
	rw.Routed = rw.Routed && a.Payload == nil        // the row may have changed
	s.Memory.SetPayload(rw, a.Payload, a.Attributes)
}

// NextLookup returns when to claim again a row that must wait.
func (l *Lane) NextLookup(a *store.ClaimAnswer, now time.Time) time.Time {
	if a.Result == store.Held && a.Until.After(now) {
		return a.Until
	}
	l.Lookups++
	until := now.Add(VisibilityWait(l.Lookups))
	if l.Lookups > maxSoloLookups {
		until = until.Truncate(VisibilityWait(l.Lookups) / 8) // with others that wait as long
	}
	return until
}

// VisibilityWait is the wait after the n-th consecutive claim that found a row not yet
// visible, n from 1.
func VisibilityWait(n int) time.Duration {
	return min(MinVisibilityWait<<min(n-1, 10), MaxVisibilityWait)
}
