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
	"github.com/sluicebox/sluicebox/store/internal/lifetime"
	"github.com/sluicebox/sluicebox/store/internal/session"
)

// writer is the session of a store that writes in transactions, one at a time: each
// begins with the leader document, so that two of them would take each other's turn
// away (WriteConflict). The session stays the same as long as the store lives: its id
// stands in the leader document, where the next leader finds what to kill, and the
// server ends what a transaction left open when the next one of the session begins.
type writer struct {
	*session.Session
	server *server
	conn   *conn

	mu          sync.Mutex
	queue       []*writeJob // in the order in which they came
	lastClaimAt time.Time   // when the latest claim came
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

// Survives implements session.Link: the driver replaces connections that fail.
func (w *writer) Survives(error) bool { return true }

// Drop implements session.Link. The session ends with the connections.
func (w *writer) Drop() {}

const (
	// transactionTimeout bounds how long a call begins transactions anew that the server has
	// taken back.
	transactionTimeout = commandTimeout
	// rowTimeout is how long a call waits for documents that somebody else changes.
	rowTimeout = 2 * time.Second
	// maxRetryPause is the longest pause between two tries.
	maxRetryPause = 50 * time.Millisecond
)

// runAsLeader runs write in a transaction of the leader of an epoch. It may run it several
// times: what it did before was taken back.
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

// checkEpoch writes the leader document, and returns store.ErrNotLeader unless it
// holds the epoch and this store took it. No other write that does so can commit until
// the transaction ends, and none that raises the epoch: whichever comes second finds
// the document changed. The name tells two relays apart that two servers gave the same
// epoch.
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

// leaderBusyError says that somebody else has the leader document.
type leaderBusyError struct{ err error }

func (e *leaderBusyError) Error() string { return "the leader document: " + e.err.Error() }

func (e *leaderBusyError) Unwrap() error { return e.err }

// transact runs do in a transaction. One that the server has taken back begins anew;
// where it was for a document that somebody else changes, as long as wait. Without a
// replica set there are no transactions: do runs as it is.
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

// retryPause waits a little before the next try, and reports false if the context has ended.
func retryPause(ctx context.Context, try int) bool {
	most := min(maxRetryPause, time.Millisecond<<min(try, 10))
	select {
	case <-ctx.Done():
		return false
	case <-time.After(most/2 + rand.N(most/2)):
		return true
	}
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
		w.abandon() // a server that says nothing hears of it by the next transaction of the session
		return err
	}
	bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = w.conn.writeSession.AbortTransaction(bye) // the reason is err
	return err
}

// abandon lets the driver begin another transaction, and tells the server nothing. After
// a commit that was answered once and then not any more, the driver goes on committing:
// it would take the next transaction for committed without a word to the server. To abort
// clears that only before the first answer, a transaction that cannot be begun always.
func (w *writer) abandon() {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	_ = w.conn.writeSession.AbortTransaction(ended) // it fails where there is none any more
	if w.conn.writeSession.StartTransaction(options.Transaction().SetWriteConcern(writeconcern.Unacknowledged())) == nil {
		_ = w.conn.writeSession.AbortTransaction(ended) // nothing was sent of it
	}
}

// commit commits, and asks again for as long as nobody knows whether it was: the
// server tells what became of a transaction, also a new primary of what the old one
// did. An error is either one by which it was not committed for sure, see isAborted, or a
// *commitError.
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
// driver gives the same label to errors of its own, also where an earlier commit is not
// answered.
func isAborted(err error) bool {
	var said mongo.CommandError
	return hasLabel(err, "TransientTransactionError") && errors.As(err, &said) && said.Code != 0
}

// commitError says that nobody knows whether a transaction was committed.
type commitError struct{ err error }

func (e *commitError) Error() string {
	return "nobody knows whether the transaction was committed: " + e.err.Error()
}

// As keeps what the server said from being taken for a refusal.
func (e *commitError) Unwrap() error { return e.err }

// read runs a call that reads what a majority has, no older than what the store wrote.
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
				return fmt.Errorf("a session: %w", err)
			}
		}
		return call(mongo.NewSessionContext(ctx, reading), on)
	})
}
