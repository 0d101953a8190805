package notify

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fakeManager is a service manager and the service that reports to it.
type fakeManager struct {
	mu     sync.Mutex
	heard  []string
	failed []string
	fails  error
	ready  bool
	status string
	hang   chan struct{} // Ping waits for it unless nil
}

// set changes the service, or reads the notifications, under the lock.
func (d *fakeManager) set(change func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change()
}

func (d *fakeManager) manager(watchdog time.Duration) *Manager {
	return &Manager{watchdog: watchdog, send: func(state string) (heard bool, err error) {
		d.set(func() {
			if err = d.fails; err == nil {
				d.heard = append(d.heard, strings.Split(state, "\n")...)
			}
		})
		return err == nil, err
	}}
}

func (d *fakeManager) service() Service {
	return Service{
		Ready:  func() (ready bool) { d.set(func() { ready = d.ready }); return ready },
		Status: func() (status string) { d.set(func() { status = d.status }); return status },
		Ping: func() {
			var hang chan struct{}
			if d.set(func() { hang = d.hang }); hang != nil {
				<-hang
			}
		},
		OnError: func(err error) { d.set(func() { d.failed = append(d.failed, err.Error()) }) },
	}
}

// count returns how often a notification arrived.
func (d *fakeManager) count(state string) (n int) {
	d.set(func() {
		for _, s := range d.heard {
			if s == state {
				n++
			}
		}
	})
	return n
}

// run reports the service while do runs, in a synctest bubble.
func run(t *testing.T, d *fakeManager, watchdog time.Duration, do func(stop context.CancelFunc)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		ended, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			d.manager(watchdog).Run(ctx, ended, d.service())
		}()
		do(stop)
		close(ended)
		<-done
		stop()
	})
}

// pass lets time pass in a bubble.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestReadyOnce(t *testing.T) {
	d := &fakeManager{status: "waiting"}
	run(t, d, 0, func(stop context.CancelFunc) {
		pass(time.Minute)
		d.set(func() {
			if !slices.Equal(d.heard, []string{"STATUS=waiting"}) {
				t.Errorf("before it is ready: %q", d.heard)
			}
			d.ready, d.status = true, "leading,\n epoch 7"
		})
		pass(time.Minute)
		d.set(func() { d.ready = false }) // READY=1 is not taken back
		pass(time.Minute)
		d.set(func() { d.ready = true })
		pass(time.Minute)
		stop()
		pass(time.Minute)
	})
	if want := []string{"STATUS=waiting", "READY=1", "STATUS=leading, epoch 7", "STOPPING=1"}; !slices.Equal(d.heard, want) {
		t.Errorf("heard %q, want %q", d.heard, want)
	}
}

// The watchdog is notified more often than it requires, also during shutdown, but not
// while a part of the service hangs.
func TestWatchdog(t *testing.T) {
	const watchdog = 10 * time.Second
	d := &fakeManager{ready: true}
	run(t, d, watchdog, func(stop context.CancelFunc) {
		expect := func(when string, least, most int) {
			before := d.count("WATCHDOG=1")
			pass(10 * watchdog)
			if n := d.count("WATCHDOG=1") - before; n < least || n > most {
				t.Errorf("%s: %d signs of life in ten times the interval, want %d to %d", when, n, least, most)
			}
		}
		expect("it runs", 20, 50)
		hang := make(chan struct{})
		d.set(func() { d.hang = hang })
		pass(watchdog)
		expect("it hangs", 0, 0)
		d.set(func() { d.hang = nil })
		close(hang)
		expect("it goes on", 20, 50)
		stop()
		expect("it stops", 20, 50)
	})
	if d.count("STOPPING=1") != 1 {
		t.Errorf("heard %q", d.heard)
	}
}

func TestUntoldManager(t *testing.T) {
	d := &fakeManager{ready: true, fails: errors.New("no such socket")}
	run(t, d, time.Second, func(context.CancelFunc) { pass(time.Minute) })
	if len(d.failed) != 1 || !strings.Contains(d.failed[0], "no such socket") {
		t.Errorf("it failed with %q", d.failed)
	}
}

// Without a manager Run returns, and does not check the service again.
func TestNoManager(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	t.Setenv("WATCHDOG_USEC", "")
	m, err := New()
	if err != nil {
		t.Fatal(err)
	}
	d := &fakeManager{ready: true}
	m.Run(t.Context(), nil, d.service())
	if len(d.failed) > 0 {
		t.Errorf("it failed with %q", d.failed)
	}
	t.Setenv("WATCHDOG_USEC", "soon")
	if _, err := New(); err == nil || !strings.Contains(err.Error(), "WATCHDOG_USEC") {
		t.Errorf("a watchdog of %q: %v", "soon", err)
	}
}
