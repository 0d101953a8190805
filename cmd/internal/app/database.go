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

// source is a capture source that capture.Follow can run and that holds sessions.
type source interface {
	capture.Resumer
	capture.Retention
	Close()
}

// streamSource is a source that reads the database's log.
type streamSource interface {
	source
	store.Diagnoser
	// Publish creates the prerequisites for reading the log, for example a
	// publication.
	Publish(ctx context.Context) error
	// Script returns the statements of Publish.
	Script() string
	// Tap sends rows that commit from now on, in place of Open and Run, and changes
	// nothing. It calls begun once when it starts to read.
	Tap(ctx context.Context, out chan<- capture.Batch, begun func()) error
}

// readinessChecker reports whether the log can be read. It keeps state between calls,
// because the server may hide from the role how long a transaction has been open.
type readinessChecker interface {
	Ready(ctx context.Context) error
	Close()
}

// database is one database behind the contracts that the relay uses.
type database struct {
	store store.Store
	// newStream returns the source that reads the log.
	newStream func() (streamSource, error)
	// newReadinessChecker returns a read-only check of whether the log can be read now.
	// It is nil where a log can always be read.
	newReadinessChecker func() (readinessChecker, error)
	// newHistoryReader returns a source that rereads a range of the log. It is nil where
	// the log does not hold the rows.
	newHistoryReader func() (replay.HistoryReader, error)
	// newSlotRetainer returns the component that retains log for named checkpoints. It is
	// nil where the database cannot retain log for them.
	newSlotRetainer func() (replay.SlotRetainer, error)
	// newRetentionChecker returns the component that checks how far back the server's log
	// reaches. It is nil where named checkpoints retain their log, or the log holds no
	// rows.
	newRetentionChecker func() (replay.RetentionChecker, error)
	// dropSlot drops the replication slot of a relay that polls. It is nil where the
	// database has no slots.
	dropSlot func(ctx context.Context) error
	// heartbeatInterval is the longest time between two messages from the log. It is 0
	// where the log may be silent.
	heartbeatInterval time.Duration
	// isUnreachable reports whether a retry may succeed after the error.
	isUnreachable func(error) bool
}

// openDatabase returns the database of the configuration without connecting to it. Close
// its store when done.
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
	return nil, &store.SetupError{Problem: fmt.Sprintf("source.url: unknown scheme %q", scheme)}
}

// holderName identifies this process as a leader, e.g. "db1 process 812".
func holderName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
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
		c.MayCreate = true // the server decides, because only a table's owner may publish it
		c.TakeOver = true  // only the leader opens it
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
			var old *capturepg.OldTransactionError // the transaction ends eventually
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
