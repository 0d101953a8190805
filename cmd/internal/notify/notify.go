// Package notify reports the state of a service of Type=notify to systemd, as described
// in sd_notify(3): ready, status, watchdog and stopping. Without a service manager it
// does nothing.
package notify

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// checkInterval is how often the service's state is checked. Delivery does not wait for
// it.
const checkInterval = 250 * time.Millisecond

// Service is the state to report. Its functions are called one at a time.
type Service struct {
	// Ready reports whether the service works. READY=1 is sent once.
	Ready func() bool
	// Status returns the state in one line.
	Status func() string
	// Ping returns after all parts of the service have responded. While it hangs, no
	// notification is sent, so a watchdog restarts the service.
	Ping func()
	// OnError is called with a failed notification, once per reason.
	OnError func(err error)
}

// Manager is the service manager that started the process.
type Manager struct {
	send     func(state string) (heard bool, err error)
	watchdog time.Duration // 0: none
}

// New finds the service manager in the environment. It starts nothing. An invalid
// WATCHDOG_USEC is an error.
func New() (*Manager, error) {
	watchdog, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return nil, fmt.Errorf("read the watchdog interval of the service manager: %w", err)
	}
	return &Manager{
		send:     func(state string) (bool, error) { return daemon.SdNotify(false, state) },
		watchdog: watchdog,
	}, nil
}

// Run sends notifications until ended is closed. When the context ends it sends
// STOPPING=1 and keeps serving the watchdog, because draining takes time. Without a
// service manager it returns at once.
func (m *Manager) Run(ctx context.Context, ended <-chan struct{}, s Service) {
	every := checkInterval
	if m.watchdog > 0 {
		every = min(every, m.watchdog/4)
	}

	tick := time.NewTicker(every)
	defer tick.Stop()
	t := notifier{Manager: m, Service: s}
	stopping := ctx.Done()
	for t.update(time.Now()) {
		select {
		case <-ended:
			return
		case <-stopping:
			stopping = nil
			t.notify(daemon.SdNotifyStopping)
		case <-tick.C:
		}
	}
}

// notifier is the state of one Run.
type notifier struct {
	*Manager
	Service
	ready          bool
	status         string
	watchdogSentAt time.Time // time of the last WATCHDOG=1
	lastError      string
}

// update sends changes of the state. It returns false if no manager listens.
func (t *notifier) update(now time.Time) bool {
	t.Ping()
	var states []string
	if !t.ready && t.Ready() {
		t.ready = true
		states = append(states, daemon.SdNotifyReady)
	}

	// A line break would start another assignment.
	if status := strings.Join(strings.Fields(t.Status()), " "); status != t.status {
		t.status = status
		states = append(states, "STATUS="+status)
	}

	if t.watchdog > 0 && now.Sub(t.watchdogSentAt) >= t.watchdog/4 {
		t.watchdogSentAt = now
		states = append(states, daemon.SdNotifyWatchdog)
	}

	if len(states) == 0 {
		return true
	}
	return t.notify(strings.Join(states, "\n"))
}

func (t *notifier) notify(states string) (heard bool) {
	heard, err := t.send(states)
	switch {
	case err == nil:
		t.lastError = ""
		return heard
	case err.Error() != t.lastError:
		t.lastError = err.Error()
		t.OnError(errors.New("notify the service manager: " + t.lastError))
	}
	return true
}
