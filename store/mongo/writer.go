package mongo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/backoff"
	"github.com/sluicebox/sluicebox/store/internal/lifetime"
	"github.com/sluicebox/sluicebox/store/internal/session"
)

// writer is the session that writes in transactions, one at a time: each begins by updating
// the leader document, so two of them would only conflict (WriteConflict). The session
// stays the same for the store's lifetime, for two reasons. The next leader finds its id in
// the leader document and kills it. And the server ends an open transaction when the
// session starts its next one.
type writer struct {
	*session.Session
	server *server
	conn   *conn

	mu          sync.Mutex
	queue       []*writeJob // in arrival order
	lastClaimAt time.Time   // when the latest claim arrived
}

func newWriter(v *server, life *lifetime.Lifetime) *writer {
	w := &writer{server: v}
	w.Session = session.New(life, w)
	return w
}

// Ready implements session.Link.
func (w *writer) Ready(ctx context.Context) (err error) {
	w.conn, err = w.server.open(ctx)
	return err
}

// Survives implements session.Link: the driver replaces failed connections.
func (w *writer) Survives(error) bool { return true }

// Drop implements session.Link. The session ends with the connections.
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
// epoch and this store's holder. Until the transaction ends, no other leader write and no
// raise of the epoch can commit: whichever comes second conflicts. The holder distinguishes
// two relays that got the same epoch from two servers.
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
	return s.lifetime.Do(ctx, func(ctx context.Context) error {
		on, err := s.server.open(ctx)
		if err != nil {
			return err
		}
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
