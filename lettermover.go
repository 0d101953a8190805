package sluicebox

import (
	"context"
	"errors"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

const (
	// movedLetters is the number of FAILED rows that one transaction moves at most.
	movedLetters = 500

	// movedLettersInterval is the time between two looks for FAILED rows that another program wrote,
	// or that an earlier leader left.
	movedLettersInterval = time.Hour
)

// letterMover moves FAILED rows into the tables for dead letters that outboxes have: at the start,
// when a row becomes FAILED, and once an hour.
type letterMover struct {
	outboxes []store.Outbox
	failed   <-chan struct{} // signals that a row became FAILED

	// discard takes FAILED rows out of an outbox, list reads them.
	discard func(ctx context.Context, f store.DeadLetterFilter, limit int) (int, error)
	list    func(ctx context.Context, f store.DeadLetterFilter, limit int, payload bool) ([]store.DeadLetter, error)

	moved   func(outbox string, rows int)
	refused func(outbox string, err error)
}

// newLetterMover returns the mover of a session.
func (r *Relay) newLetterMover() *letterMover {
	letters := r.DeadLetters()
	m := &letterMover{
		failed: r.rowFailed, list: letters.List,
		discard: func(ctx context.Context, f store.DeadLetterFilter, limit int) (int, error) {
			to, err := letters.dispatcherForFilter(&f)
			if err != nil {
				return 0, err
			}
			return to.Discard(ctx, f, limit)
		},
		moved: func(outbox string, rows int) { r.log.Info("dead letters moved", "outbox", outbox, "rows", rows) },
		refused: func(outbox string, err error) {
			r.log.Warn("dead letters not moved; retrying", "outbox", outbox, "error", err)
		},
	}
	for _, o := range r.opt().tables() {
		if o.FailedArchive != "" {
			m.outboxes = append(m.outboxes, o)
		}
	}
	return m
}

// run moves rows until the context ends and returns its error. It returns store.ErrNotLeader when
// another relay has become leader.
func (m *letterMover) run(ctx context.Context) error {
	for {
		pause := movedLettersInterval
		for i := range m.outboxes {
			name := m.outboxes[i].Name
			err := m.moveAll(ctx, name)
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case errors.Is(err, store.ErrNotLeader):
				return err
			case err != nil:
				m.refused(name, err)
				pause = pruneRetryInterval
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-m.failed:
		case <-time.After(pause):
		}
	}
}

// moveAll moves the FAILED rows of an outbox.
func (m *letterMover) moveAll(ctx context.Context, outbox string) error {
	all := store.DeadLetterFilter{Outbox: outbox}
	for {
		n, err := m.discard(ctx, all, movedLetters)
		if errors.As(err, new(*store.RefusedError)) {
			return m.moveEach(ctx, all)
		}
		if n > 0 {
			m.moved(outbox, n)
		}
		if err != nil || n == 0 {
			return err
		}
	}
}

// moveEach moves rows one by one, because the table for dead letters refuses some of them, for
// example one whose id it has. It returns the error of the last of these.
func (m *letterMover) moveEach(ctx context.Context, all store.DeadLetterFilter) (err error) {
	letters, err := m.list(ctx, all, movedLetters, false)
	moved := 0
	for i := range letters {
		n, rowErr := m.discard(ctx, store.DeadLetterFilter{Outbox: all.Outbox, IDs: []string{letters[i].ID}}, 1)
		if moved += n; rowErr == nil {
			continue
		}
		if err = rowErr; !errors.As(err, new(*store.RefusedError)) {
			break
		}
	}
	if moved > 0 {
		m.moved(all.Outbox, moved)
	}
	return err
}
