package sluicebox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// letterTable has FAILED rows, some of which another table refuses.
type letterTable struct {
	mu              sync.Mutex
	failed, refused []string
	calls           int
	err             error
}

func (l *letterTable) discard(_ context.Context, f store.DeadLetterFilter, limit int) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	if l.err != nil {
		return 0, l.err
	}
	chosen := l.failed
	if f.IDs != nil {
		chosen = f.IDs
	}
	chosen = slices.Clone(chosen[:min(limit, len(chosen))])
	if slices.ContainsFunc(chosen, func(id string) bool { return slices.Contains(l.refused, id) }) {
		return 0, &store.RefusedError{Err: errors.New("duplicate key")}
	}
	l.failed = slices.DeleteFunc(l.failed, func(id string) bool { return slices.Contains(chosen, id) })
	return len(chosen), nil
}

func (l *letterTable) list(_ context.Context, _ store.DeadLetterFilter, limit int, _ bool) (letters []store.DeadLetter, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range l.failed[:min(limit, len(l.failed))] {
		letters = append(letters, store.DeadLetter{Ref: store.Ref{Outbox: "shop", ID: id}})
	}
	return letters, nil
}

// TestLetterMover: all rows move at the start and after a signal; a row that the table refuses keeps
// no other row, and is tried again a minute later. A new leader ends it.
func TestLetterMover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &letterTable{refused: []string{"7"}}
		for i := range 1200 {
			l.failed = append(l.failed, fmt.Sprint(i+100))
		}
		signal, moved, refusals := make(chan struct{}, 1), 0, 0
		m := &letterMover{
			outboxes: []store.Outbox{{Name: "shop"}}, failed: signal, discard: l.discard, list: l.list,
			moved: func(_ string, rows int) { moved += rows }, refused: func(string, error) { refusals++ },
		}
		done := make(chan error, 1)
		go func() { done <- m.run(t.Context()) }()
		synctest.Wait()
		l.mu.Lock()
		if moved != 1200 || len(l.failed) != 0 {
			t.Errorf("at the start %d rows moved, want 1200", moved)
		}

		l.failed = []string{"6", "7", "8"}
		l.mu.Unlock()
		signal <- struct{}{}
		synctest.Wait()
		l.mu.Lock()
		if moved != 1202 || !slices.Equal(l.failed, []string{"7"}) || refusals != 1 {
			t.Errorf("%d rows moved, %q are left after %d refusals; want 1202, row 7 and 1", moved, l.failed, refusals)
		}
		l.refused = nil
		l.mu.Unlock()
		time.Sleep(pruneRetryInterval + time.Second)
		synctest.Wait()
		if moved != 1203 {
			t.Errorf("a minute later %d rows have moved, want 1203", moved)
		}

		l.mu.Lock()
		calls := l.calls
		l.mu.Unlock()
		time.Sleep(movedLettersInterval / 2)
		synctest.Wait()
		l.mu.Lock()
		if l.calls != calls {
			t.Errorf("%d looks without a signal, want none", l.calls-calls)
		}
		l.err = store.ErrNotLeader
		l.mu.Unlock()
		time.Sleep(movedLettersInterval)
		if err := <-done; !errors.Is(err, store.ErrNotLeader) {
			t.Errorf("it ends with %v, want ErrNotLeader", err)
		}
	})
}
