package main

import (
	"context"
	"os"

	"github.com/sluicebox/sluicebox/cmd/internal/quickstart"
)

// quickstartCommand is `sluicebox quickstart`.
type quickstartCommand struct{ quickstart.Options }

// Validate is called before Run.
func (c *quickstartCommand) Validate() error { return inOneLine(c.Options.Validate()) }

// Run shows a working relay.
func (c *quickstartCommand) Run(ctx context.Context, p *program) error {
	return quickstart.Run(ctx, c.Options, quickstart.Environment{
		Stdout: p.stdout, Stderr: p.stderr, Terminal: p.stderrIsTerminal(),
		Command: os.Args[0], Version: currentVersion().Version, Relay: p.relay.run,
	})
}

// stderrIsTerminal reports whether a line on standard error can be redrawn.
func (p *program) stderrIsTerminal() bool {
	return p.variable("TERM") != "dumb" && isTerminal(p.stderr)
}
