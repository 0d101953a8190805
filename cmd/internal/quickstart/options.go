package quickstart

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/app"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
)

// The bounds of the options. With them a group's numbers have 8 digits at most,
// and a row's id the 13 characters of the outbox's column.
const (
	minFor, maxFor = 100 * time.Millisecond, time.Hour
	maxRate        = 20_000
	maxGroups      = 10_000
	maxFailRate    = 0.9
)

// Options say what to show.
type Options struct {
	// For is how long orders are written.
	For time.Duration
	// Rate is how many orders are written in a second.
	Rate int
	// Groups is the number of message groups.
	Groups int
	// FailRate is the share of requests, 0 to 0.9, that the receiver does not
	// take. No row is in more than two of them.
	FailRate float64
	// Source is the database; empty is an SQLite file in a temporary folder.
	Source config.URL
	// Keep leaves the folder and what was made in the database.
	Keep bool
	// JSON prints the result as JSON, and no progress.
	JSON bool
	// Verbose shows the relay's log.
	Verbose bool
}

// Validate reports every option that is out of range, by its flag.
func (o *Options) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if o.For < minFor || o.For > maxFor {
		bad("--for is %s, must be between %s and %s", o.For, minFor, maxFor)
	}
	if o.Rate < 1 || o.Rate > maxRate {
		bad("--rate is %d, must be between 1 and %d rows a second", o.Rate, maxRate)
	}
	if o.Groups < 1 || o.Groups > maxGroups {
		bad("--groups is %d, must be between 1 and %d", o.Groups, maxGroups)
	}
	if !(o.FailRate >= 0 && o.FailRate <= maxFailRate) { // NaN is neither
		bad("--fail-rate is %g, must be between 0 and %g: the share of requests that fail", o.FailRate, maxFailRate)
	}
	switch {
	case o.Source == "":
	case o.Source.SQLite():
		bad("--source takes a database server, such as postgres://user@host:port/database; without it the quickstart makes an SQLite file of its own")
	case !o.Source.Postgres() && !o.Source.MySQL() && !o.Source.Mongo():
		bad("--source must begin with postgres://, mysql://, mariadb:// or mongodb://, such as postgres://user@host:port/database")
	}
	return errors.Join(errs...)
}

// Environment are what a quickstart is run in.
type Environment struct {
	// Stdout takes the result, Stderr everything else.
	Stdout, Stderr io.Writer
	// Terminal says that Stderr is a terminal, on which a line can be
	// rewritten.
	Terminal bool
	// Command is how the program was called, for the commands to try next.
	Command string
	// Version is the program's version.
	Version string
	// Relay runs a relay until the context ends.
	Relay func(context.Context, app.Options) error
}

// logger returns the relay's logger.
func (s *Environment) logger(o Options, last *tail) *slog.Logger {
	if o.Verbose {
		return slog.New(slog.NewTextHandler(s.Stderr, nil))
	}
	return slog.New(slog.NewTextHandler(last, &slog.HandlerOptions{Level: slog.LevelWarn}))
}
