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
	"github.com/sluicebox/sluicebox/cmd/internal/demobroker"
)

// Limits of the options. Within them an order number has at most 8 digits, and a row
// id fits the 13 characters of the outbox column.
const (
	minFor, maxFor = 100 * time.Millisecond, time.Hour
	maxRate        = 20_000
	maxGroups      = 10_000
	maxFailRate    = 0.9
)

// Options configure a quickstart, with the flags of `sluicebox quickstart`.
type Options struct {
	For      time.Duration `default:"10s" placeholder:"TIME" help:"Duration of the load, for example 10s or 5m. Default: ${default}."`
	Rate     int           `default:"300" placeholder:"N" help:"Orders per second. Default: ${default}."`
	Groups   int           `default:"50" placeholder:"N" help:"Message groups. Default: ${default}."`
	FailRate float64       `default:"0" placeholder:"SHARE" help:"Share of the requests, 0 to 0.9, that the receiver fails on purpose. Default: ${default}."`
	Source   config.URL    `placeholder:"URL" help:"Server to use: postgres://user@host/database, in a new schema there, or mysql://, mariadb:// or mongodb://user@host/database, in a new database beside it. It is removed afterwards. Default: an SQLite file in a temporary folder."`
	Sink     config.URL    `placeholder:"URL" help:"Broker to deliver to, in a new topic there: kafka://, nats:// or amqp://host:port, with user:password@ before the host. Of kafka:// the parameters are mechanism, tls, ca-file, cert-file and key-file: kafka://user:password@host:9093?mechanism=scram-sha-512&tls=true. It is removed afterwards. Default: an HTTP receiver."`
	Keep     bool          `help:"Keep everything, and print where it is."`
	JSON     bool          `name:"json" help:"Print the result as JSON, and no progress."`
	Verbose  bool          `help:"Show the relay's log."`
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
	if !(o.FailRate >= 0 && o.FailRate <= maxFailRate) { // NaN fails both comparisons
		bad("--fail-rate is %g, must be between 0 and %g: the share of requests that fail", o.FailRate, maxFailRate)
	}

	if o.Sink != "" {
		if err := demobroker.Check(o.Sink.Reveal()); err != nil {
			bad("--sink: %w", err)
		}
		if o.FailRate > 0 {
			bad("--fail-rate and --sink can't be used together: a broker does not fail on purpose")
		}
	}

	switch {
	case o.Source == "":
	case o.Source.SQLite():
		bad("--source takes a database server, such as postgres://user@host:port/database; without it the quickstart creates an SQLite file")
	case !o.Source.Postgres() && !o.Source.MySQL() && !o.Source.Mongo():
		bad("--source must begin with postgres://, mysql://, mariadb:// or mongodb://, such as postgres://user@host:port/database")
	}
	return errors.Join(errs...)
}

// Environment connects a quickstart to the program that runs it.
type Environment struct {
	// Stdout receives the result, Stderr everything else.
	Stdout, Stderr io.Writer
	// Terminal is set if Stderr is a terminal, where a line can be rewritten.
	Terminal bool
	// Command is the program's name as the user called it, for the commands to try
	// next.
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
