package sessions_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/store/internal/sessions"
)

// full is a link that cannot be opened while the server has no session left.
type full struct {
	link
	tries int
	left  bool
}

func (l *full) Ready(ctx context.Context) error {
	if l.tries++; !l.left {
		return errors.New("too many connections")
	}
	return l.link.Ready(ctx)
}

// TestPair: the second session is opened once the first is busy. While it cannot be opened, calls wait for
// the first, and it is tried again after a minute.
func TestPair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p sessions.Pair
		link := &full{}
		second := sessions.New(sessions.NewLifetime(), link)
		take := func(want, tries int) (free func()) {
			t.Helper()
			got, free := p.Take(t.Context(), second)
			if got != want || link.tries != tries {
				t.Errorf("session %d after %d tries to open the second, want %d after %d", got, link.tries, want, tries)
			}
			return free
		}
		take(0, 0)()
		free := take(0, 0)
		take(0, 1)()
		link.left = true
		time.Sleep(59 * time.Second)
		take(0, 1)()
		time.Sleep(2 * time.Second)
		take(1, 2)()
		free()
		take(0, 2)()

		free = take(0, 2)
		defer free()
		link.left = false
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if number, _ := p.Take(ctx, second); number != 0 {
			t.Errorf("a canceled call has session %d", number)
		}
		link.left = true
		take(1, link.tries+1)()
	})
}
