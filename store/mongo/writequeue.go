package mongo

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// writeJob is a write that waits for its turn in the writer session. Claims and outcomes
// that wait at the same time share a transaction, because it has one leader update and one
// commit.
type writeJob struct {
	epoch             store.Epoch
	contentionTimeout time.Duration // for contended documents
	sharesTransaction bool
	write             func(context.Context, *conn) error
	// singles returns the updates that replace the transaction if all documents are as
	// expected; nil if only a transaction will do. If they do not match, write starts over.
	singles func(*conn) []singleUpdate
	isClaim bool // claims rows
	urgent  bool // does not wait for a claim to share a transaction with

	dequeued chan struct{} // closed when a call dequeues it
	maxTurn  time.Duration // how much of contentionTimeout it may keep the turn
	ended    chan struct{} // closed when the call that dequeued it is done; nil while queued
	done     bool          // err is the result
	err      error
}

// turnTimeout is how long a job keeps its turn while it waits for a contended document.
const turnTimeout = 40 * time.Millisecond

// runJob runs a job, or waits until another call has run it. If a document is contended,
// the job gives up its turn between two tries, so that it does not delay others.
func (s *Store) runJob(ctx context.Context, j *writeJob) error {
	j.maxTurn = min(turnTimeout, j.contentionTimeout)
	for started, try := time.Now(), 0; ; try++ {
		err := s.runInTurn(ctx, j)
		busy := isWriteConflict(err) && !errors.As(err, new(*leaderBusyError)) && !errors.As(err, new(*commitError))
		if !busy || time.Since(started) > j.contentionTimeout || !retryPause(ctx, maxPauseTry+try) {
			return err
		}
		*j = writeJob{epoch: j.epoch, contentionTimeout: j.contentionTimeout, write: j.write, urgent: true}
	}
}

// maxPauseTry is a try number for which retryPause waits maxRetryPause.
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
			<-ended // the transaction of another call, which is bounded
			continue
		}
		err := w.Do(ctx, func(ctx context.Context) error {
			if batch := w.dequeue(j); batch != nil {
				s.runTogether(ctx, batch)
			}
			return nil
		})
		if err == nil {
			continue
		}
		if ended, done := w.jobStatus(j, true); ended == nil && !done {
			return err // not started
		}
	}
}

const (
	// claimJoinWait is how long outcomes wait for a claim. They wait only if the latest
	// claim was within claimJoinWindow.
	claimJoinWait   = 10 * time.Millisecond
	claimJoinWindow = 50 * time.Millisecond
)

// enqueue queues a job. While claims keep arriving, outcomes that are not urgent wait for
// the next claim and join its transaction. Otherwise that claim would wait for theirs.
func (w *writer) enqueue(ctx context.Context, j *writeJob) {
	dequeued := make(chan struct{})
	w.mu.Lock()
	j.dequeued = dequeued
	w.queue = append(w.queue, j)
	if j.isClaim {
		w.lastClaimAt = time.Now()
	}

	claimsArriving := time.Since(w.lastClaimAt) < claimJoinWindow
	w.mu.Unlock()
	if j.isClaim || j.urgent || !j.sharesTransaction || !claimsArriving {
		return
	}

	select {
	case <-dequeued:
	case <-time.After(claimJoinWait):
	case <-ctx.Done():
	}
}

// dequeue removes a job from the queue together with the jobs that may share its
// transaction; nil if another call has run it.
func (w *writer) dequeue(j *writeJob) []*writeJob {
	w.mu.Lock()
	defer w.mu.Unlock()

	if j.done {
		return nil
	}

	batch := []*writeJob{j}
	for _, other := range w.queue {
		if other != j && j.sharesTransaction && other.sharesTransaction && other.epoch == j.epoch && !w.conn.standalone.Load() {
			batch = append(batch, other)
		}
	}

	w.queue = slices.DeleteFunc(w.queue, func(other *writeJob) bool { return slices.Contains(batch, other) })
	for _, job := range batch {
		job.ended = make(chan struct{})
		if job.dequeued != nil {
			close(job.dequeued)
			job.dequeued = nil // it may be queued again
		}
	}

	return batch
}

// jobStatus reports whether a job is done, and the channel to wait on if another call runs
// it. With giveUp a queued job leaves the queue.
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

// runTogether runs jobs in one transaction. If one of them fails, the first runs alone and
// the others are queued again.
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

// runShared runs jobs in one transaction. It is bound to the store's lifetime, not to one
// of the calls, because the others still need their answers.
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

// finish sets the result of jobs.
func (w *writer) finish(jobs []*writeJob, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()

	for _, j := range jobs {
		j.done, j.err = true, err
		close(j.ended)
	}
}

// requeue queues jobs again, each without sharing.
func (w *writer) requeue(jobs []*writeJob) {
	w.mu.Lock()
	defer w.mu.Unlock()

	for _, j := range jobs {
		close(j.ended)
		j.ended, j.sharesTransaction = nil, false
		w.queue = append(w.queue, j)
	}
}
