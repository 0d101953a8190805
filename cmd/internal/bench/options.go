package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/cmd/internal/demobroker"
)

// Options configure a benchmark, with the flags of `sluicebox bench`. A zero value stands for
// the default of the scenario, see scenarios.
type Options struct {
	Source   config.URL    `placeholder:"URL" required:"" help:"A server of PostgreSQL, MySQL, MariaDB or MongoDB: postgres://user@host/database, mysql://…, mariadb://… or mongodb://…. Databases are created on it and removed afterwards."`
	Scenario string        `default:"latency" placeholder:"NAME" help:"latency, drain, ungrouped, peer, slow-receiver, blocked-group, bulk-transaction, replay, idle, big-table, routes or dead-route. Default: ${default}."`
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

	Sink config.URL `placeholder:"URL" help:"Latency, drain, ungrouped and peer: send to a new topic of this broker, not to an HTTP receiver: kafka://, nats:// or amqp://host:port, with user:password@ before the host. Of kafka:// the parameters are mechanism, tls, ca-file, cert-file and key-file: kafka://user:password@host:9093?mechanism=scram-sha-512&tls=true. The topic is removed afterwards."`

	Compare   Files    `placeholder:"A.yaml B.yaml" help:"Measure the relay with two configurations in turns, not beside the floor. Of each file, dispatch, checkpoint, tracing, how source reads, and the delivery keys of the sink are used; of a sink with HTTP requests its type and format too."`
	Peer      string   `placeholder:"PROGRAM" help:"Scenario peer: the program to measure beside the relay. It reads its configuration as JSON from standard input, as the hidden command bench-floor does, and prints a line: reading."`
	Against   []string `placeholder:"SIDE" help:"Measure beside these sides only, for example floor. Default: all sides of the scenario."`
	Ungrouped bool     `help:"Send rows without a message group, in parallel."`
	Claims    string   `placeholder:"WHEN" help:"The relay's dispatch.claims: on, late or off. Default: that of the configuration."`
	Profile   string   `placeholder:"FOLDER" help:"Write profiles of the relay's first turn to this folder: CPU, allocations, locks, and the server's statement statistics, if enabled."`
	JSON      bool     `name:"json" help:"Print the result as JSON."`
}

// Limits of the options. A row's number has at most the 13 digits of the outbox's id column.
const (
	maxRate    = 100_000
	maxRows    = 100_000_000
	maxGroups  = 10_000_000
	minSize    = 40
	maxSize    = 512 << 10
	maxClients = 100
	maxSenders = 1000
)

// sourceForms are the supported URLs.
const sourceForms = "postgres://user@host:port/database, mysql://…, mariadb://… or mongodb://…"

// Validate reports every option that is out of range, by its flag.
func (o *Options) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	within := func(flag string, v, minimum, maximum int) {
		if v != 0 && (v < minimum || v > maximum) {
			bad("--%s is %d, must be between %d and %d", flag, v, minimum, maximum)
		}
	}

	o.checkScenario(bad)

	within("rate", o.Rate, 1, maxRate)
	within("rows", o.Rows, 1, maxRows)
	within("groups", o.Groups, 1, maxGroups)
	within("size", o.Size, minSize, maxSize)
	within("clients", o.Clients, 1, maxClients)
	within("repeat", o.Repeat, 1, 1000)
	within("senders", o.Senders, 1, maxSenders)
	within("batch", o.Batch, 1, 1000)
	for flag, d := range map[string]time.Duration{"duration": o.Duration, "delay": o.Delay} {
		if d < 0 || d > time.Hour {
			bad("--%s is %s, must be between 0s and 1h", flag, d)
		}
	}
	o.checkSink(bad)
	if o.Layout != "" && o.Layout != layoutWords && o.Layout != layoutNumbers {
		bad("--layout is %q, must be %s or %s", o.Layout, layoutWords, layoutNumbers)
	}

	if !slices.Contains([]string{"", "on", "late", "off"}, o.Claims) {
		bad("--claims is %q, must be on, late or off", o.Claims)
	}

	if o.Compare.given() {
		for flag, given := range map[string]bool{"senders": o.Senders != 0, "batch": o.Batch != 0, "claims": o.Claims != ""} {
			if given {
				bad("--%s and --compare can't be used together: set the key in the files", flag)
			}
		}
	}

	switch {
	case o.Source == "":
		bad("--source is missing: use a database on whose server databases may be created, %s", sourceForms)
	case !o.Source.Postgres() && !o.Source.MySQL() && !o.Source.Mongo():
		bad("--source must be %s", sourceForms)
	}
	return errors.Join(errs...)
}

