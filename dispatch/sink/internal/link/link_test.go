package link_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/internal/link"
)

// session is a connection that a test breaks.
type session struct{ lost, closed atomic.Bool }

func (s *session) Usable() bool { return !s.lost.Load() }
func (s *session) Close()       { s.closed.Store(true) }

var errNoServer = errors.New("no server")

// Uses at the same time share one attempt. A lost session is closed before the next attempt, and
// a failed one is repeated by the next use.
func TestUsesShareASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var attempts int
		var fail error
		l := link.New(func() (*session, error) {
			time.Sleep(time.Second)
			attempts++
			return &session{}, fail
		})
		get := func() (first *session, err error) {
			var all sync.WaitGroup
			for i := range 10 {
				all.Go(func() {
					s, got := l.Get(t.Context())
					if i == 0 {
						first, err = s, got
					}
				})
			}
			all.Wait()
			return first, err
		}
		s, err := get()
		if again, _ := get(); err != nil || s == nil || again != s || attempts != 1 {
			t.Fatalf("got %v and %v after %d attempts, error %v; want one session", s, again, attempts, err)
		}
		s.lost.Store(true)
		fail = errNoServer
		if got, err := get(); got != nil || !errors.Is(err, errNoServer) || attempts != 2 || !s.closed.Load() {
			t.Errorf("got %v, error %v, after %d attempts; the session before is closed: %v", got, err, attempts, s.closed.Load())
		}
		fail = nil
		next, err := get()
		if err != nil || next == nil || attempts != 3 {
			t.Fatalf("got %v, error %v, after %d attempts", next, err, attempts)
		}
		l.Close()
		if !next.closed.Load() {
			t.Error("Close leaves the session open")
		}
	})
}

// Who gives up leaves the attempt to others. Close waits for it.
func TestAnAttemptOutlivesItsUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var made *session
		l := link.New(func() (*session, error) {
			time.Sleep(time.Minute)
			made = &session{}
			return made, nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if s, err := l.Get(ctx); s != nil || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, error %v", s, err)
		}
		l.Close()
		if made == nil || !made.closed.Load() {
			t.Error("Close did not wait for the attempt, or left its session open")
		}
	})
}
