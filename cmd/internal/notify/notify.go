// Package notify tells systemd how a service of Type=notify fares: that it is
// ready, what it does, that it still turns, that it ends (sd_notify(3)). Where no
// service manager has asked for it, it does nothing.
package notify

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// checkInterval is how often a service is looked at. Rows do not wait for it.
const checkInterval = 250 * time.Millisecond

// Service is what the manager is told of. Its functions are called one at a time.
type Service struct {
	// Ready reports whether the service does its work. The manager is told once.
	Ready func() bool
	// Status says in one line what the service does.
	Status func() string
	// Ping returns once the service's parts have answered. While it does not
	// return the manager hears nothing, and with a watchdog it restarts the
	// service.
	Ping func()
	// OnError is told that the manager could not be told, once for each reason.
	OnError func(err error)
}

// Manager is the service manager that started the process.
type Manager struct {
	send     func(state string) (heard bool, err error)
	watchdog time.Duration // 0: none
}

// New finds the service manager in the environment. It starts nothing. A watchdog
// that cannot be understood is an error.
func New() (*Manager, error) {
	watchdog, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return nil, fmt.Errorf("the watchdog of the service manager: %w", err)
	}
	return &Manager{
		send:     func(state string) (bool, error) { return daemon.SdNotify(false, state) },
		watchdog: watchdog,
	}, nil
}

// Run tells the manager of a service until ended is closed. It says that the
// service stops when the context ends, and goes on with the watchdog: draining
// takes a while. It returns at once where no manager listens.
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

// notifier is one Run.
type notifier struct {
	*Manager
	Service
	ready          bool
	status         string
	watchdogSentAt time.Time // when the watchdog was last told
	lastError      string
}

// update says what is new; false is that nobody listens.
func (t *notifier) update(now time.Time) bool {
	t.Ping()
	var states []string
	if !t.ready && t.Ready() {
		t.ready = true
		states = append(states, daemon.SdNotifyReady)
	}
	// A line break would begin another assignment.
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
		t.OnError(errors.New("tell the service manager: " + t.lastError))
	}
	return true
}
