package quickstart

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/app"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/cmd/internal/demodb"
)

const (
	// stallTimeout is the time without progress after which the quickstart gives up.
	stallTimeout = 30 * time.Second
	// settlePollInterval is the time between two counts of the table once all rows are
	// delivered.
	settlePollInterval = 50 * time.Millisecond
)

// errInterrupted is the error of a quickstart that was ended by a signal.
var errInterrupted = errors.New("quickstart interrupted; no result")

// quickstart is one quickstart from start to end.
type quickstart struct {
	opts       Options
	env        Environment
	folder     string
	configFile string // the relay's configuration
	dbInfo     databaseInfo
	db         database
	oracle     *oracle
	faults     *faults
	log        tail // the relay's log

	load      *load
	isPolling bool // the relay cannot read the database's log
	states    map[string]int
}

// Run demonstrates a relay. It returns nil if every row was delivered once and in
// order, and else prints the relay's log on Stderr. The end of ctx, e.g. by a signal,
// is an error too, because there is no complete result to judge. Options must be
// valid; see Validate.
func Run(ctx context.Context, o Options, env Environment) error {
	q := &quickstart{opts: o, env: env, oracle: newOracle(o.Groups), faults: newFaults(o.FailRate)}
	if err := q.open(); err != nil {
		return err
	}
	return q.run(ctx)
}

// run executes the quickstart in the chosen folder and database, cleans up and
// reports.
func (q *quickstart) run(ctx context.Context) error {
	q.load = &load{db: q.db, oracle: q.oracle, opts: q.opts}
	err := q.setUpAndRun(ctx)
	leaveErr := q.cleanUp(ctx)
	if err == nil {
		return errors.Join(q.report(), leaveErr)
	}
	if ctx.Err() != nil {
		err = errInterrupted
		if !q.shouldKeep() && leaveErr == nil {
			err = fmt.Errorf("%w; nothing is left behind", err)
		}
	} else {
		q.printText(q.env.Stderr, "Relay log:\n%s", q.log.String())
	}
	if q.shouldKeep() {
		q.printText(q.env.Stderr, "%s", q.keptText())
	}
	return errors.Join(err, leaveErr)
}

// shouldKeep reports whether Keep is set and the configuration exists.
func (q *quickstart) shouldKeep() bool { return q.opts.Keep && q.configFile != "" }

// printText writes a text, unless it is empty.
func (q *quickstart) printText(to io.Writer, format, text string) {
	if text != "" {
		_, _ = fmt.Fprintf(to, format, text) // an error could not be printed either
	}
}

// open creates the folder and chooses the database.
func (q *quickstart) open() error {
	var err error
	if q.folder, err = os.MkdirTemp("", "sluicebox-quickstart-"); err != nil {
		return fmt.Errorf("create temporary folder: %w", err)
	}

	name := demodb.NewName(namePrefix)
	switch source := q.opts.Source; {
	case source == "":
		q.db, q.dbInfo = newSQLite(q.folder, name)
	case source.MySQL():
		q.db, q.dbInfo, err = newMySQL(source.Reveal(), name)
	case source.Mongo():
		q.db, q.dbInfo, err = newMongo(source.Reveal(), name)
	default:
		q.db, q.dbInfo, err = newPostgres(source.Reveal(), name)
	}
	if err != nil {
		_ = os.Remove(q.folder) // err matters more
	}
	return err
}

// cleanUp removes everything, unless it should be kept. A signal does not interrupt
// it.
func (q *quickstart) cleanUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
	defer cancel()
	err := q.db.cleanUp(ctx, q.shouldKeep())
	if !q.shouldKeep() {
		err = errors.Join(err, os.RemoveAll(q.folder))
	}
	return err
}

// setUpAndRun sets up the database and the receiver, runs relay and load, and stops
// both.
func (q *quickstart) setUpAndRun(ctx context.Context) error {
	note, err := q.db.setUp(ctx)
	if err != nil {
		return err
	}
	q.printText(q.env.Stderr, "%s\n", note)
	to, err := q.startDestination(ctx)
	if err != nil {
		return err
	}
	var cfg *config.Config
	if q.configFile, cfg, err = writeConfig(q.folder, q.dbInfo, to); err == nil {
		if !q.opts.JSON {
			q.printText(q.env.Stderr, "%s", q.openingText(to.url))
		}
		err = q.runRelay(ctx, cfg)
	}
	return errors.Join(err, to.stop())
}

// runRelay runs the relay while runLoad runs. If the relay ends first, runRelay cancels
// the load and returns the relay's error.
func (q *quickstart) runRelay(ctx context.Context, cfg *config.Config) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	// The relay outlives the signal that ends the writers, to deliver their rows.
	own, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() {
		err := q.env.Relay(own, app.Options{Config: cfg, Log: q.env.logger(q.opts, &q.log), Version: q.env.Version})
		if own.Err() == nil {
			err = fmt.Errorf("relay ended: %w", err)
			fail(err)
		}
		ended <- err
	}()
	err := q.runLoad(ctx)
	stop()
	relayErr := <-ended
	if err != nil && relayErr != nil {
		return relayErr // the cause
	}
	return errors.Join(err, relayErr)
}

// runLoad commits orders and waits until their rows are delivered and settled, or
// until there is no progress for stallTimeout.
func (q *quickstart) runLoad(ctx context.Context) error {
	if err := q.load.commitFirst(ctx); err != nil {
		return err
	}
	there, err := q.await(ctx, q.allDelivered)
	if err != nil {
		return err
	}
	if !there {
		return fmt.Errorf("relay did not deliver the first order within %s", stallTimeout)
	}

	streams, err := q.db.isStreaming(ctx)
	if err != nil {
		return err
	}

	q.isPolling = !streams
	if !q.opts.JSON {
		p := &progress{
			out: q.env.Stderr, terminal: q.env.Terminal && !q.opts.Verbose, begin: time.Now(),
			readState: func() (state, faultCount) { s, _ := q.oracle.currentState(); return s, q.faults.counts() },
		}
		defer p.start()()
	}
	if err := q.load.run(ctx); err != nil {
		return err
	}
	if _, err = q.await(ctx, q.allSettled); err != nil {
		return err
	}

	q.states, err = q.db.countByStatus(ctx)
	return err
}

// await polls done until it reports true. It returns false once the count that done
// returns has not changed for stallTimeout.
func (q *quickstart) await(ctx context.Context, done func(context.Context, *state) (bool, int, error)) (bool, error) {
	last, moved := -1, time.Now()
	for {
		s, grown := q.oracle.currentState()
		ok, count, err := done(ctx, &s)
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		if err != nil || ok {
			return ok, err
		}
		if count != last {
			last, moved = count, time.Now()
		}
		if time.Since(moved) > stallTimeout {
			return false, nil
		}
		select {
		case <-ctx.Done():
		case <-grown:
		case <-time.After(settlePollInterval):
		}
	}
}

// allDelivered reports whether all committed rows have arrived.
func (q *quickstart) allDelivered(_ context.Context, s *state) (bool, int, error) {
	return s.delivered >= s.committed, s.delivered, nil
}

// allSettled reports whether all committed rows have arrived and have a final status
// in the table.
func (q *quickstart) allSettled(ctx context.Context, s *state) (bool, int, error) {
	if s.delivered < s.committed {
		return false, s.delivered, nil
	}
	states, err := q.db.countByStatus(ctx)
	done := states[completed] + states[failed]
	return done >= s.committed, s.delivered + done, err
}
