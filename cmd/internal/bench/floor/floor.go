// Package floor is the least program that does a relay's work. It decodes the inserts of a
// logical slot, a binlog or a change stream, claims the rows, posts them and completes them,
// with the durability of the relay's own writes. A relay measured against it shows the cost
// of lanes, fencing, checkpoints and spilling.
//
// It has two modes:
//   - One by one, for the least latency. It claims a row as soon as the log has it, and
//     posts it alone before it reads the next one.
//   - In bulk, for the highest rate. Reading, claiming, posting and completing run
//     concurrently, and each stage takes everything that the previous stage has ready. It
//     posts rows in any order.
//
// On MySQL, MariaDB and MongoDB a claim waits for the disk. One by one would fall behind at
// rates that a relay sustains, so it would not be a floor. There a claim takes all rows that
// arrived during the previous claim. They are posted alone, one after the other,
// concurrently with the next claim.
//
// Without claims, it posts a row as soon as the log has it, and completes it afterwards. A row
// may then not be visible yet to its completion, which is tried again.
//
// The floor is not a relay. The first error ends it, a claimed row that was not completed
// stays claimed, and nothing prevents a second floor on the same table. A hanging receiver
// stops the status messages too, and the server then ends the stream.
package floor

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"

	"golang.org/x/sync/errgroup"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/cmd/internal/demobroker"
	"github.com/sluicebox/sluicebox/store"
	mongostore "github.com/sluicebox/sluicebox/store/mongo"
	mystore "github.com/sluicebox/sluicebox/store/mysql"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
)

// Config configures the floor. The bench sends it as JSON to the floor's process.
type Config struct {
	URL         string // of the database
	Slot        string // PostgreSQL: an existing logical slot of pgoutput
	Publication string // PostgreSQL: publishes the inserts of the table
	From        string // position after which to read. MySQL and MariaDB: a GTID set; MongoDB: a time of the oplog, SECONDS.NUMBER
	Table       string // PostgreSQL: an SQL name, quoted if necessary, with its schema; otherwise the bare name of the table or collection
	Layout      string // layout of the table: flowcatalyst or outbox-messages
	Endpoint    string // URL to POST to, or the address of a broker
	Topic       string // of the broker; "" without one
	Bulk        bool   // false: one row after the other
	NoClaims    bool   // post and complete only
	Batch       int    // in bulk: maximum rows in a request
	Senders     int    // in bulk: maximum requests in flight
}

var slotName = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)

// Validate reports all errors of the configuration, in one error.
func (c *Config) Validate() error {
	var errs []error
	wrong := func(is bool, format string, args ...any) {
		if is {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}

	switch at := config.URL(c.URL); {
	case at.Mongo():
		_, _, err := mongostore.ParseURL(c.URL, "")
		wrong(err != nil, "URL: %w", err)
		_, err = parseTime(c.From)
		wrong(err != nil, "From: %w", err)
	case at.MySQL():
		_, err := mystore.ParseURL(c.URL, "")
		wrong(err != nil, "URL: %w", err)
		_, err = parseGTIDs(c.From)
		wrong(err != nil, "From: %w", err)
	default:
		_, err := pgstore.ParseURL(c.URL, "")
		wrong(err != nil, "URL: %w", err)
		wrong(!slotName.MatchString(c.Slot), "Slot: invalid slot name %q: use 1 to 63 of a-z, 0-9 and _", c.Slot)
		wrong(c.Publication == "", "Publication: is required")
	}

	wrong(c.Table == "", "Table: is required")
	_, err := c.layout()
	wrong(err != nil, "Layout: %w", err)
	if c.Topic != "" {
		err = demobroker.Check(c.Endpoint)
		wrong(err != nil, "Endpoint: %w", err)
	} else {
		at, err := url.Parse(c.Endpoint)
		wrong(err != nil || at.Host == "" || at.Scheme != "http" && at.Scheme != "https",
			"Endpoint: %q is not of the form http://host:port/path", c.Endpoint)
	}
	wrong(c.Bulk && c.Batch < 1, "Batch: is %d, must be at least 1", c.Batch)
	wrong(c.Bulk && c.Senders < 1, "Senders: is %d, must be at least 1", c.Senders)
	return errors.Join(errs...)
}

func (c *Config) layout() (store.Layout, error) {
	layouts := []store.Layout{store.FlowCatalyst(), store.OutboxMessages()}
	if config.URL(c.URL).Mongo() {
		layouts = []store.Layout{mongostore.FlowCatalyst(), mongostore.OutboxMessages()}
	}
	for _, l := range layouts {
		if l.Name == c.Layout {
			return l, nil
		}
	}
	return store.Layout{}, fmt.Errorf("%q is not %s or %s", c.Layout, layouts[0].Name, layouts[1].Name)
}

// Run delivers rows until the context ends, and then returns nil. It calls ready once, when
// the stream has begun. Any error ends it.
func Run(ctx context.Context, cfg Config, ready func()) error {
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("floor configuration: %w", err)
	}
	err := run(ctx, &cfg, ready)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func run(ctx context.Context, cfg *Config, ready func()) error {
	db, err := cfg.open()
	if err != nil {
		return err
	}

	l, err := openPipeline(ctx, cfg, db)
	if err != nil {
		return err
	}
	defer l.close()
	in, err := db.openStream(ctx, l.rows)
	if err != nil {
		return err
	}
	defer in.close()
	ready()

	g, ctx := errgroup.WithContext(ctx)
	if l.claims != nil {
		defer l.claims.bind(ctx)()
	}
	defer l.completions.bind(ctx)()
	switch {
	case cfg.Bulk:
		l.startBulk(ctx, g, in, maxChunkRows, cfg.Batch, cfg.Senders)
	case cfg.NoClaims:
		l.startOneByOne(ctx, g, in)
	case config.URL(cfg.URL).MySQL() || config.URL(cfg.URL).Mongo():
		l.startBulk(ctx, g, in, 1, 1, 1)
	default:
		l.startOneByOne(ctx, g, in)
	}

	g.Go(func() error { return l.complete(ctx) })
	return g.Wait()
}
