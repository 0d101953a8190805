package dispatch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

var errDeposed = fmt.Errorf("deposed: %w", store.ErrNotLeader)

// lease is one that a test puts in doubt, settles and takes away.
type lease struct {
	mu   sync.Mutex
	sure chan struct{} // closed while the leader is sure
	lost chan struct{}
}

// channels makes them when they are first asked for, so in the test's bubble.
func (l *lease) channels() (sure, lost chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost == nil {
		l.sure, l.lost = make(chan struct{}), make(chan struct{})
		close(l.sure)
	}
	return l.sure, l.lost
}

func (l *lease) Await(ctx context.Context) error {
	sure, lost := l.channels()
	select {
	case <-lost:
		return errDeposed
	default:
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-lost:
		return errDeposed
	case <-sure:
		return nil
	}
}

func (l *lease) Lost() <-chan struct{} { _, lost := l.channels(); return lost }

func (l *lease) lose() { _, lost := l.channels(); close(lost) }

// doubt keeps requests from being started until settle is called.
func (l *lease) doubt() (settle func()) {
	l.channels()
	l.mu.Lock()
	defer l.mu.Unlock()
	sure := make(chan struct{})
	l.sure = sure
	return func() { close(sure) }
}

// A leader in doubt starts no request, not even the halves of one that failed.
// What is under way goes on, and nothing is lost once the doubt is gone.
func TestNoRequestStartsInDoubt(t *testing.T) {
	var l lease
	driveLeased(t, DefaultConfig(), &l, func(k *desk, d *Dispatcher, _ func(error) error) {
		var settle func()
		k.set(func() {
			k.answer = func(ids []string) sink.Result {
				if len(ids) > 1 {
					settle = l.doubt()
					<-time.After(10 * time.Millisecond)
					return always(sink.Rejected)(ids)
				}
				return always(sink.Delivered)(ids)
			}
		})
		add(t, d, nil, items("a", "1", "2"))
		k.pass(time.Minute)
		k.expect(t, "requests in doubt", k.requests, "[[1 2]]")
		settle()
		k.pass(time.Minute)
		k.expect(t, "requests", k.requests, "[[1 2] [1] [2]]")
		if s := d.Stats(); s.Rows != 0 {
			t.Errorf("at rest: %+v", s)
		}
	})
}

// A lost lease cancels what is in flight; nothing is written, and nothing waits
// for the receiver, also where the relay was about to stop and drained.
func TestALostLeaseEndsEverything(t *testing.T) {
	for _, drains := range []bool{false, true} {
		t.Run(fmt.Sprintf("while it drains %v", drains), func(t *testing.T) {
			var l lease
			driveLeased(t, DefaultConfig(), &l, func(k *desk, d *Dispatcher, end func(error) error) {
				k.set(func() { k.hangs = true })
				add(t, d, nil, items("a", "1", "2"))
				k.pass(10 * time.Millisecond)
				began := time.Now()
				go func() {
					if drains {
						<-time.After(500 * time.Millisecond)
					}
					l.lose()
				}()
				if !drains {
					<-d.stopped
				}
				err := end(nil)
				if !errors.Is(err, store.ErrNotLeader) {
					t.Errorf("it ends with %v", err)
				}
				if took := time.Since(began); took > 500*time.Millisecond {
					t.Errorf("it ends after %s", took)
				}
				k.expect(t, "outcomes", len(k.outcomes), 0)
				k.expect(t, "requests", k.requests, "[[1 2]]")
			})
		})
	}
}
