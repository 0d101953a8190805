package mongo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/backoff"
	"github.com/sluicebox/sluicebox/store/internal/sessions"
)

// writer is the session that writes, one call at a time. It stays the same for the store's
// lifetime, because the next leader finds its id in the leader document and kills it, and
// because the server ends an open transaction when the session starts its next one.
type writer struct {
	*sessions.Session
	server *server
	conn   *conn

	mu          sync.Mutex
	queue       []*writeJob // in arrival order
	lastClaimAt time.Time   // when the latest claim arrived
}

func newWriter(v *server, life *sessions.Lifetime) *writer {
	w := &writer{server: v}
	w.Session = sessions.New(life, w)
	return w
}

// Ready implements sessions.Link.
func (w *writer) Ready(ctx context.Context) (err error) {
	w.conn, err = w.server.open(ctx)
	return err
}

// Survives implements sessions.Link: the driver replaces failed connections.
func (w *writer) Survives(error) bool { return true }

// Drop implements sessions.Link. The session ends with the connections.
func (w *writer) Drop() {}

const (
	// transactionTimeout bounds how long a call retries transactions that the server
	// aborts.
	transactionTimeout = commandTimeout
	// rowTimeout is how long a call waits for documents that another session changes.
	rowTimeout = 2 * time.Second
	// maxRetryPause is the longest pause between two tries.
	maxRetryPause = 50 * time.Millisecond
)

// runAsLeader runs write in a transaction of the leader of an epoch. It may run write
// several times; earlier attempts were rolled back.
func (s *Store) runAsLeader(ctx context.Context, epoch store.Epoch, write func(context.Context, *conn) error) error {
	return s.runJob(ctx, &writeJob{epoch: epoch, contentionTimeout: rowTimeout, write: write})
}

// transact runs write in a transaction of the leader of an epoch, in the writer's turn.
func (s *Store) transact(ctx context.Context, epoch store.Epoch, wait time.Duration, write func(context.Context, *conn) error) error {
	return s.writer.transact(ctx, wait, func(ctx context.Context) error {
		if err := s.checkEpoch(ctx, s.writer.conn, epoch); err != nil {
			return err
		}
		return write(ctx, s.writer.conn)
	})
}

// checkEpoch updates the leader document and returns store.ErrNotLeader unless it has this
// epoch and this store's holder. The holder distinguishes two relays that got the same epoch
// from two servers.
func (s *Store) checkEpoch(ctx context.Context, on *conn, epoch store.Epoch) error {
	n, err := update(ctx, on.ownCollection(ownLeader),
		bson.D{{Key: "_id", Value: s.name}, {Key: "epoch", Value: int64(epoch)}, {Key: "holder", Value: s.holder}},
		bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: int64(1)}}}})
	if isWriteConflict(err) {
		return &leaderBusyError{err}
	}
	if err == nil && n == 0 {
		return store.ErrNotLeader
	}
	return err
}

// leaderBusyError says that another transaction has changed the leader document.
type leaderBusyError struct{ err error }

func (e *leaderBusyError) Error() string { return "leader document: " + e.err.Error() }

func (e *leaderBusyError) Unwrap() error { return e.err }

// transact runs do in a transaction and retries it when the server aborts it. A conflict
// with another session's document is retried for at most wait. Without a replica set there
// are no transactions, and do runs once.
func (w *writer) transact(ctx context.Context, wait time.Duration, do func(context.Context) error) error {
	if w.conn.standalone.Load() {
		return do(ctx)
	}

	began := time.Now()
	for try := 0; ; try++ {
		err := w.runOnce(ctx, began, do)
		if err == nil || !hasLabel(err, "TransientTransactionError") || mongo.IsTimeout(err) {
			return err
		}
		left := transactionTimeout
		if isWriteConflict(err) && !errors.As(err, new(*leaderBusyError)) {
			left = wait
		}
		if time.Since(began) > left || !retryPause(ctx, try) {
			return err
		}
	}
}

// retryPause waits before the next try; it returns false if the context has ended.
func retryPause(ctx context.Context, try int) bool {
	pause := min(maxRetryPause, time.Millisecond<<min(try, 10))
	return backoff.Sleep(ctx, pause/2+rand.N(pause/2)) == nil
}

