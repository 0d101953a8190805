package main

import (
	"context"
	"fmt"
	"strings"

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

// initCommand is `sluicebox init`.
type initCommand struct {
	configFlag
	Print bool `help:"Print the SQL without connecting."`
}

// Run creates the relay's tables and publication, or prints the statements.
func (c *initCommand) Run(ctx context.Context, p *program) error {
	cfg, err := c.load(p)
	if err != nil {
		return err
	}
	if !c.Print {
		return p.relay.init(ctx, cfg, p.logger(cfg.Settings.Log))
	}
	script, err := p.relay.script(cfg)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(p.stdout, strings.TrimRight(script, "\n"))
	return err
}
