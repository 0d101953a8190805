package sessions_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/store/internal/sessions"
)

// TestPair: the second session serves a call while the first is busy, once it has answered. No call waits for
// it: not while it is opened, however long that takes, nor when the server has none left.
func TestPair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		life := sessions.NewLifetime()
		defer life.Wait()
		defer life.End()
		tests, refused := 0, errors.New("too many connections")
		answer := func(context.Context) error { return refused }
		p := sessions.NewPair(life, func(ctx context.Context) error { tests++; return answer(ctx) })
		take := func(when string, want, tested int) (done func(error)) {
			t.Helper()
			before := time.Now()
			got, done := p.Take()
			if waited := time.Since(before); got != want || waited > 0 {
				t.Errorf("%s: session %d after %v, want %d at once", when, got, waited, want)
			}
			if synctest.Wait(); tests != tested {
				t.Errorf("%s: %d tests, want %d", when, tests, tested)
			}
			return done
		}
		take("alone", 0, 0)(nil)
		first := take("alone again", 0, 0)
		take("the server has none", 0, 1)(nil)
		time.Sleep(59 * time.Second)
		take("before a minute", 0, 1)(nil)

		time.Sleep(2 * time.Second)
		answer = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		take("it does not answer", 0, 2)(nil)
		take("it still does not", 0, 2)(nil)
		time.Sleep(6 * time.Second)
		take("given up", 0, 2)(nil)

		time.Sleep(time.Minute)
		answer = func(context.Context) error { return nil }
		take("to be opened", 0, 3)(nil)
		second := take("open", 1, 3)
		take("both busy", 0, 3)(nil)
		second(nil)
		take("open", 1, 3)(errors.New("lost"))
		take("lost", 0, 4)(nil)
		take("open again", 1, 4)(nil)
		time.Sleep(2 * time.Second)
		take("after a pause", 0, 5)(nil)
		take("tested", 1, 5)(nil)
		first(nil)
		take("the first is free", 0, 5)(nil)
	})
}
