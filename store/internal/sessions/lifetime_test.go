package sessions

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

type view struct{ closed int }

func (v *view) Close() { v.closed++ }

func TestLifetimeEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLifetime()
		ctx, cancel := l.Bind(context.Background())
		defer cancel()
		open, gone := &view{}, &view{}
		if !l.Begin() || !l.Add(open) || !l.Add(gone) || l.Ended() {
			t.Fatal("lifetime ended before End")
		}

		l.Remove(gone)
		l.End()
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), ErrClosed) {
			t.Errorf("bound call: got %v, want ErrClosed", context.Cause(ctx))
		}
		if open.closed != 1 || gone.closed != 0 {
			t.Errorf("closed %d times and %d times", open.closed, gone.closed)
		}
		if l.Begin() || l.Add(&view{}) || !l.Ended() {
			t.Error("lifetime continues after End")
		}

		waited := make(chan struct{})
		go func() { l.Wait(); close(waited) }()
		synctest.Wait()
		select {
		case <-waited:
			t.Error("Wait did not wait for work")
		default:
		}

		l.Done()
		<-waited
	})
}
