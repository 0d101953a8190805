package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/sluicebox/sluicebox/cmd/internal/bench"
	"github.com/sluicebox/sluicebox/cmd/internal/bench/floor"
	"github.com/sluicebox/sluicebox/cmd/internal/quickstart"
)

// benchCommand is `sluicebox bench`.
type benchCommand struct{ bench.Options }

// Validate is called before Run.
func (c *benchCommand) Validate() error { return inOneLine(c.Options.Validate()) }

// inOneLine returns an error without line breaks, or nil.
func inOneLine(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
}

// Run measures a relay.
func (c *benchCommand) Run(ctx context.Context, p *program) error {
	file, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the program to measure: %w", err)
	}
	return bench.Run(ctx, c.Options, bench.Environment{
		Stdout: p.stdout, Stderr: p.stderr, Program: file, Version: currentVersion().Version,
	})
}

// floorCommand runs the minimal program that `sluicebox bench` compares the relay with.
type floorCommand struct{}

// Run reads its configuration from standard input.
func (floorCommand) Run(ctx context.Context, p *program) error {
	var cfg floor.Config
	if err := json.NewDecoder(p.stdin).Decode(&cfg); err != nil {
		return fmt.Errorf("read the floor's configuration from standard input: %w", err)
	}
	return floor.Run(ctx, cfg, func() { _, _ = fmt.Fprintln(p.stdout, bench.FloorReady) })
}

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
