package sessions

import (
	"context"
	"errors"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// held counts the calls of a lock to its session.
type held struct {
	lost              bool
	unlocked, dropped int
}

func (h *held) Lost() bool             { return h.lost }
func (h *held) Unlock(context.Context) { h.unlocked++ }
func (h *held) Drop()                  { h.dropped++ }

// TestLockIsLost: after an error the lock is lost, and each later call returns that error.
func TestLockIsLost(t *testing.T) {
	session, broken := &held{}, errors.New("broken")
	l := NewLock(session)
	if err := l.Use(t.Context(), func(context.Context) error { return nil }); err != nil || session.dropped != 0 {
		t.Errorf("successful call: %v, dropped %d times", err, session.dropped)
	}

	for range 2 {
		err := l.Use(t.Context(), func(context.Context) error { return broken })
		if !errors.Is(err, broken) || session.dropped != 1 {
			t.Errorf("got %v, dropped %d times", err, session.dropped)
		}
	}

	l.Release()
	if session.unlocked != 0 || session.dropped != 1 {
		t.Errorf("lost lock: unlocked %d times, dropped %d times, want 0 and 1", session.unlocked, session.dropped)
	}
}

// TestLockRelease: Release ends the running call and unlocks on its session unless that is
// lost; later calls fail.
func TestLockRelease(t *testing.T) {
	for _, lost := range []bool{false, true} {
		session := &held{lost: lost}
		l, began, done := NewLock(session), make(chan struct{}), make(chan error, 1)
		go func() {
			done <- l.Use(context.Background(), func(ctx context.Context) error {
				close(began)
				<-ctx.Done()
				return ctx.Err()
			})
		}()

		<-began
		l.Release()
		l.Release()
		if err := <-done; !errors.Is(err, errReleased) || !errors.Is(err, context.Canceled) {
			t.Errorf("running call: got %v, want errReleased and Canceled", err)
		}
		if err := l.Use(t.Context(), func(context.Context) error { return nil }); !errors.Is(err, errReleased) {
			t.Errorf("later call: got %v, want errReleased", err)
		}
		if unlocked := session.unlocked == 1; unlocked == lost || session.dropped != 1 {
			t.Errorf("session lost %v: unlocked %d times, dropped %d times", lost, session.unlocked, session.dropped)
		}
	}
}
