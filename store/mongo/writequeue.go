package mongo

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// writeJob is a write that waits for its turn. Claims and outcomes that wait at the same time
// share one transaction: it has one leader document to write, and one commit to wait for.
type writeJob struct {
	epoch             store.Epoch
	contentionTimeout time.Duration // for documents that somebody else changes
	sharesTransaction bool
	write             func(context.Context, *conn) error
	// singles is what it writes if all documents are as it expects, nil if only a
	// transaction will do. The job ends with it, or write begins anew.
	singles func(*conn) []singleUpdate
	isClaim bool // rows
	urgent  bool // it waits for no claim to share a transaction with

	dequeued chan struct{} // closed when somebody takes it
	maxTurn  time.Duration // how much of wait it may keep the turn
	ended    chan struct{} // closed when whoever took it is done with it; nil while nobody has
	done     bool          // err is the answer
	err      error
}

// turnTimeout is how long a job keeps its turn while it waits for a document that
// somebody else changes.
const turnTimeout = 40 * time.Millisecond

// runJob runs a job, or waits until another call has run it. Where somebody else changes a
// document of it, the job gives up its turn between two tries: it holds nobody up.
func (s *Store) runJob(ctx context.Context, j *writeJob) error {
	j.maxTurn = min(turnTimeout, j.contentionTimeout)
	for began, try := time.Now(), 0; ; try++ {
		err := s.runInTurn(ctx, j)
		busy := isWriteConflict(err) && !errors.As(err, new(*leaderBusyError)) && !errors.As(err, new(*commitError))
		if !busy || time.Since(began) > j.contentionTimeout || !retryPause(ctx, maxPauseTry+try) {
			return err
		}
		*j = writeJob{epoch: j.epoch, contentionTimeout: j.contentionTimeout, write: j.write, urgent: true}
	}
}

// maxPauseTry is the number of a try that is paused before for maxRetryPause.
const maxPauseTry = 10

// runInTurn runs a job once, in its turn or in that of another call.
func (s *Store) runInTurn(ctx context.Context, j *writeJob) error {
	w := s.writer
	w.enqueue(ctx, j)
	for {
		ended, done := w.jobStatus(j, false)
		if done {
			return j.err
		}
		if ended != nil {
			<-ended // another call's transaction, which is bounded
			continue
		}
		err := w.Do(ctx, func(ctx context.Context) error {
			if together := w.dequeue(j); together != nil {
				s.runTogether(ctx, together)
			}
			return nil
		})
		if err == nil {
			continue
		}
		if ended, done := w.jobStatus(j, true); ended == nil && !done {
			return err // nobody has begun it
		}
	}
}

const (
	// claimJoinWait is how long outcomes wait for a claim, and claimJoinWindow how long ago the latest
	// one was at the most for that.
	claimJoinWait   = 10 * time.Millisecond
	claimJoinWindow = 50 * time.Millisecond
)

// enqueue queues a job. Outcomes that nobody waits for give way to the next claim while
// claims come all the time, and are written in its transaction: else it would wait for
// theirs.
func (w *writer) enqueue(ctx context.Context, j *writeJob) {
	taken := make(chan struct{})
	w.mu.Lock()
	j.dequeued = taken
	w.queue = append(w.queue, j)
	if j.isClaim {
		w.lastClaimAt = time.Now()
	}
	soon := time.Since(w.lastClaimAt) < claimJoinWindow
	w.mu.Unlock()
	if j.isClaim || j.urgent || !j.sharesTransaction || !soon {
		return
	}
	select {
	case <-taken:
	case <-time.After(claimJoinWait):
	case <-ctx.Done():
	}
}

// dequeue takes a job, and those that may share its transaction, out of the queue; nil if
// another call has run it.
func (w *writer) dequeue(j *writeJob) []*writeJob {
	w.mu.Lock()
	defer w.mu.Unlock()
	if j.done {
		return nil
	}
	together := []*writeJob{j}
	for _, other := range w.queue {
		if other != j && j.sharesTransaction && other.sharesTransaction && other.epoch == j.epoch && !w.conn.standalone.Load() {
			together = append(together, other)
		}
	}
	w.queue = slices.DeleteFunc(w.queue, func(other *writeJob) bool { return slices.Contains(together, other) })
	for _, taken := range together {
		taken.ended = make(chan struct{})
		if taken.dequeued != nil {
			close(taken.dequeued)
			taken.dequeued = nil // it may come back
		}
	}
	return together
}

// jobStatus tells whether a job is done, and what to wait for if another call has it. A job
// that is given up leaves the queue, unless it is taken.
func (w *writer) jobStatus(j *writeJob, giveUp bool) (ended <-chan struct{}, done bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if j.done {
		return nil, true
	}
	if giveUp && j.ended == nil {
		w.queue = slices.DeleteFunc(w.queue, func(other *writeJob) bool { return other == j })
	}
	return j.ended, false
}

// runTogether runs jobs in one transaction. Where one of them fails in it, the first runs by
// itself, and the others wait for turns of their own.
func (s *Store) runTogether(ctx context.Context, jobs []*writeJob) {
	if s.runWithoutTransaction(ctx, jobs) {
		s.writer.finish(jobs, nil)
		return
	}
	first, err := jobs[0], error(nil)
	if len(jobs) > 1 {
		err = s.runShared(ctx, jobs)
		if err == nil || errors.Is(err, store.ErrNotLeader) || errors.As(err, new(*commitError)) {
			s.writer.finish(jobs, err)
			return
		}
		s.writer.requeue(jobs[1:])
	}
	err = s.transact(ctx, first.epoch, first.maxTurn, first.write)
	s.writer.finish(jobs[:1], err)
}

// runShared runs jobs in one transaction. It ends with the store, and not with one of the
// calls: the others want their answers.
func (s *Store) runShared(ctx context.Context, jobs []*writeJob) error {
	ctx, cancel := s.lifetime.Bind(context.WithoutCancel(ctx))
	defer cancel()
	return s.transact(ctx, jobs[0].epoch, turnTimeout, func(ctx context.Context, on *conn) error {
		for _, j := range jobs {
			if err := j.write(ctx, on); err != nil {
				return err
			}
		}
		return nil
	})
}

// finish answers jobs.
func (w *writer) finish(jobs []*writeJob, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, j := range jobs {
		j.done, j.err = true, err
		close(j.ended)
	}
}

// requeue puts jobs back into the queue, each for itself.
func (w *writer) requeue(jobs []*writeJob) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, j := range jobs {
		close(j.ended)
		j.ended, j.sharesTransaction = nil, false
		w.queue = append(w.queue, j)
	}
}
