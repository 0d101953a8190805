package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/cmd/internal/quickstart"
)

// quickstartCommand is `sluicebox quickstart`.
type quickstartCommand struct {
	For      time.Duration `default:"10s" placeholder:"TIME" help:"Duration of the load, for example 10s or 5m. Default: ${default}."`
	Rate     int           `default:"300" placeholder:"N" help:"Orders per second. Default: ${default}."`
	Groups   int           `default:"50" placeholder:"N" help:"Message groups. Default: ${default}."`
	FailRate float64       `default:"0" placeholder:"SHARE" help:"Share of the requests, 0 to 0.9, that the receiver fails on purpose. Default: ${default}."`
	Source   string        `placeholder:"URL" help:"Server to use: postgres://user@host/database, in a new schema there, or mysql://, mariadb:// or mongodb://user@host/database, in a new database beside it. It is removed afterwards. Default: an SQLite file in a temporary folder."`
	Keep     bool          `help:"Keep everything, and print where it is."`
	JSON     bool          `name:"json" help:"Print the result as JSON, and no progress."`
	Verbose  bool          `help:"Show the relay's log."`
}

func (c *quickstartCommand) options() quickstart.Options {
	return quickstart.Options{
		For: c.For, Rate: c.Rate, Groups: c.Groups, FailRate: c.FailRate,
		Source: config.URL(c.Source), Keep: c.Keep, JSON: c.JSON, Verbose: c.Verbose,
	}
}

// Validate is called before Run.
func (c *quickstartCommand) Validate() error {
	o := c.options()
	if err := o.Validate(); err != nil {
		return errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return nil
}

// Run shows a working relay.
func (c *quickstartCommand) Run(ctx context.Context, p *program) error {
	return quickstart.Run(ctx, c.options(), quickstart.Environment{
		Stdout: p.stdout, Stderr: p.stderr, Terminal: p.stderrIsTerminal(),
		Command: os.Args[0], Version: currentVersion().Version, Relay: p.relay.run,
	})
}

// stderrIsTerminal reports whether a line on standard error can be redrawn.
func (p *program) stderrIsTerminal() bool {
	f, ok := p.stderr.(*os.File)
	if !ok || p.variable("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
