package main

import (
	"context"

	"github.com/sluicebox/sluicebox/cmd/internal/app"
)

// runCommand is `sluicebox run`.
type runCommand struct {
	configFlag
}

// Run relays until the context ends.
func (c *runCommand) Run(ctx context.Context, p *program) error {
	cfg, err := c.load(p)
	if err != nil {
		return err
	}
	return p.relay.run(ctx, app.Options{
		Config:  cfg,
		Log:     p.logger(cfg.Settings.Log),
		Version: currentVersion().Version,
	})
}
