package lane

import (
	"cmp"
	"iter"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/internal/breaker"
	"github.com/sluicebox/sluicebox/dispatch/internal/replay"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// Config configures the lanes of a sink.
type Config struct {
	BatchRows   int     // maximum rows in a request
	Senders     int     // maximum requests being sent
	Rate        float64 // maximum requests per second; 0 is no limit
	ClaimAhead  int     // further requests that are claimed before a sender is free
	BufferRows  int     // maximum rows in memory
	BufferBytes int64   // maximum payload of waiting rows in memory

	// RowLanes gives each row without a group its own lane.
	RowLanes bool

	Breaker *breaker.Config // also the backoff of a lane

	// Breakers and Share are the parts of a destination that other dispatchers use too. nil: none does.
	Breakers *breaker.Shared
	Share    *Share
	Limits   func(kind string) sink.Limits
	Random   func() float64 // [0,1)
}

// Set holds the lanes of a sink and the queues in which they wait. It is not safe for
// concurrent use.
type Set struct {
	Endpoints Endpoints
	Requests  Requests
	Memory    Memory

	cfg       Config
	live      map[Name]*Lane
	replays   map[Name]*Lane
	urgent    Fifo[*Lane] // claimed next, even if the breaker is open
	large     Fifo[*Lane] // wait for room in the byte budget
	waiting   timers
	aside     map[string]*asideLanes // by outbox
	lastOrder uint64                 // orders ready lanes
	liveUntil time.Time              // see liveRowsFlow
}

// asideLanes are the ready lanes of an outbox whose table another session locks, or that an
// operator paused. They wait here, so that claims of other outboxes in the same statement go on.
type asideLanes struct {
	outbox string
	locked bool
	paused *store.Hold // nil: not paused
	ready  Fifo[*Lane] // to be claimed
	urgent Fifo[*Lane] // to be claimed first
}

// covers reports whether a lane waits here. Only live rows are claimed in the table, and a row
// to skip is claimed while its outbox is paused.
func (t *asideLanes) covers(l *Lane) bool {
	skips := len(l.Rows) > 0 && l.Rows[0].Skip != nil
	return l.Name.Outbox == t.outbox && (t.locked && l.Job == nil || t.paused != nil && !skips)
}

// tableLocked reports whether the table of the outbox is locked.
func (t *asideLanes) tableLocked() bool { return t != nil && t.locked }

// NewSet returns no lanes.
func NewSet(cfg Config) *Set {
	s := &Set{
		Endpoints: newEndpoints(&cfg), Requests: newRequests(&cfg), cfg: cfg,
		live: map[Name]*Lane{}, replays: map[Name]*Lane{}, aside: map[string]*asideLanes{},
	}
	s.Memory.cfg = &s.cfg
	return s
}

// NameOf returns the name of an item's live lane.
func (s *Set) NameOf(it *store.Item) Name {
	name := Name{LaneKey: it.Lane()}
	if s.HasRowLanes(name.LaneKey) {
		name.RowID = it.ID
	}
	return name
}

// HasRowLanes reports whether rows with this key have their own lanes.
func (s *Set) HasRowLanes(key store.LaneKey) bool { return !key.Group.Valid && s.cfg.RowLanes }

// IsPool reports whether the lane stands for spilled rows that have their own lanes.
func (s *Set) IsPool(l *Lane) bool { return l.Name.RowID == "" && s.HasRowLanes(l.Name.LaneKey) }

// IsRowLane reports whether the lane belongs to a row without a group and other such rows
// have their own lanes. The lane key cannot tell them apart.
func (s *Set) IsRowLane(l *Lane) bool { return l.Name.RowID != "" || s.HasRowLanes(l.Name.LaneKey) }

// Get returns a live lane or replay lane by name; nil if there is none.
func (s *Set) Get(name Name) *Lane {
	if name.Job == "" {
		return s.live[name]
	}
	return s.replays[name]
}

// Ensure returns the live lane with a name and creates it if necessary.
func (s *Set) Ensure(name Name) (l *Lane, added bool) {
	l = s.live[name]
	if added = l == nil; added {
		l = s.newLane(name)
		s.live[name] = l
	}
	return l, added
}

// EnsureReplay returns the job's lane for an item and creates it if necessary. It is paused
// if the live lane is.
func (s *Set) EnsureReplay(j *replay.Job, it *store.Item) *Lane {
	name := s.NameOf(it)
	live := s.live[name]
	name.Job = j.ID()
	l := s.replays[name]
	if l == nil {
		l = s.newLane(name)
		l.Job = j
		if live != nil {
			l.Paused = live.Paused
		}
		l.Receiver.ReplayLanes++
		s.replays[name] = l
	}

	return l
}

func (s *Set) newLane(name Name) *Lane {
	s.lastOrder++
	l := &Lane{Name: name, Receiver: s.Endpoints.Of(name.Kind), CreatedOrder: s.lastOrder}
	l.Limit = s.cfg.BatchRows
	l.Receiver.Lanes++
	return l
}

// Remove removes a lane that is in no queue.
func (s *Set) Remove(l *Lane) {
	l.Receiver.Lanes--
	defer s.Endpoints.dropIdle(l.Receiver)
	if l.Job != nil {
		l.Receiver.ReplayLanes--
		delete(s.replays, l.Name)
		return
	}
	delete(s.live, l.Name)
}

// Live returns the live lanes. The map belongs to the set.
func (s *Set) Live() map[Name]*Lane { return s.live }

// Replays returns the replay lanes. The map belongs to the set.
func (s *Set) Replays() map[Name]*Lane { return s.replays }

// All iterates over all lanes, replay lanes included.
func (s *Set) All() iter.Seq[*Lane] {
	return func(yield func(*Lane) bool) {
		for _, lanes := range []map[Name]*Lane{s.live, s.replays} {
			for _, l := range lanes {
				if !yield(l) {
					return
				}
			}
		}
	}
}

// ByAge returns the live lanes in order of creation.
func (s *Set) ByAge() []*Lane {
	lanes := make([]*Lane, 0, len(s.live))
	for _, l := range s.live {
		lanes = append(lanes, l)
	}
	slices.SortFunc(lanes, func(a, b *Lane) int { return cmp.Compare(a.CreatedOrder, b.CreatedOrder) })
	return lanes
}

// Queued returns the lanes that wait to be claimed, those set aside included.
func (s *Set) Queued() (lanes []*Lane) {
	for _, recv := range s.Endpoints.all {
		lanes = slices.Concat(lanes, recv.ready.items, recv.readyReplay.items, recv.tried.items)
	}
	for _, t := range s.aside {
		lanes = slices.Concat(lanes, t.ready.items, t.urgent.items)
	}
	return slices.Concat(lanes, s.urgent.items, s.large.items)
}

// Timed returns the lanes that wait for their WakeAt. The slice belongs to the set.
func (s *Set) Timed() []*Lane { return s.waiting.lanes }

// InFlight returns the lanes of a key that are in flight.
func (s *Set) InFlight(key store.LaneKey) (lanes []*Lane) {
	for name, l := range s.live {
		if name.LaneKey == key && l.InFlight > 0 {
			lanes = append(lanes, l)
		}
	}
	return lanes
}

// WaitingKeepRows is how many rows a waiting lane keeps: one request's worth, but all
// waiting lanes together at most half the buffer.
func (s *Set) WaitingKeepRows() int {
	n := 1
	for _, l := range s.live {
		if l.IsWaiting() {
			n++
		}
	}
	return max(1, min(s.cfg.BatchRows, s.cfg.BufferRows/2/n))
}

// Queue puts a lane at the end of the queue in which it waits to be claimed.
func (s *Set) Queue(l *Lane) {
	s.Endpoints.Route(l)
	s.lastOrder++
	l.State, l.ReadyOrder = Ready, s.lastOrder
	if t := s.aside[l.Name.Outbox]; t != nil && t.covers(l) {
		l.aside = t
		t.ready.Push(l)
		return
	}
	l.Receiver.push(l)
}

// QueueUrgent queues a lane to be claimed first, even if its breaker is open.
func (s *Set) QueueUrgent(l *Lane) {
	l.State = Ready
	if t := s.aside[l.Name.Outbox]; t != nil && t.covers(l) {
		l.aside = t
		t.urgent.Push(l)
		return
	}
	s.urgent.Push(l)
}

// Dequeue takes a waiting lane out of its queue. A lane in a request, or with an outcome
// being written, comes back by itself.
func (s *Set) Dequeue(l *Lane) {
	switch l.State {
	case Ready:
		is := func(other *Lane) bool { return other == l }
		_ = l.Receiver.remove(is) || s.urgent.Remove(is) || s.large.Remove(is)
		if t := l.aside; t != nil {
			_ = t.ready.Remove(is) || t.urgent.Remove(is)
			l.aside = nil
		}
	case Waiting:
		s.waiting.remove(l)
	case Held:
		l.Unhold()
	default:
		return
	}

	l.State = Idle
}

// reroute queues the first lane of a queue again if its head has changed, and reports whether
// it did.
func (s *Set) reroute(queue *Fifo[*Lane]) bool {
	if queue.Len() == 0 || !s.Endpoints.isMisrouted(queue.items[0]) {
		return false
	}
	s.Queue(queue.Pop())
	return true
}

// Reroute queues a ready lane again if its head has changed.
func (s *Set) Reroute(l *Lane) {
	if l.State == Ready && s.Endpoints.isMisrouted(l) {
		s.Dequeue(l)
		s.Queue(l)
	}
}

// Wait sets a lane aside until its WakeAt.
func (s *Set) Wait(l *Lane) {
	l.State = Waiting
	s.waiting.add(l)
}

// Due returns the first lane whose WakeAt has come; nil if there is none. It is in no queue
// any more.
func (s *Set) Due(now time.Time) *Lane { return s.waiting.due(now) }

// NextDue is the earliest WakeAt of a waiting lane; false if no lane waits.
func (s *Set) NextDue() (at time.Time, ok bool) { return s.waiting.next() }

// Backoff counts a failure of a lane and returns its wait.
func (s *Set) Backoff(l *Lane, retryAfter time.Duration) time.Duration {
	l.Failures++
	return max(s.cfg.Breaker.Backoff(l.Failures), min(retryAfter, s.cfg.Breaker.RetryAfterMax))
}

// IsAside reports whether the lanes of an outbox are set aside, for any reason.
func (s *Set) IsAside(outbox string) bool { return s.aside[outbox] != nil }

// LockedTables returns the outboxes whose tables are locked.
func (s *Set) LockedTables() (outboxes []string) {
	for outbox, t := range s.aside {
		if t.locked {
			outboxes = append(outboxes, outbox)
		}
	}
	return outboxes
}

// TableLocked reports whether another session locks the table of an outbox.
func (s *Set) TableLocked(outbox string) bool { return s.aside[outbox].tableLocked() }

// LockTable sets the lanes of a locked table aside.
func (s *Set) LockTable(outbox string) { s.setAside(outbox, func(t *asideLanes) { t.locked = true }) }

// UnlockTable queues the lanes of a table that is free again.
func (s *Set) UnlockTable(outbox string) {
	s.bringBack(outbox, func(t *asideLanes) { t.locked = false })
}

// OutboxPause returns the pause of an outbox; nil if it is not paused.
func (s *Set) OutboxPause(outbox string) *store.Hold {
	if t := s.aside[outbox]; t != nil {
		return t.paused
	}
	return nil
}

// PauseOutbox sets the ready lanes of an outbox aside. Lanes that become ready later follow.
func (s *Set) PauseOutbox(h *store.Hold) {
	s.setAside(h.Lane.Outbox, func(t *asideLanes) { t.paused = h })
}

// ResumeOutbox queues the lanes of an outbox again.
func (s *Set) ResumeOutbox(outbox string) {
	s.bringBack(outbox, func(t *asideLanes) { t.paused = nil })
}

// PausedLanes counts the lanes of a receiver that are set aside because their outbox is paused.
func (s *Set) PausedLanes(recv *Receiver) (n int) {
	for _, t := range s.aside {
		if t.paused == nil {
			continue
		}
		for _, l := range slices.Concat(t.ready.items, t.urgent.items) {
			if l.Receiver == recv {
				n++
			}
		}
	}
	return n
}

// setAside sets the lanes of an outbox aside that it covers after a change.
func (s *Set) setAside(outbox string, change func(*asideLanes)) {
	t := s.aside[outbox]
	if t == nil {
		t = &asideLanes{outbox: outbox}
		s.aside[outbox] = t
	}
	change(t)
	ready := s.large.RemoveAll(t.covers)
	for _, recv := range s.Endpoints.all {
		ready = slices.Concat(ready, recv.ready.RemoveAll(t.covers), recv.readyReplay.RemoveAll(t.covers), recv.tried.RemoveAll(t.covers))
	}
	slices.SortFunc(ready, func(a, b *Lane) int { return cmp.Compare(a.ReadyOrder, b.ReadyOrder) })
	urgent := s.urgent.RemoveAll(t.covers)
	for _, l := range slices.Concat(ready, urgent) {
		l.aside = t
	}
	t.ready.items, t.urgent.items = append(t.ready.items, ready...), append(t.urgent.items, urgent...)
}

// bringBack queues the lanes of an outbox that it no longer covers after a change.
func (s *Set) bringBack(outbox string, change func(*asideLanes)) {
	t := s.aside[outbox]
	if t == nil {
		return
	}
	if change(t); !t.locked && t.paused == nil {
		delete(s.aside, outbox)
	}
	free := func(l *Lane) bool { return !t.covers(l) }
	for _, l := range t.urgent.RemoveAll(free) {
		l.aside = nil
		s.QueueUrgent(l)
	}
	for _, l := range t.ready.RemoveAll(free) {
		l.aside = nil
		s.Queue(l)
	}
}
