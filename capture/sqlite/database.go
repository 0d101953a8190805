package sqlite

import (
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
	sqlitestore "github.com/sluicebox/sluicebox/store/sqlite"
)

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
