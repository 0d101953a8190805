package mongo

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
	"github.com/sluicebox/sluicebox/store/internal/deadletter"
)

// resolveAction is an operation on FAILED documents. apply returns how many documents it
// matched.
type resolveAction struct {
	apply func(ctx context.Context, t *table, filter bson.D) (int64, error)
	right string // action that the user needs
}

// Requeue implements store.DeadLetters. Claim and settlement times become null where they
// are part of the state; otherwise they stay, as on a retry.
func (s *Store) Requeue(ctx context.Context, epoch store.Epoch, f store.DeadLetterFilter, limit int) ([]store.Item, error) {
	done, err := s.resolveFailed(ctx, epoch, f, limit, resolveAction{requeue, "update"})
	if err != nil {
		return nil, fmt.Errorf("requeue: %w", err)
	}
	return store.RequeuedItems(done, time.Now()), nil
}

// Discard implements store.DeadLetters.
func (s *Store) Discard(ctx context.Context, epoch store.Epoch, f store.DeadLetterFilter, limit int) ([]store.Ref, error) {
	discard := func(ctx context.Context, t *table, filter bson.D) (int64, error) {
		return remove(ctx, t.collection, filter)
	}
	done, err := s.resolveFailed(ctx, epoch, f, limit, resolveAction{discard, "remove"})
	if err != nil {
		return nil, fmt.Errorf("discard: %w", err)
	}
	return store.Refs(done), nil
}

func requeue(ctx context.Context, t *table, filter bson.D) (int64, error) {
	nullable := func(string) bool { return false }
	return t.update(ctx, filter, set(columns.Requeue(&t.Layout, nullable), func(columns.Value) any { return t.status(store.Pending) }))
}

func (s *Store) resolveFailed(ctx context.Context, epoch store.Epoch, f store.DeadLetterFilter, limit int, m resolveAction) ([]store.DeadLetter, error) {
	return deadletter.Resolve(f.Outbox,
		func() ([]store.DeadLetter, error) { return s.failed(ctx, f, limit, false) },
		func(letters []store.DeadLetter) (done []store.DeadLetter, err error) {
			o := s.outboxes.Lookup(f.Outbox)
			err = s.runAsLeader(ctx, epoch, func(ctx context.Context, on *conn) (err error) {
				done, err = s.resolveRows(ctx, on, on.table(o), letters, m)
				return err
			})
			if err != nil {
				return nil, m.explain(err, o)
			}
			return done, nil
		})
}

// resolveRows applies the action to the documents that are still FAILED, and deletes the
// holds they caused, in the call's transaction. It returns those documents in order.
func (s *Store) resolveRows(ctx context.Context, on *conn, t *table, letters []store.DeadLetter, m resolveAction) (done []store.DeadLetter, err error) {
	ids := make([]string, len(letters))
	for i := range letters {
		ids[i] = letters[i].ID
	}

	failed, err := t.failedAmong(ctx, ids)
	if err != nil || len(failed) == 0 {
		return nil, err
	}

	ids = ids[:0]
	for i := range letters {
		if failed[letters[i].ID] {
			done = append(done, letters[i])
			ids = append(ids, letters[i].ID)
		}
	}

	n, err := m.apply(ctx, t, append(bson.D{t.idIn(ids)}, t.failed()...))
	switch {
	case err != nil:
		return nil, err
	case n != int64(len(ids)):
		return nil, &store.RefusedError{Err: fmt.Errorf("outbox %s: %d FAILED documents share an id of another type, or changed meanwhile; give them distinct ids", t.Name, n-int64(len(ids)))}
	}

	return done, s.deleteBlocks(ctx, on, t.Name, ids)
}

// explain names the action that the user may lack: a relay whose layout deletes nothing
// works without remove until an operator discards a document.
func (m resolveAction) explain(err error, o *store.Outbox) error {
	if hasCode(err, codeUnauthorized) {
		return &store.SetupError{
			Problem: fmt.Sprintf("outbox %s: %s", o.Name, shortErrorText(err)),
			Remedy:  fmt.Sprintf("grant the relay's user the action %s on %s", m.right, o.Table),
		}
	}
	return asRefused(err)
}
