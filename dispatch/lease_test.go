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

// fakeLease is a lease that a test suspends, confirms and loses.
type fakeLease struct {
	mu        sync.Mutex
	confirmed chan struct{} // closed while the lease is confirmed
	lost      chan struct{}
}

// channels creates the channels on first use, so that they belong to the test's bubble.
func (l *fakeLease) channels() (sure, lost chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost == nil {
		l.confirmed, l.lost = make(chan struct{}), make(chan struct{})
		close(l.confirmed)
	}
	return l.confirmed, l.lost
}

func (l *fakeLease) Await(ctx context.Context) error {
	sure, lost := l.channels()
	select {
	case <-lost:
		return errDeposed
	default:
	}
	select {
	case <-sure:
		return nil
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

func (l *fakeLease) Lost() <-chan struct{} { _, lost := l.channels(); return lost }

func (l *fakeLease) lose() { _, lost := l.channels(); close(lost) }

// suspend keeps requests from starting until the returned function is called.
func (l *fakeLease) suspend() (settle func()) {
	l.channels()
	l.mu.Lock()
	defer l.mu.Unlock()
	sure := make(chan struct{})
	l.confirmed = sure
	return func() { close(sure) }
}

// Without a confirmed lease no request starts, not even the halves of a failed one.
// Requests in flight go on, and no row is lost once the lease is confirmed.
func TestNoRequestStartsWithoutLease(t *testing.T) {
	var l fakeLease
	driveLeased(t, DefaultConfig(), &l, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		var settle func()
		k.set(func() {
			k.answer = func(ids []string) sink.Result {
				if len(ids) > 1 {
					settle = l.suspend()
					<-time.After(10 * time.Millisecond)
					return always(sink.Rejected)(ids)
				}
				return always(sink.Delivered)(ids)
			}
		})
		add(t, d, nil, items("a", "1", "2"))
		k.advance(time.Minute)
		k.expect(t, "requests in doubt", k.requests, "[[1 2]]")
		settle()
		k.advance(time.Minute)
		k.expect(t, "requests", k.requests, "[[1 2] [1] [2]]")
		if s := d.Stats(); s.Rows != 0 {
			t.Errorf("at rest: %+v", s)
		}
	})
}

// A lost lease cancels the requests in flight. Nothing is written, and the run does not
// wait for the receiver, even if it was already draining.
func TestLostLeaseEndsRun(t *testing.T) {
	for _, drains := range []bool{false, true} {
		t.Run(fmt.Sprintf("while it drains %v", drains), func(t *testing.T) {
			var l fakeLease
			driveLeased(t, DefaultConfig(), &l, func(k *fakeBackend, d *Dispatcher, end func(error) error) {
				k.set(func() { k.hang = true })
				add(t, d, nil, items("a", "1", "2"))
				k.advance(10 * time.Millisecond)
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
