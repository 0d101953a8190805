package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	capturemongo "github.com/sluicebox/sluicebox/capture/mongo"
	capturemysql "github.com/sluicebox/sluicebox/capture/mysql"
	capturepg "github.com/sluicebox/sluicebox/capture/postgres"
	capturesqlite "github.com/sluicebox/sluicebox/capture/sqlite"
	"github.com/sluicebox/sluicebox/checkpoint/replay"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/store"
	mongostore "github.com/sluicebox/sluicebox/store/mongo"
	mysqlstore "github.com/sluicebox/sluicebox/store/mysql"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
	sqlitestore "github.com/sluicebox/sluicebox/store/sqlite"
)

// source is a capture source that Follow can run and that holds sessions.
type source interface {
	capture.Resumer
	capture.Retention
	Close()
}

// streamSource is a source that reads a log.
type streamSource interface {
	source
	store.Diagnoser
	// Publish makes what the database must have before it can be read.
	Publish(ctx context.Context) error
	// Script is the statements for it.
	Script() string
	// Tap sends what commits from now on, in place of Open and Run, and changes
	// nothing. begun is called once when it reads.
	Tap(ctx context.Context, out chan<- capture.Batch, begun func()) error
}

// readinessChecker tells whether a log can be read. It remembers what it saw: for how long
// a transaction has been open may be hidden from the role.
type readinessChecker interface {
	Ready(ctx context.Context) error
	Close()
}

// database is one kind of database: what the relay asks of it, behind the
// contracts.
type database struct {
	store store.Store
	// newStream returns the source that reads the log.
	newStream func() (streamSource, error)
	// newReadinessChecker returns what tells, without changing anything, why the log could not
	// be read now; nil if it could. It is nil where a log can always be read.
	newReadinessChecker func() (readinessChecker, error)
	// newHistoryReader returns a source that reads a part of the log once more. It is nil where
	// the log does not hold the rows.
	newHistoryReader func() (replay.HistoryReader, error)
	// newSlotRetainer returns what has log kept for named checkpoints; nil where the database
	// keeps none.
	newSlotRetainer func() (replay.SlotRetainer, error)
	// newRetentionChecker returns what looks how far back the server's log reaches; nil where log is
	// kept for named checkpoints, or holds no rows.
	newRetentionChecker func() (replay.RetentionChecker, error)
	// dropSlot gives up what the log is kept for, where the relay polls instead.
	// It is nil where nothing is kept.
	dropSlot func(ctx context.Context) error
	// heartbeatInterval is how often something comes from the log at the least; 0 where
	// nothing need.
	heartbeatInterval time.Duration
	// isUnreachable reports whether an error means that trying again may help.
	isUnreachable func(error) bool
}

// openDatabase returns the database that the configuration names. It connects to
// nothing. Close its store.
func openDatabase(cfg *config.Config) (*database, error) {
	scheme, _, _ := strings.Cut(cfg.Settings.Source.URL.Reveal(), ":")
	switch strings.ToLower(scheme) {
	case "postgres", "postgresql":
		return openPostgres(cfg)
	case "mysql", "mariadb":
		return openMySQL(cfg)
	case "mongodb", "mongodb+srv":
		return openMongo(cfg)
	case "sqlite":
		return openSQLite(cfg)
	}
	return nil, &store.SetupError{Problem: fmt.Sprintf("source.url: there is no database of scheme %q", scheme)}
}

// holderName is what this process calls itself to those who ask who leads.
func holderName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "an unnamed host"
	}
	return fmt.Sprintf("%s process %d", host, os.Getpid())
}

func openPostgres(cfg *config.Config) (*database, error) {
	c := cfg.Store()
	c.Holder = holderName()
	st, err := pgstore.New(c)
	if err != nil {
		return nil, err
	}
	open := func() (*capturepg.Source, error) {
		c := cfg.Stream()
		c.MayCreate = true // the server decides: it lets only a table's owner
		c.TakeOver = true  // whoever opens it leads
		return capturepg.New(c)
	}
	return &database{
		store:               st,
		newStream:           func() (streamSource, error) { return open() },
		newReadinessChecker: func() (readinessChecker, error) { return open() },
		newHistoryReader:    func() (replay.HistoryReader, error) { return open() },
		newSlotRetainer:     func() (replay.SlotRetainer, error) { return open() },
		dropSlot: func(ctx context.Context) error {
			src, err := open()
			if err != nil {
				return err
			}
			defer src.Close()
			return src.DropSlot(ctx)
		},

		heartbeatInterval: cfg.Settings.Source.HeartbeatInterval,
		isUnreachable: func(err error) bool {
			var old *capturepg.OldTransactionError // it ends some time
			return errors.As(err, &old) || pgstore.Unreachable(err)
		},
	}, nil
}

func openMySQL(cfg *config.Config) (*database, error) {
	c := cfg.MySQLStore()
	c.Holder = holderName()
	st, err := mysqlstore.New(c)
	if err != nil {
		return nil, err
	}
	open := func() (*capturemysql.Source, error) { return capturemysql.New(cfg.MySQLStream()) }
	return &database{
		store:               st,
		newStream:           func() (streamSource, error) { return open() },
		newReadinessChecker: func() (readinessChecker, error) { return open() },
		newHistoryReader:    func() (replay.HistoryReader, error) { return open() },
		newRetentionChecker: func() (replay.RetentionChecker, error) { return open() },
		heartbeatInterval:   capturemysql.HeartbeatPeriod,
		isUnreachable:       mysqlstore.Unreachable,
	}, nil
}

func openMongo(cfg *config.Config) (*database, error) {
	c := cfg.MongoStore()
	c.Holder = holderName()
	st, err := mongostore.New(c)
	if err != nil {
		return nil, err
	}
	open := func() (*capturemongo.Source, error) { return capturemongo.New(cfg.MongoStream()) }
	return &database{
		store:               st,
		newStream:           func() (streamSource, error) { return open() },
		newReadinessChecker: func() (readinessChecker, error) { return open() },
		newHistoryReader:    func() (replay.HistoryReader, error) { return open() },
		newRetentionChecker: func() (replay.RetentionChecker, error) { return open() },
		heartbeatInterval:   capturemongo.HeartbeatPeriod,
		isUnreachable:       mongostore.Unreachable,
	}, nil
}

func openSQLite(cfg *config.Config) (*database, error) {
	c := cfg.SQLiteStore()
	c.Holder = holderName()
	st, err := sqlitestore.New(c)
	if err != nil {
		return nil, err
	}
	open := func() (streamSource, error) { return capturesqlite.New(cfg.SQLiteStream()) }
	return &database{store: st, newStream: open, isUnreachable: sqlitestore.Unreachable}, nil
}