// runOnce runs do in one transaction.
func (w *writer) runOnce(ctx context.Context, began time.Time, do func(context.Context) error) error {
	if err := w.conn.writeSession.StartTransaction(); err != nil {
		return err
	}

	err := do(mongo.NewSessionContext(ctx, w.conn.writeSession))
	if err == nil {
		return w.commit(ctx, began)
	}

	if mongo.IsTimeout(err) {
		w.abandon() // the server is silent; the session's next transaction ends this one
		return err
	}

	aborting, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.CloseTimeout)
	defer cancel()
	_ = w.conn.writeSession.AbortTransaction(aborting) // err is the cause
	return err
}

// abandon lets the driver start another transaction without sending anything to the server.
// After a commit that was answered once and then not again, the driver stays in its commit
// state: it would report the next transaction as committed without sending it. Aborting
// clears that state only before the first answer. Starting a transaction that the driver
// refuses, with an unacknowledged write concern, always clears it.
func (w *writer) abandon() {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	_ = w.conn.writeSession.AbortTransaction(ended) // fails if there is no transaction
	if w.conn.writeSession.StartTransaction(options.Transaction().SetWriteConcern(writeconcern.Unacknowledged())) == nil {
		_ = w.conn.writeSession.AbortTransaction(ended) // nothing was sent
	}
}

// commit commits, and repeats the commit while its result is unknown. The server, even a
// new primary, knows the result of a transaction. An error means either that the
// transaction is certainly not committed (see isAborted), or it is a *commitError.
func (w *writer) commit(ctx context.Context, began time.Time) error {
	for try := 0; ; try++ {
		bound, cancel := context.WithTimeout(ctx, commandTimeout)
		err := w.conn.writeSession.CommitTransaction(bound)
		cancel()
		if err == nil {
			w.conn.recordWrite(w.conn.writeSession.OperationTime())
			return nil
		}
		if isAborted(err) {
			return err
		}
		unknown := hasLabel(err, "UnknownTransactionCommitResult") || hasLabel(err, "TransientTransactionError") || mongo.IsTimeout(err)
		if !unknown || time.Since(began) > transactionTimeout || !retryPause(ctx, try) {
			w.abandon()
			return &commitError{err}
		}
	}
}

// isAborted reports whether the server said that a transaction was not committed. The
// driver also sets this label on its own errors, even if an earlier commit has no answer
// yet.
func isAborted(err error) bool {
	var answer mongo.CommandError
	return hasLabel(err, "TransientTransactionError") && errors.As(err, &answer) && answer.Code != 0
}

// commitError says that the result of a commit is unknown.
type commitError struct{ err error }

func (e *commitError) Error() string {
	return "unknown commit result: " + e.err.Error()
}

// Unwrap returns the server's error. It is not a refusal: see asRefused.
func (e *commitError) Unwrap() error { return e.err }

// read runs call in a causally consistent session with majority reads, so that it sees
// everything the store has written.
func (s *Store) read(ctx context.Context, call func(context.Context, *conn) error) error {
	return s.onServer(ctx, func(ctx context.Context, on *conn) error {
		reading, err := on.client.StartSession(options.Session().SetCausalConsistency(true))
		if err != nil {
			return err
		}
		defer reading.EndSession(context.WithoutCancel(ctx))
		if at := on.lastWrite.Load(); at != nil {
			if err := reading.AdvanceOperationTime(at); err != nil {
				return fmt.Errorf("advance session: %w", err)
			}
		}
		return call(mongo.NewSessionContext(ctx, reading), on)
	})
}

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
	retried bool // gives up its turn at once if a document is contended

	taken chan struct{} // closed when a call takes it from the queue
	ended chan struct{} // closed when err is the result
	err   error
}

// turnTimeout is how long a job keeps its turn while it waits for a contended document.
const turnTimeout = 40 * time.Millisecond

// runJob runs a job, or waits until another call has run it. If a document is contended,
// the job gives up its turn between two tries, so that it does not delay others.
func (s *Store) runJob(ctx context.Context, j *writeJob) error {
	for started, try := time.Now(), 0; ; try++ {
		err := s.runInTurn(ctx, j)
		if errors.Is(err, errNotShared) {
			alone := *j
			alone.sharesTransaction = false
			j = &alone
			err = s.runInTurn(ctx, j)
		}
		if !isContended(err) || time.Since(started) > j.contentionTimeout || !retryPause(ctx, maxPauseTry+try) {
			return err
		}
		j = &writeJob{epoch: j.epoch, contentionTimeout: j.contentionTimeout, write: j.write, urgent: true, retried: true}
	}
}