// checkScenario checks the name of the scenario and those of its sides.
func (o *Options) checkScenario(bad func(format string, args ...any)) {
	var names, sides []string
	for _, sc := range scenarios() {
		names = append(names, sc.name)
		if sc.name == o.Scenario {
			for _, s := range sc.sides[1:] {
				sides = append(sides, s.name)
			}
		}
	}
	if !slices.Contains(names, o.Scenario) {
		bad("--scenario is %q, must be one of %s", o.Scenario, strings.Join(names, ", "))
		return
	}
	if (o.Scenario == "peer") != (o.Peer != "") && !o.Compare.given() {
		bad("--peer PROGRAM and --scenario peer need each other")
	}
	for _, name := range o.Against {
		switch {
		case o.Compare.given():
			bad("--against and --compare can't be used together")
		case len(sides) == 0:
			bad("--against is %q, but %s has no other side", name, o.Scenario)
		case !slices.Contains(sides, name):
			bad("--against is %q, must be one of %s", name, strings.Join(sides, ", "))
		}
	}
}

// checkSink checks the address of a broker.
func (o *Options) checkSink(bad func(format string, args ...any)) {
	if o.Sink == "" {
		return
	}
	if err := demobroker.Check(o.Sink.Reveal()); err != nil {
		bad("--sink: %w", err)
	}
	if !slices.Contains([]string{"latency", "drain", "ungrouped", "peer"}, o.Scenario) {
		bad("--sink is for the scenarios latency, drain, ungrouped and peer")
	}
	if o.Delay != 0 {
		bad("--delay and --sink can't be used together: a topic answers nothing")
	}
}

// others returns the names of the sides to measure beside the first one. A relay that has claims
// on anyway is not measured beside itself.
func (o *Options) others(sc *scenario) (names []string) {
	if len(o.Against) > 0 {
		return o.Against
	}
	claims := cmp.Or(o.Claims, config.Default().Dispatch.Claims)
	for _, s := range sc.sides[1:] {
		if s.name != claimsOnSide || claims != "on" {
			names = append(names, s.name)
		}
	}
	return names
}

// withDefaults fills in the defaults of the scenario.
func (o Options) withDefaults(d *Options) Options {
	o.Rate = cmp.Or(o.Rate, d.Rate)
	o.Rows = cmp.Or(o.Rows, d.Rows)
	o.Groups = cmp.Or(o.Groups, d.Groups, 1)
	o.Size = cmp.Or(o.Size, 200)
	o.Clients = cmp.Or(o.Clients, 4)
	o.Repeat = cmp.Or(o.Repeat, 5)
	o.Senders = cmp.Or(o.Senders, d.Senders, 10)
	o.Batch = cmp.Or(o.Batch, d.Batch, 100)
	o.Duration = cmp.Or(o.Duration, d.Duration)
	o.Delay = cmp.Or(o.Delay, d.Delay)
	o.Layout = cmp.Or(o.Layout, layoutWords)
	return o
}

// Environment is the environment of a benchmark.
type Environment struct {
	// Stdout receives the result, Stderr the progress.
	Stdout, Stderr io.Writer
	// Program is the path of the program to measure.
	Program string
	// Version is its version.
	Version string
}

// errInterrupted is the error of a benchmark that a signal ends, whatever it was doing.
var errInterrupted = errors.New("benchmark interrupted; no result")

// Run measures a scenario and prints the result. Options must be valid.
func Run(ctx context.Context, o Options, env Environment) error {
	sc := findScenario(o.Scenario)
	b := &bench{opts: o.withDefaults(&sc.defaults), env: env, scenario: sc, missingMeasures: map[string]bool{}}
	b.scenario = sc.beside(b.opts.others(sc))
	res, err := b.run(ctx)
	if err != nil && ctx.Err() != nil {
		return errInterrupted
	}
	if err != nil {
		return err
	}
	if o.JSON {
		return res.writeJSON(env.Stdout)
	}
	return res.writeText(env.Stdout)
}
