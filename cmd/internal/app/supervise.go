package app

import (
	"context"
	"strings"

	"github.com/sluicebox/sluicebox/cmd/internal/notify"
)

// supervise reports the relay's state to the service manager, if any, until end is
// called.
func (r *relay) supervise(ctx context.Context) (end func(), err error) {
	manager, err := notify.New()
	if err != nil {
		return nil, err
	}
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		manager.Run(ctx, ended, notify.Service{
			Ready: r.isWorking, Status: r.summary, Ping: r.pingDispatchers,
			OnError: func(err error) { r.log.Warn("sd_notify failed", "error", err) },
		})
	}()
	return func() { close(ended); <-done }, nil
}

// isWorking reports whether the relay reads as leader or stands by. Checks of a sink do not
// count, because a receiver may be down or a row may be unspillable, and a service manager
// would end a relay that delivers everything else.
func (r *relay) isWorking() bool {
	for _, c := range r.health.Checks() {
		if !c.OK && !strings.HasPrefix(c.Name, "sink ") && !strings.HasPrefix(c.Name, spillCheckPrefix) {
			return false
		}
	}
	return true
}

// summary returns the relay's state in one line.
func (r *relay) summary() string {
	_, line := r.Leader()
	for _, c := range r.Checks() {
		if !c.OK {
			line += "; " + c.Name + ": " + c.Detail
		} else if c.Name == "source" {
			line += "; " + c.Detail
		}
	}
	return line
}

// pingDispatchers calls every dispatcher. A deadlocked dispatcher does not return, which
// stops the watchdog's keep-alive.
func (r *relay) pingDispatchers() {
	if lanes := r.currentDispatchers.Load(); lanes != nil {
		for _, d := range *lanes {
			d.Room()
		}
	}
}
