package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/bench/floor"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/cmd/internal/demodb"
	"github.com/sluicebox/sluicebox/store"
)

// callTimeout bounds a statement that should return at once.
const callTimeout = 30 * time.Second

// server is a database server on which the benchmark creates and drops databases.
type server interface {
	serverInfo() serverInfo
	// create creates a database with an empty outbox, and drop removes it.
	create(ctx context.Context, name, url string, of *outboxTable) (database, error)
	drop(ctx context.Context, name string) error
	close()
}

// serverInfo describes a server.
type serverInfo struct {
	version      string            // with its name
	settings     map[string]string // settings that a figure depends on
	syncsCommits bool              // every commit waits for the disk; other goals apply
	process      int               // id of its process, or of the parent of its processes; 0 if it is not known
}

// readSettings adds the settings that a query returns, by name.
func (i *serverInfo) readSettings(ctx context.Context, db demodb.Querier, query string) error {
	var name, value string
	return demodb.Each(ctx, db, query, nil, []any{&name, &value}, func() { i.settings[name] = value })
}

// database is a database with an outbox, created for the benchmark.
type database interface {
	loader
	// writer opens a session that commits single rows of a span.
	writer(ctx context.Context, rows *rowSpan) (rowWriter, error)
	// prepareFloor creates the objects that the floor needs, and sets its start position.
	prepareFloor(ctx context.Context, cfg *floor.Config) error
	counter
	close()
}

// loader fills an outbox in bulk.
type loader interface {
	// load commits rows in one transaction.
	load(ctx context.Context, rows *rowSpan) error
	// flush lets the server finish its background work on the loaded rows, for example
	// statistics and a checkpoint.
	flush(ctx context.Context) error
}

// counter returns counters of a database.
type counter interface {
	// scans returns the number of scans of the outbox, or errNotMeasured if the server does
	// not count them.
	scans(ctx context.Context) (int, error)
	// countStatements starts to count statements. statements returns their statistics.
	countStatements(ctx context.Context) error
	statements(ctx context.Context) (string, error)
}

// errNotMeasured reports that the server does not count a measure.
var errNotMeasured = errors.New("not measured on this server")

// rowWriter commits single rows.
type rowWriter interface {
	write(ctx context.Context, n int) error
	close()
}

// connectServer connects to the server and checks that the benchmark can run there. The
// error is a *store.SetupError if it cannot.
func connectServer(ctx context.Context, source config.URL) (server, error) {
	switch {
	case source.Mongo():
		return connectMongo(ctx, source.Reveal())
	case source.MySQL():
		return connectMySQL(ctx, source.Reveal())
	}
	return connectPostgres(ctx, source.Reveal())
}

// namePrefix begins the names of the databases, the relays and the slots.
const namePrefix = "sluicebox_bench_"

// benchDatabase is a database with an outbox, created for the benchmark.
type benchDatabase struct {
	database

	server      server
	name        string // of the database, the relay, the slot and the publication
	url         string
	layout      string
	table       *outboxTable
	rowsWritten int // number of rows written so far
}

// newBenchDatabase creates a database with an empty outbox. The caller drops it.
func (b *bench) newBenchDatabase(ctx context.Context) (*benchDatabase, error) {
	p := &benchDatabase{server: b.server, name: demodb.NewName(namePrefix), layout: b.opts.Layout, table: outboxOf(b.opts.Layout)}
	var err error
	if p.url, err = demodb.InDatabase(b.opts.Source.Reveal(), p.name); err != nil {
		return nil, err
	}
	if p.database, err = p.server.create(ctx, p.name, p.url, p.table); err != nil {
		var setup *store.SetupError
		if errors.As(err, &setup) {
			return nil, err
		}
		return nil, errors.Join(fmt.Errorf("create database %s with an outbox: %w", p.name, err), p.server.drop(context.WithoutCancel(ctx), p.name))
	}
	return p, nil
}

// drop removes the database and the objects that the floor or the relay created for it, also
// after the end of the context.
func (p *benchDatabase) drop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	p.close()
	if err := p.server.drop(ctx, p.name); err != nil {
		return fmt.Errorf("remove database %s: %w", p.name, err)
	}
	return nil
}
