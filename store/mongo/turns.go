package mongo

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// job is a write that waits for its turn. Claims and outcomes that wait at the same time
// share one transaction: it has one leader document to write, and one commit to wait for.
type job struct {
	epoch  store.Epoch
	wait   time.Duration // for documents that somebody else changes
	shares bool
	write  func(context.Context, *conn) error
	// singles is what it writes if all documents are as it expects, nil if only a
	// transaction will do. The job ends with it, or write begins anew.
	singles func(*conn) []single
	claims  bool // rows
	urgent  bool // it waits for no claim to share a transaction with

	taken chan struct{} // closed when somebody takes it
	turn  time.Duration // how much of wait it may keep the turn
	ended chan struct{} // closed when whoever took it is done with it; nil while nobody has
	done  bool          // err is the answer
	err   error
}

// turnPatience is how long a job keeps its turn while it waits for a document that
// somebody else changes.
const turnPatience = 40 * time.Millisecond

// do runs a job, or waits until another call has run it. Where somebody else changes a
// document of it, the job gives up its turn between two tries: it holds nobody up.
func (s *Store) do(ctx context.Context, j *job) error {
	j.turn = min(turnPatience, j.wait)
	for began, try := time.Now(), 0; ; try++ {
		err := s.inTurn(ctx, j)
		busy := conflict(err) && !errors.As(err, new(*leaderBusyError)) && !errors.As(err, new(*commitError))
		if !busy || time.Since(began) > j.wait || !pause(ctx, mostTries+try) {
			return err
		}
		*j = job{epoch: j.epoch, wait: j.wait, write: j.write, urgent: true}
	}
}

// mostTries is the number of a try that is paused before for mostPause.
const mostTries = 10

// inTurn runs a job once, in its turn or in that of another call.
func (s *Store) inTurn(ctx context.Context, j *job) error {
	w := s.writer
	w.enter(ctx, j)
	for {
		ended, done := w.leave(j, false)
		if done {
			return j.err
		}
		if ended != nil {
			<-ended // another call's transaction, which is bounded
			continue
		}
		err := w.Do(ctx, func(ctx context.Context) error {
			if together := w.take(j); together != nil {
				s.together(ctx, together)
			}
			return nil
		})
		if err == nil {
			continue
		}
		if ended, done := w.leave(j, true); ended == nil && !done {
			return err // nobody has begun it
		}
	}
}

const (
	// claimWait is how long outcomes wait for a claim, and claimGap how long ago the latest
	// one was at the most for that.
	claimWait = 10 * time.Millisecond
	claimGap  = 50 * time.Millisecond
)

// enter queues a job. Outcomes that nobody waits for give way to the next claim while
// claims come all the time, and are written in its transaction: else it would wait for
// theirs.
func (w *writer) enter(ctx context.Context, j *job) {
	taken := make(chan struct{})
	w.mu.Lock()
	j.taken = taken
	w.waiting = append(w.waiting, j)
	if j.claims {
		w.claimed = time.Now()
	}
	soon := time.Since(w.claimed) < claimGap
	w.mu.Unlock()
	if j.claims || j.urgent || !j.shares || !soon {
		return
	}
	select {
	case <-taken:
	case <-time.After(claimWait):
	case <-ctx.Done():
	}
}

// take takes a job, and those that may share its transaction, out of the queue; nil if
// another call has run it.
func (w *writer) take(j *job) []*job {
	w.mu.Lock()
	defer w.mu.Unlock()
	if j.done {
		return nil
	}
	together := []*job{j}
	for _, other := range w.waiting {
		if other != j && j.shares && other.shares && other.epoch == j.epoch && !w.on.alone.Load() {
			together = append(together, other)
		}
	}
	w.waiting = slices.DeleteFunc(w.waiting, func(other *job) bool { return slices.Contains(together, other) })
	for _, taken := range together {
		taken.ended = make(chan struct{})
		if taken.taken != nil {
			close(taken.taken)
			taken.taken = nil // it may come back
		}
	}
	return together
}

// leave tells whether a job is done, and what to wait for if another call has it. A job
// that is given up leaves the queue, unless it is taken.
func (w *writer) leave(j *job, giveUp bool) (ended <-chan struct{}, done bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if j.done {
		return nil, true
	}
	if giveUp && j.ended == nil {
		w.waiting = slices.DeleteFunc(w.waiting, func(other *job) bool { return other == j })
	}
	return j.ended, false
}

// together runs jobs in one transaction. Where one of them fails in it, the first runs by
// itself, and the others wait for turns of their own.
func (s *Store) together(ctx context.Context, jobs []*job) {
	if s.singly(ctx, jobs) {
		s.writer.finish(jobs, nil)
		return
	}
	first, err := jobs[0], error(nil)
	if len(jobs) > 1 {
		err = s.shared(ctx, jobs)
		if err == nil || errors.Is(err, store.ErrNotLeader) || errors.As(err, new(*commitError)) {
			s.writer.finish(jobs, err)
			return
		}
		s.writer.giveBack(jobs[1:])
	}
	err = s.transact(ctx, first.epoch, first.turn, first.write)
	s.writer.finish(jobs[:1], err)
}

// shared runs jobs in one transaction. It ends with the store, and not with one of the
// calls: the others want their answers.
func (s *Store) shared(ctx context.Context, jobs []*job) error {
	ctx, cancel := s.life.Bind(context.WithoutCancel(ctx))
	defer cancel()
	return s.transact(ctx, jobs[0].epoch, turnPatience, func(ctx context.Context, on *conn) error {
		for _, j := range jobs {
			if err := j.write(ctx, on); err != nil {
				return err
			}
		}
		return nil
	})
}

// finish answers jobs.
func (w *writer) finish(jobs []*job, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, j := range jobs {
		j.done, j.err = true, err
		close(j.ended)
	}
}

// giveBack puts jobs back into the queue, each for itself.
func (w *writer) giveBack(jobs []*job) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, j := range jobs {
		close(j.ended)
		j.ended, j.shares = nil, false
		w.waiting = append(w.waiting, j)
	}
}
