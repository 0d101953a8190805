package app

import (
	"context"
	"strings"

	"github.com/sluicebox/sluicebox/cmd/internal/notify"
)

// supervise tells the service manager, if there is one, how the relay fares, until
// the function that it returns is called.
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

// isWorking reports whether the relay leads and reads, or stands by. Its sinks have no
// part in it: they may be away.
func (r *relay) isWorking() bool {
	for _, c := range r.health.Checks() {
		if !c.OK && !strings.HasPrefix(c.Name, "sink ") {
			return false
		}
	}
	return true
}

// summary is the relay's state in one line.
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

// pingDispatchers asks every dispatcher for something that one that is stuck would not answer.
func (r *relay) pingDispatchers() {
	if lanes := r.currentDispatchers.Load(); lanes != nil {
		for _, d := range *lanes {
			d.Room()
		}
	}
}
