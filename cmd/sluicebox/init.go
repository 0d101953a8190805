package main

import (
	"context"
	"fmt"
	"strings"
)

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
