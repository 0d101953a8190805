package main

import (
	"context"

	"github.com/sluicebox/sluicebox/cmd/internal/app"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
)

// runCommand is `sluicebox run`.
type runCommand struct {
	configFlag
}

// Run relays until the context ends.
func (c *runCommand) Run(ctx context.Context, p *program) error {
	path, found, err := c.file(p)
	if err != nil {
		return err
	}
	cfg, err := config.Load(path, p.environ)
	if err != nil {
		return err
	}
	log := p.logger(cfg.Settings.Log)
	if found {
		log.Info("configuration file found", "file", path)
	}
	return p.relay.run(ctx, app.Options{
		Config:  cfg,
		Log:     log,
		Version: currentVersion().Version,
	})
}
