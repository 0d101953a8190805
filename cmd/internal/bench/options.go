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
)

// Options configure a benchmark. A zero value stands for the default of the scenario, see
// scenarios.
type Options struct {
	// Source is a PostgreSQL, MySQL, MariaDB or MongoDB database. The benchmark creates
	// other databases on its server.
	Source   config.URL
	Scenario string
	// Rate is the number of rows written per second.
	Rate int
	// Rows is the number of rows to drain, to block, or to fill the table with.
	Rows int
	// Groups is the number of message groups.
	Groups int
	// Size is the size of a payload in bytes.
	Size int
	// Clients is the number of sessions that write.
	Clients int
	// Duration is how long rows are written, or how long the relay is idle.
	Duration time.Duration
	// Repeat is the number of rounds.
	Repeat int
	// Delay is the time that the receiver takes for a request.
	Delay time.Duration
	// Senders is the relay's max-concurrent-groups, Batch its api-batch-size.
	Senders, Batch int
	// Layout is the layout of the outbox: flowcatalyst or outbox-messages.
	Layout string
	// Ungrouped sends rows without a message group, in parallel.
	Ungrouped bool
	// NoClaims measures the relay with claims: off. The floor always claims.
	NoClaims bool
	// Profile is the folder for the relay's profiles; "" takes none.
	Profile string
	// JSON prints the result as JSON.
	JSON bool
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

	var names []string
	for _, sc := range scenarios() {
		names = append(names, sc.name)
	}
	if !slices.Contains(names, o.Scenario) {
		bad("--scenario is %q, must be one of %s", o.Scenario, strings.Join(names, ", "))
	}

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
	if o.Layout != "" && o.Layout != layoutWords && o.Layout != layoutNumbers {
		bad("--layout is %q, must be %s or %s", o.Layout, layoutWords, layoutNumbers)
	}

	switch {
	case o.Source == "":
		bad("--source is missing: use a database on whose server databases may be created, %s", sourceForms)
	case !o.Source.Postgres() && !o.Source.MySQL() && !o.Source.Mongo():
		bad("--source must be %s", sourceForms)
	}
	return errors.Join(errs...)
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

// Run measures a scenario and prints the result. Options must be valid.
func Run(ctx context.Context, o Options, env Environment) error {
	sc := findScenario(o.Scenario)
	b := &bench{opts: o.withDefaults(&sc.defaults), env: env, scenario: sc}
	res, err := b.run(ctx)
	if err != nil {
		return err
	}
	if o.JSON {
		return res.writeJSON(env.Stdout)
	}
	return res.writeText(env.Stdout)
}
