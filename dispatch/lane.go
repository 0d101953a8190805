package dispatch

import (
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// Ticket is told when rows of a batch are settled; see checkpoint.Ticket.
type Ticket interface {
	Done(n int)
}

// row is one item in a lane, with what this leader knows of it.
type row struct {
	store.Item
	ticket Ticket // nil: nobody waits for it
	// claimed is the time written by this leader's latest claim; zero once the
	// row was given back.
	claimed time.Time
	// attempts counts the requests that carried the row.
	attempts int
	// failed is when the row's last failed attempt ended, and refused when it
	// was last counted without proof or first refused.
	failed, refused time.Time
	// done: delivered, or found settled or gone; it leaves the lane.
	done bool
}

type laneState uint8

const (
	laneIdle     laneState = iota // no rows; not kept
	laneReady                     // in the ready queue
	laneClaiming                  // holds a sender, its run is being claimed
	laneSending                   // holds a sender, its run is being sent
	laneWriting                   // an outcome of its head is being written
	laneWaiting                   // until wakeAt
	laneStates
)

// String names the state for metrics.
func (s laneState) String() string {
	return [...]string{"idle", "ready", "claiming", "sending", "writing", "waiting"}[s]
}

// lane is the FIFO of one group. The rows that are in flight are its first.
type lane struct {
	key      store.LaneKey
	state    laneState
	rows     []*row
	inFlight int // rows of the run being claimed or sent, or the one being written
	// limit is the most rows in the next run: halved by failures that may be
	// one row's, doubled by successes.
	limit int
	// failures counts failed attempts since the last success, looks the claims
	// in a row that found the head not yet visible.
	failures, looks int
	wakeAt          time.Time
}

// run is the head of a lane on its way through claim and request.
type run struct {
	lane    *lane
	rows    []*row
	started time.Time // when the request began
}

// messages builds what the sink sends.
func (r *run) messages() []sink.Message {
	msgs := make([]sink.Message, len(r.rows))
	for i, rw := range r.rows {
		msgs[i] = sink.Message{
			ID: rw.ID, Kind: rw.Kind, Group: rw.Group,
			Payload: rw.Payload, Attempt: rw.attempts,
		}
	}
	return msgs
}

// head returns the rows of the lane's next run: at least one, at most max, and
// of several no more than maxBytes of payload.
func (l *lane) head(maxRows, maxBytes int) []*row {
	n, bytes := 0, 0
	for n < len(l.rows) && n < maxRows {
		bytes += l.rows[n].PayloadSize
		if n > 0 && bytes > maxBytes {
			break
		}
		n++
	}
	return slices.Clone(l.rows[:n])
}

// prune takes the rows that are done out of the first n of the lane.
func (l *lane) prune(n int) {
	kept := 0
	for _, rw := range l.rows[:n] {
		if !rw.done {
			l.rows[kept] = rw
			kept++
		}
	}
	if kept == 0 {
		clear(l.rows[:n])
		l.rows = l.rows[n:]
		return
	}
	l.rows = slices.Delete(l.rows, kept, n)
}

// insert puts rows in front of the lane, but behind those in flight.
func (l *lane) insert(rows []*row) {
	l.rows = slices.Insert(l.rows, l.inFlight, rows...)
}

// fifo is a queue.
type fifo[T any] struct{ items []T }

func (q *fifo[T]) push(v T) { q.items = append(q.items, v) }
func (q *fifo[T]) len() int { return len(q.items) }

func (q *fifo[T]) pop() T {
	var none T
	v := q.items[0]
	q.items[0] = none
	q.items = q.items[1:]
	return v
}

// timers is a heap of waiting lanes by wakeAt; see container/heap.
type timers []*lane

func (t timers) Len() int           { return len(t) }
func (t timers) Less(i, j int) bool { return t[i].wakeAt.Before(t[j].wakeAt) }
func (t timers) Swap(i, j int)      { t[i], t[j] = t[j], t[i] }
func (t *timers) Push(x any)        { *t = append(*t, x.(*lane)) }

func (t *timers) Pop() any {
	old := *t
	l := old[len(old)-1]
	old[len(old)-1] = nil
	*t = old[:len(old)-1]
	return l
}

// refusals is a heap of outcomes by due; see container/heap.
type refusals []outcome

func (r refusals) Len() int           { return len(r) }
func (r refusals) Less(i, j int) bool { return r[i].due.Before(r[j].due) }
func (r refusals) Swap(i, j int)      { r[i], r[j] = r[j], r[i] }
func (r *refusals) Push(x any)        { *r = append(*r, x.(outcome)) }

func (r *refusals) Pop() any {
	old := *r
	o := old[len(old)-1]
	old[len(old)-1] = outcome{}
	*r = old[:len(old)-1]
	return o
}
