package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/bench"
	"github.com/sluicebox/sluicebox/cmd/internal/bench/floor"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
)

// benchCommand is `sluicebox bench`.
type benchCommand struct {
	Source   string        `placeholder:"URL" required:"" help:"A server of PostgreSQL, MySQL, MariaDB or MongoDB: postgres://user@host/database, mysql://…, mariadb://… or mongodb://…. Databases are created on it and removed afterwards."`
	Scenario string        `default:"latency" placeholder:"NAME" help:"latency, drain, slow-receiver, blocked-group, idle or big-table. Default: ${default}."`
	Rate     int           `placeholder:"N" help:"Rows written per second. This and the following flags have a default per scenario."`
	Rows     int           `placeholder:"N" help:"Rows to drain, to block, or already in the table."`
	Groups   int           `placeholder:"N" help:"Message groups."`
	Size     int           `placeholder:"BYTES" help:"Size of a payload. Default: 200."`
	Clients  int           `placeholder:"N" help:"Writing sessions. Default: 4."`
	Duration time.Duration `placeholder:"TIME" help:"Duration of the load, or of idling."`
	Repeat   int           `placeholder:"N" help:"Measurements of each side, of which the median counts. Default: 5."`
	Delay    time.Duration `placeholder:"TIME" help:"Duration of a request in the receiver."`
	Senders  int           `placeholder:"N" help:"The relay's max-concurrent-groups. Default: 10, slow-receiver 64."`
	Batch    int           `placeholder:"N" help:"The relay's api-batch-size. Default: 100, slow-receiver 1."`
	Layout   string        `placeholder:"NAME" help:"The outbox's table: flowcatalyst or outbox-messages. Default: flowcatalyst."`

	Ungrouped bool   `help:"Send rows without a message group, in parallel."`
	NoClaims  bool   `help:"Measure the relay with dispatch.claims off. The floor still claims."`
	Profile   string `placeholder:"FOLDER" help:"Write profiles of the relay's first turn to this folder: CPU, allocations, locks, and the server's statement statistics, if enabled."`
	JSON      bool   `name:"json" help:"Print the result as JSON."`
}

func (c *benchCommand) options() bench.Options {
	return bench.Options{
		Source: config.URL(c.Source), Scenario: c.Scenario, Rate: c.Rate, Rows: c.Rows, Groups: c.Groups, Size: c.Size,
		Clients: c.Clients, Duration: c.Duration, Repeat: c.Repeat, Delay: c.Delay, Senders: c.Senders, Batch: c.Batch,
		Layout: c.Layout, Ungrouped: c.Ungrouped, NoClaims: c.NoClaims, Profile: c.Profile, JSON: c.JSON,
	}
}

// Validate is called before Run.
func (c *benchCommand) Validate() error {
	o := c.options()
	if err := o.Validate(); err != nil {
		return errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return nil
}

// Run measures a relay.
func (c *benchCommand) Run(ctx context.Context, p *program) error {
	file, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the program to measure: %w", err)
	}
	return bench.Run(ctx, c.options(), bench.Environment{
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