// errNotShared is the result of a job whose shared transaction failed before it was written.
// Its call runs it alone.
var errNotShared = errors.New("the shared transaction failed")

// turn is how much of its contentionTimeout a job keeps its turn.
func (j *writeJob) turn() time.Duration {
	if j.retried {
		return 0
	}
	return min(turnTimeout, j.contentionTimeout)
}

// maxPauseTry is a try number for which retryPause waits maxRetryPause.
const maxPauseTry = 10

// runInTurn runs a job once, in its turn or in that of another call.
func (s *Store) runInTurn(ctx context.Context, j *writeJob) error {
	w := s.writer
	if w.enqueue(ctx, j) {
		err := w.Do(ctx, func(ctx context.Context) error {
			s.runTogether(ctx, w.take(j))
			return nil
		})
		if err != nil && w.withdraw(j) {
			return err
		}
	}
	<-j.ended // if another call runs it, which is bounded
	return j.err
}

const (
	// claimJoinWait is how long outcomes wait for a claim. They wait only if the latest
	// claim was within claimJoinWindow.
	claimJoinWait   = 10 * time.Millisecond
	claimJoinWindow = 50 * time.Millisecond
)

// enqueue queues a job. While claims keep arriving, outcomes that are not urgent wait for
// the next claim and join its transaction. Otherwise that claim would wait for theirs. It
// returns false if another call has taken the job meanwhile.
func (w *writer) enqueue(ctx context.Context, j *writeJob) bool {
	j.taken, j.ended = make(chan struct{}), make(chan struct{})
	w.mu.Lock()
	w.queue = append(w.queue, j)
	if j.isClaim {
		w.lastClaimAt = time.Now()
	}
	claimsArriving := time.Since(w.lastClaimAt) < claimJoinWindow
	w.mu.Unlock()
	if j.isClaim || j.urgent || !j.sharesTransaction || !claimsArriving {
		return true
	}

	select {
	case <-j.taken:
		return false
	case <-time.After(claimJoinWait):
	case <-ctx.Done():
	}
	return true
}

// take removes a job from the queue together with the jobs that may share its transaction;
// nil if another call has taken it.
func (w *writer) take(j *writeJob) (batch []*writeJob) {
	w.mu.Lock()
	defer w.mu.Unlock()

	if !slices.Contains(w.queue, j) {
		return nil
	}
	batch = []*writeJob{j}
	w.queue = slices.DeleteFunc(w.queue, func(other *writeJob) bool {
		shares := j.sharesTransaction && other.sharesTransaction && other.epoch == j.epoch && !w.conn.standalone.Load()
		if other != j && shares {
			batch = append(batch, other)
		}
		return other == j || shares
	})
	for _, job := range batch {
		close(job.taken)
	}
	return batch
}

// withdraw removes a job from the queue; false if a call has taken it.
func (w *writer) withdraw(j *writeJob) bool {
	w.mu.Lock()
	defer w.mu.Unlock()

	n := len(w.queue)
	w.queue = slices.DeleteFunc(w.queue, func(other *writeJob) bool { return other == j })
	return len(w.queue) < n
}

// runTogether runs jobs in one transaction. If one of them fails, the first, which belongs to
// the call, runs alone, and the others are returned to theirs. The shared transaction is
// bound to the store's lifetime, because the other calls still need the answers.
func (s *Store) runTogether(ctx context.Context, jobs []*writeJob) {
	if len(jobs) == 0 {
		return
	}
	finish := func(err error, jobs ...*writeJob) {
		for _, j := range jobs {
			j.err = err
			close(j.ended)
		}
	}
	if s.runWithoutTransaction(ctx, jobs) {
		finish(nil, jobs...)
		return
	}

	if len(jobs) > 1 {
		all, cancel := s.lifetime.Bind(context.WithoutCancel(ctx))
		defer cancel()
		err := s.transact(all, jobs[0].epoch, turnTimeout, func(ctx context.Context, on *conn) error {
			for _, j := range jobs {
				if err := j.write(ctx, on); err != nil {
					return err
				}
			}
			return nil
		})
		if err == nil || errors.Is(err, store.ErrNotLeader) || errors.As(err, new(*commitError)) {
			finish(err, jobs...)
			return
		}
		finish(errNotShared, jobs[1:]...)
	}
	finish(s.transact(ctx, jobs[0].epoch, jobs[0].turn(), jobs[0].write), jobs[0])
}
