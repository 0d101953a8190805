package sqlite

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/logsource"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
	sqlitestore "github.com/sluicebox/sluicebox/store/sqlite"
)

// Config configures a source.
type Config struct {
	// URL is the sqlite: URL of the file; see store/sqlite.
	URL string
	// Name is the relay's name, [a-z0-9_]{1,40}. It is part of the names of the log table
	// and of the triggers.
	Name string
	// Outboxes are the tables to read, at most 50.
	Outboxes []store.Outbox
	// MaxBatchRows and MaxBatchBytes limit a batch; a single row may exceed the bytes. The
	// defaults for 0 are 500 rows and 4 MiB.
	MaxBatchRows  int
	MaxBatchBytes int
}

// maxOutboxes is below the 64 tables that SQLite can join in one statement
// (https://www.sqlite.org/limits.html).
const maxOutboxes = 50

// Validate reports every value that is missing or out of range, in one error.
func (c *Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if _, err := sqlitestore.ParseURL(c.URL); err != nil {
		errs = append(errs, err)
	}

	errs = append(errs, store.ValidateName(c.Name), store.ValidateOutboxes(c.Outboxes, 0), logsource.ValidateBatch(c.MaxBatchRows, c.MaxBatchBytes))
	if n := len(c.Outboxes); n > maxOutboxes {
		bad("outboxes: %d configured, must be at most %d; use several relays for more", n, maxOutboxes)
	}

	seen := map[string]bool{}
	for i := range c.Outboxes {
		// SQLite compares names of triggers case-insensitively.
		key := strings.ToLower(c.Outboxes[i].Name)
		if seen[key] {
			bad("outboxes: %q is configured twice (names are case-insensitive)", c.Outboxes[i].Name)
		}
		seen[key] = true
	}
	return errors.Join(errs...)
}

// New validates a configuration and returns its source. It opens nothing. Call Close after
// all other calls have returned.
func New(cfg Config) (*Source, error) {
	if err := cfg.Validate(); err != nil {
		return nil, &store.SetupError{Problem: err.Error()}
	}
	path, err := sqlitestore.ParseURL(cfg.URL)
	if err != nil {
		return nil, err
	}
	logsource.SetBatchDefaults(&cfg.MaxBatchRows, &cfg.MaxBatchBytes)
	return &Source{cfg: cfg, path: path, writeSession: newSession(path), readSession: newSession(path), ackSignal: make(chan struct{}, 1)}, nil
}

// Database is a SQLite database with outboxes. It implements sluicebox.Database.
type Database struct {
	// URL is the sqlite: URL of the file; see store/sqlite.
	URL string
}

// Store returns the store of a relay, without a connection.
func (d Database) Store(of store.Settings) (ledger.Store, error) {
	of.URL = d.URL
	st, err := sqlitestore.New(of)
	if err != nil {
		return ledger.Store{}, err
	}
	return ledger.Store{Tables: st, Ledger: st.Ledger}, nil
}

// Stream returns a source that reads the log table, without a connection.
func (d Database) Stream(of capture.Settings) (capture.Stream, error) {
	src, err := New(Config{URL: d.URL, Name: of.Name, Outboxes: of.Outboxes, MaxBatchBytes: of.MaxBatchBytes})
	if err != nil {
		return nil, err
	}
	return src, nil
}

// MaxSilence returns 0, because the log of an idle file is silent.
func (Database) MaxSilence() time.Duration { return 0 }

// Unreachable reports whether a retry may succeed after an error.
func (Database) Unreachable(err error) bool { return sqlitestore.Unreachable(err) }
