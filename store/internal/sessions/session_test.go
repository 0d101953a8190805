package sessions_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/store/internal/sessions"
)

var (
	errAnswer  = errors.New("an answer")
	errTrouble = errors.New("trouble")
)

// link counts how often it is opened and closed.
type link struct {
	open           bool
	opened, closed int
}

func (l *link) Ready(context.Context) error {
	if !l.open {
		l.open = true
		l.opened++
	}
	return nil
}

func (l *link) Survives(err error) bool { return errors.Is(err, errAnswer) }

func (l *link) Drop() {
	if l.open {
		l.open = false
		l.closed++
	}
}

// TestSession: the first call opens the link, answers keep it open, other errors close it,
// and Close closes it for good.
func TestSession(t *testing.T) {
	life, l := sessions.NewLifetime(), &link{}
	s := sessions.New(life, l)
	for i, step := range []struct {
		answer         error
		opened, closed int
	}{{nil, 1, 0}, {errAnswer, 1, 0}, {errTrouble, 1, 1}, {nil, 2, 1}} {
		err := s.Do(t.Context(), func(context.Context) error { return step.answer })
		if !errors.Is(err, step.answer) || l.opened != step.opened || l.closed != step.closed {
			t.Errorf("step %d: %v, opened %d times, closed %d times", i, err, l.opened, l.closed)
		}
	}

	life.End()
	s.Close()
	s.Close()
	if err := s.Do(t.Context(), func(context.Context) error { return nil }); !errors.Is(err, sessions.ErrClosed) || l.closed != 2 {
		t.Errorf("after the end: %v, closed %d times", err, l.closed)
	}
}

// TestIdle: a link that no call has used for long enough is closed, and the next call opens it again. A call
// that lasts longer keeps it.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		life, l := sessions.NewLifetime(), &link{}
		s := sessions.New(life, l)
		s.CloseIdle(30 * time.Second)
		use := func(lasts time.Duration) {
			t.Helper()
			if err := s.Do(t.Context(), func(context.Context) error { time.Sleep(lasts); return nil }); err != nil {
				t.Fatal(err)
			}
		}
		look := func(is func(*link) bool, wrong string) {
			t.Helper()
			synctest.Wait()
			if free := s.TryDo(func() {
				if !is(l) {
					t.Errorf("%s: opened %d times, closed %d times", wrong, l.opened, l.closed)
				}
			}); !free {
				t.Error("a call uses it")
			}
		}
		use(0)
		for range 4 {
			time.Sleep(20 * time.Second)
			use(0)
		}
		use(2 * time.Minute)
		time.Sleep(29 * time.Second)
		look(func(l *link) bool { return l.opened == 1 && l.closed == 0 }, "it was closed while calls used it")
		time.Sleep(time.Minute)
		look(func(l *link) bool { return !l.open }, "it is open after a minute without a call")
		use(0)
		look(func(l *link) bool { return l.opened == 2 && l.open }, "the next call did not open it again")
		life.End()
		s.Close()
		time.Sleep(time.Minute)
		look(func(l *link) bool { return l.closed == 2 }, "it was not closed once at the end")
		life.Wait()
	})
}

// TestTurns: a call waits for the running call until its context ends, and the end of the
// lifetime interrupts both.
func TestTurns(t *testing.T) {
	life, l := sessions.NewLifetime(), &link{}
	s := sessions.New(life, l)
	inside, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- s.Do(context.Background(), func(ctx context.Context) error {
			close(inside)
			<-ctx.Done()
			return context.Cause(ctx)
		})
	}()

	<-inside
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Do(gone, func(context.Context) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("call with a canceled context: got %v, want Canceled", err)
	}
	if s.TryDo(func() { t.Error("TryDo ran during a call") }) {
		t.Error("TryDo reports a free session")
	}

	life.End()
	if err := <-ended; !errors.Is(err, sessions.ErrClosed) {
		t.Errorf("running call: got %v, want ErrClosed", err)
	}

	s.Close()
	if !s.TryDo(func() {}) || l.open {
		t.Error("the session is not free, or its link is open")
	}
}
