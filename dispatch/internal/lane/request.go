package lane

import (
	"iter"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/internal/breaker"
	"github.com/sluicebox/sluicebox/dispatch/internal/chain"
	"github.com/sluicebox/sluicebox/dispatch/internal/replay"
	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// Run is the head of a lane that is being claimed and sent.
type Run struct {
	Lane *Lane
	Rows []*Row

	// Accepted is the last row that the receiver has accepted; zero if the lane has no chain.
	Accepted chain.Link
}

// Request is a set of runs sent together.
type Request struct {
	Runs []*Run

	// Probe: a single row that tests an endpoint with an open breaker.
	Probe  breaker.Probe
	paused bool // see PauseProbe

	// Split: the request bisects an earlier failure.
	Split      bool
	Started    time.Time // when a sender received it
	LargeBytes int64     // its share of the budget for large rows

	// Checks: it is enough to read its rows before it is sent; see fresh.go.
	Checks bool

	// Unclaimed: it is sent before its rows are claimed, until FreshUntil.
	Unclaimed  bool
	FreshUntil time.Time
	answered   bool
}

// Receiver is the endpoint that the request goes to.
func (r *Request) Receiver() *Receiver { return r.Runs[0].Lane.Receiver }

// PauseProbe lets other users of the endpoint probe until ResumeProbe, because this request is not sent for
// now.
func (r *Request) PauseProbe() {
	if !r.paused {
		r.paused = true
		r.Receiver().Breaker.Pause(r.Probe)
	}
}

// ResumeProbe ends PauseProbe.
func (r *Request) ResumeProbe() {
	if r.paused {
		r.paused = false
		r.Receiver().Breaker.Resume(r.Probe)
	}
}

// Job is the replay that the rows belong to; nil for live rows.
func (r *Request) Job() *replay.Job { return r.Runs[0].Lane.Job }

// Size is the number of rows in the request.
func (r *Request) Size() int {
	n := 0
	for _, run := range r.Runs {
		n += len(run.Rows)
	}
	return n
}

// Rows iterates over the rows of the request.
func (r *Request) Rows() iter.Seq[*Row] {
	return func(yield func(*Row) bool) {
		for _, run := range r.Runs {
			for _, rw := range run.Rows {
				if !yield(rw) {
					return
				}
			}
		}
	}
}

// Messages builds the sink's messages.
func (r *Request) Messages() []sink.Message {
	msgs, job := make([]sink.Message, 0, r.Size()), r.Runs[0].Lane.Name.Job
	for n, run := range r.Runs {
		link := run.Accepted
		for _, rw := range run.Rows {
			msg := rw.message()
			msg.Attempt, msg.Replay, msg.Lane = rw.Attempts, job, n
			if link.Valid() {
				next := link.Next(rw.ID)
				msg.Chain, link = link.Header(next, run.Accepted), next
			}
			msgs = append(msgs, msg)
		}
	}
	return msgs
}

func (r *Request) add(l *Lane, rows []*Row) {
	r.Runs = append(r.Runs, &Run{Lane: l, Rows: rows})
	r.Split = r.Split || l.Bisecting > 0
}

// Halves returns the two halves of a failed request, each with half of its lanes.
func (r *Request) Halves() (first, second *Request) {
	n := len(r.Runs) / 2
	return &Request{Runs: r.Runs[:n:n], Split: true}, &Request{Runs: r.Runs[n:], Split: true}
}

// Requests are the requests in flight, by phase, and decide when another may begin or be sent.
type Requests struct {
	Fresh Fresh

	// Chains are the chains of live lanes with several rows; nil: rows have none.
	Chains *chain.Chains[Name]

	// Suspended: nothing is claimed or sent for now, and no request keeps a slot of the destination
	// from others.
	Suspended bool

	senders    int // maximum requests being sent
	claimAhead int // further requests that are claimed
	share      *Share

	// heldBack: mayClaim left ready lanes unclaimed because of the rate limit.
	heldBack bool

	toSend    Fifo[*Request] // claimed, or with fresh rows
	toClaim   Fifo[*Request] // halves of a failed request whose rows were not claimed
	claiming  int
	sending   int
	replaying int // being sent with replayed rows
}

func newRequests(cfg *Config) Requests {
	share := cfg.Share
	if share == nil {
		share = NewSlots(cfg.Senders, cfg.Rate).Join(nil)
	}
	return Requests{senders: cfg.Senders, claimAhead: cfg.ClaimAhead, share: share}
}

// Len is the number of requests in flight.
func (f *Requests) Len() int { return f.toClaim.Len() + f.claiming + f.toSend.Len() + f.sending }

// Free is how many requests may begin. It exceeds the number of senders, so that a
// sender that finishes finds its next request already claimed. While others use the slots of the
// destination, no more than these wait. While suspended none may begin.
func (f *Requests) Free() int {
	if f.Suspended {
		return 0
	}
	free := f.senders + f.claimAhead - f.Len()
	if f.share.free() == 0 {
		free = min(free, f.claimAhead-(f.Len()-f.sending))
	}
	return free
}

// Counts returns the numbers of claims, of requests being sent, and of those among them
// with replayed rows.
func (f *Requests) Counts() (claiming, sending, replaying int) {
	return f.claiming, f.sending, f.replaying
}

// Busy is the number of claims and requests that wait for an answer.
func (f *Requests) Busy() int { return f.claiming + f.sending }

// Unsent returns the claimed requests that no sender has.
func (f *Requests) Unsent() []*Request { return f.toSend.Items() }

// Unclaimed returns the requests of PushUnclaimed that are not being claimed yet.
func (f *Requests) Unclaimed() []*Request { return f.toClaim.Items() }

// TakeUnsent removes and returns the requests that match and that no sender has, except those
// being claimed.
func (f *Requests) TakeUnsent(is func(*Request) bool) []*Request {
	taken := append(f.toSend.RemoveAll(is), f.toClaim.RemoveAll(is)...)
	for _, req := range taken {
		req.Receiver().inFlight--
	}
	if f.toSend.Len() == 0 {
		f.share.rest()
	}
	return taken
}

// mayClaim reports whether another request may be claimed.
func (f *Requests) mayClaim(now time.Time) bool {
	f.heldBack = false
	if f.Free() <= 0 {
		return false
	}
	f.heldBack = !f.share.claimable(f.claiming+f.toSend.Len(), now)
	return !f.heldBack
}

// claim records a request that is being claimed.
func (f *Requests) claim(req *Request) {
	f.claiming++
	req.Receiver().inFlight++
}

// Claimed records the answer to the claim of a request.
func (f *Requests) Claimed(req *Request) {
	f.claiming--
	req.Receiver().inFlight--
}

// Push queues a claimed request for a sender.
func (f *Requests) Push(req *Request) {
	req.Receiver().inFlight++
	f.toSend.Push(req)
}

// PushUnclaimed queues a request whose rows are to be claimed. Its lanes claim nothing else.
func (f *Requests) PushUnclaimed(req *Request) {
	req.Receiver().inFlight++
	for _, r := range req.Runs {
		r.Lane.State = Claiming
	}
	f.toClaim.Push(req)
}

// nextToClaim begins to claim the next request of PushUnclaimed; nil if there is none.
func (f *Requests) nextToClaim() *Request {
	if f.toClaim.Len() == 0 {
		return nil
	}
	f.claiming++
	return f.toClaim.Pop()
}

// waitsForOthers reports whether only other users of the destination keep a request from a sender.
func (f *Requests) waitsForOthers() bool {
	return f.sending+f.toSend.Len() < f.senders && !f.senderIsFree()
}

// senderIsFree reports whether a request that is not claimed finds a sender at once.
func (f *Requests) senderIsFree() bool {
	return f.sending+f.toSend.Len() < f.senders && f.toSend.Len() < f.share.free()
}

// Next returns a claimed request to send; nil if there is none, no sender or slot is free or
// the rate limit is reached. The caller reports it to Answered.
func (f *Requests) Next(now time.Time) *Request {
	if !f.mayTake() {
		f.share.rest()
		return nil
	}
	if !f.share.take(now) {
		return nil
	}
	req := f.take()
	req.Started = now
	for _, r := range req.Runs {
		r.Lane.SentAt = now
		if f.Chains != nil && r.Lane.Job == nil && r.Lane.Name.RowID == "" {
			r.Accepted = f.Chains.Of(r.Lane.Name)
		}
	}
	if req.Unclaimed {
		f.Fresh.watch(req, now)
	}
	for rw := range req.Rows() {
		rw.Attempts++
		rw.Proof = req.Receiver().Breaker.AcceptedSince(rw.FailureTimes().Last)
	}
	return req
}

// mayTake reports whether a claimed request waits and may be sent, and a sender is free.
func (f *Requests) mayTake() bool {
	return !f.Suspended && f.toSend.Len() > 0 && f.sending < f.senders
}

// NextSend is when the rate limit allows the next claimed request; false if none waits for it.
func (f *Requests) NextSend() (at time.Time, ok bool) {
	at, ok = f.share.nextSend()
	return at, ok && f.mayTake()
}

// NextPacedClaim is when the rate limit allows the claims that Set.NextClaims has held back; false
// if there are none.
func (f *Requests) NextPacedClaim(now time.Time) (at time.Time, ok bool) {
	return f.share.claimableAt(f.claiming+f.toSend.Len(), now), f.heldBack
}

// take passes the next claimed request to a sender.
func (f *Requests) take() *Request {
	req := f.toSend.Pop()
	f.sending++
	if req.Job() != nil {
		f.replaying++
	}
	return req
}

// Answered removes a request that was sent.
func (f *Requests) Answered(req *Request) {
	req.Receiver().inFlight--
	req.answered = true
	f.sending--
	f.share.giveBack()
	if req.Job() != nil {
		f.replaying--
	}
}

// Accept advances the chain of a run by the rows that the receiver accepted: the first of them. If
// others were accepted too, the lane starts another chain.
func (f *Requests) Accept(r *Run, accepted func(i int) bool) {
	if !r.Accepted.Valid() {
		return
	}
	link, n := r.Accepted, 0
	for ; n < len(r.Rows) && accepted(n); n++ {
		link = link.Next(r.Rows[n].ID)
	}
	for i := n; i < len(r.Rows); i++ {
		if accepted(i) {
			f.Chains.Restart(r.Lane.Name)
			return
		}
	}
	if n > 0 {
		f.Chains.Accept(r.Lane.Name, link)
	}
}

// replays is the number of requests with replayed rows.
func (f *Requests) replays() int {
	n := f.replaying
	for _, req := range f.toSend.Items() {
		if req.Job() != nil {
			n++
		}
	}
	return n
}

// hasRoom reports whether another request to a receiver may begin; see Endpoints.
func (f *Requests) hasRoom(recv *Receiver) bool {
	return !recv.Named || recv.inFlight == 0 || recv.inFlight < min(1+recv.accepted, f.Free())
}

// MaySend reports whether a part of a request that was claimed for a receiver may be sent. If
// the claim showed another endpoint, that one may have an open breaker or no room.
func (f *Requests) MaySend(part *Request, claimedFor *Receiver) bool {
	to := part.Receiver()
	return to == claimedFor || part.Probe != breaker.None || !to.Breaker.Open() && f.hasRoom(to)
}
