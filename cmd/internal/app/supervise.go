package app

import (
	"context"

	"github.com/sluicebox/sluicebox/cmd/internal/notify"
)

// supervise reports the relay's state to the service manager, if any, until end is
// called.
func (p *program) supervise(ctx context.Context) (end func(), err error) {
	manager, err := notify.New()
	if err != nil {
		return nil, err
	}
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		manager.Run(ctx, ended, notify.Service{
			Ready: p.relay.Working, Status: p.summary, Ping: p.relay.Ping,
			OnError: func(err error) { p.log.Warn("sd_notify failed", "error", err) },
		})
	}()
	return func() { close(ended); <-done }, nil
}

// summary returns the relay's state in one line.
func (p *program) summary() string {
	_, line := p.relay.Leader()
	for _, c := range p.relay.Checks() {
		if !c.OK {
			line += "; " + c.Name + ": " + c.Detail
		} else if c.Name == "source" {
			line += "; " + c.Detail
		}
	}
	return line
}
