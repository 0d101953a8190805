package main

import (
	"context"
	"io"

	"github.com/sluicebox/sluicebox/cmd/internal/app"
)

// shadowMode is the value of the key mode that makes run a shadow.
const shadowMode = "shadow"

// shadowCommand is `sluicebox shadow`.
type shadowCommand struct {
	configFlag
	JSON bool `name:"json" help:"Print the report as JSON."`
}

// Help is shown under `sluicebox shadow --help`.
func (*shadowCommand) Help() string {
	return `It follows the outbox tables through the log, and finds rows that their polling processor delivers
out of order, leaves unfinished, never reaches or delivers twice. It sends nothing, writes nothing and
leaves nothing in the database. Ctrl-C prints the report; until then sluicebox status shows it.
run does the same with mode: shadow.`
}

// Run watches until the context ends, and prints the report.
func (c *shadowCommand) Run(ctx context.Context, p *program) error {
	cfg, err := c.load(p)
	if err != nil {
		return err
	}
	return p.runShadow(ctx, app.Options{Config: cfg, Log: p.logger(cfg.Settings.Log), Version: currentVersion().Version}, c.JSON)
}

// runShadow watches until the context ends, and prints the report.
func (p *program) runShadow(ctx context.Context, o app.Options, asJSON bool) error {
	report, err := p.relay.shadow(ctx, o)
	if report == nil || err != nil {
		return err
	}
	if asJSON {
		return p.json(report)
	}
	_, err = io.WriteString(p.stdout, report.Text())
	return err
}
