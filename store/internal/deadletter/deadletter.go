// Package deadletter implements store.DeadLetters on any database. It selects rows without a
// lock, which may take long, and then writes those rows that are still FAILED.
package deadletter

import (
	"context"
	"fmt"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/outboxes"
)

// maxTries limits how often rows are selected again because all of them had changed before
// the write.
const maxTries = 5

// Database reads and writes FAILED rows with its own statements.
type Database interface {
	// CountLetters counts the selected rows. It is not called if FiltersInProgram.
	CountLetters(ctx context.Context, r *Read) (int, error)
	// EachLetter calls r.Take for the selected rows.
	EachLetter(ctx context.Context, r *Read) error
	// ResolveLetters writes those of the rows that are still FAILED, durably and in a
	// transaction of the leader, deletes the blocks that they caused, and returns them in
	// their order.
	ResolveLetters(ctx context.Context, epoch store.Epoch, o *store.Outbox, a Action, letters []store.DeadLetter) ([]store.DeadLetter, error)
}

// Read selects FAILED rows of an outbox, in the layout's order-by.
type Read struct {
	Outbox  *store.Outbox
	Filter  *store.DeadLetterFilter
	Limit   int // maximum number of rows, 0 for no limit
	Payload bool
	// Begin is called before the first row, and again if the read starts over.
	Begin func()
	Take  func(*store.DeadLetter)
}

// FiltersInProgram reports whether the group of each row must be compared in Go, because
// the group is inside JSON.
func (r *Read) FiltersInProgram() bool { return FiltersInProgram(r.Outbox, r.Filter) }

// FiltersInProgram is the method of the same name.
func FiltersInProgram(o *store.Outbox, f *store.DeadLetterFilter) bool {
	return f.Group != nil && len(o.Layout.GroupPath) > 0
}

// Action is an operator's action on FAILED rows.
type Action uint8

// Actions.
const (
	Requeue Action = iota
	Discard
)

// Right returns the privilege that the action needs on the table.
func (a Action) Right() string {
	if a == Discard {
		return "DELETE"
	}
	return "UPDATE"
}

// Letters implements store.DeadLetters and store.FailedReader.
type Letters struct {
	outboxes *outboxes.Set
	db       Database
}

// New returns the dead letters of a database.
func New(set *outboxes.Set, db Database) *Letters { return &Letters{set, db} }

// CountFailed implements store.DeadLetters.
func (l *Letters) CountFailed(ctx context.Context, f store.DeadLetterFilter) (n int, err error) {
	r := &Read{Filter: &f, Begin: func() { n = 0 }, Take: func(*store.DeadLetter) { n++ }}
	if r.Outbox, err = l.outboxes.FindValid(f.Outbox, &f); err == nil {
		if r.FiltersInProgram() {
			err = l.db.EachLetter(ctx, r)
		} else {
			n, err = l.db.CountLetters(ctx, r)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("count FAILED rows: %w", err)
	}
	return n, nil
}

// Failed implements store.DeadLetters.
func (l *Letters) Failed(ctx context.Context, f store.DeadLetterFilter, limit int, payload bool) ([]store.DeadLetter, error) {
	letters, err := l.read(ctx, f, limit, payload)
	if err != nil {
		return nil, fmt.Errorf("read FAILED rows: %w", err)
	}
	return letters, nil
}

func (l *Letters) read(ctx context.Context, f store.DeadLetterFilter, limit int, payload bool) (letters []store.DeadLetter, err error) {
	if limit <= 0 {
		return nil, fmt.Errorf("outbox %s: limit %d must be positive", f.Outbox, limit)
	}
	o, err := l.outboxes.FindValid(f.Outbox, &f)
	if err != nil {
		return nil, err
	}
	err = l.db.EachLetter(ctx, &Read{
		Outbox: o, Filter: &f, Limit: limit, Payload: payload,
		Begin: func() { letters = nil }, Take: func(d *store.DeadLetter) { letters = append(letters, *d) },
	})
	return letters, err
}

// EachFailed implements store.FailedReader.
func (l *Letters) EachFailed(ctx context.Context, f store.DeadLetterFilter, take func(*store.DeadLetter)) error {
	o, err := l.outboxes.FindValid(f.Outbox, &f)
	if err == nil {
		err = l.db.EachLetter(ctx, &Read{Outbox: o, Filter: &f, Begin: func() {}, Take: take})
	}
	if err != nil {
		return fmt.Errorf("read FAILED rows: %w", err)
	}
	return nil
}

// Requeue implements store.DeadLetters. It sets the times of claim and settlement to NULL
// where they are part of the state and nullable; otherwise they keep their values, as on a
// retry.
func (l *Letters) Requeue(ctx context.Context, epoch store.Epoch, f store.DeadLetterFilter, limit int) ([]store.Item, error) {
	letters, err := l.resolve(ctx, epoch, f, limit, Requeue)
	if err != nil {
		return nil, fmt.Errorf("requeue: %w", err)
	}
	return store.RequeuedItems(l.outboxes.Lookup(f.Outbox), letters, time.Now()), nil
}

// Discard implements store.DeadLetters.
func (l *Letters) Discard(ctx context.Context, epoch store.Epoch, f store.DeadLetterFilter, limit int) ([]store.Ref, error) {
	letters, err := l.resolve(ctx, epoch, f, limit, Discard)
	if err != nil {
		return nil, fmt.Errorf("discard: %w", err)
	}
	return store.Refs(letters), nil
}

func (l *Letters) resolve(ctx context.Context, epoch store.Epoch, f store.DeadLetterFilter, limit int, a Action) ([]store.DeadLetter, error) {
	return Resolve(f.Outbox,
		func() ([]store.DeadLetter, error) { return l.read(ctx, f, limit, false) },
		func(letters []store.DeadLetter) ([]store.DeadLetter, error) {
			return l.db.ResolveLetters(ctx, epoch, l.outboxes.Lookup(f.Outbox), a, letters)
		})
}

// Resolve selects rows of an outbox, writes them, and returns the written rows.
func Resolve(outbox string, choose func() ([]store.DeadLetter, error), write func([]store.DeadLetter) ([]store.DeadLetter, error)) ([]store.DeadLetter, error) {
	for range maxTries {
		letters, err := choose()
		if err != nil {
			return nil, err
		}
		done, err := write(letters)
		if err != nil || len(done) > 0 || len(letters) == 0 {
			return done, err
		}
	}
	return nil, &store.RefusedError{Err: fmt.Errorf("outbox %s: FAILED rows keep changing before the write, or a trigger restores them", outbox)}
}
