package postgres

import (
	"errors"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
)

// Database is a PostgreSQL database with outboxes. It implements sluicebox.Database.
type Database struct {
	// URL is postgres://user@host:port/database.
	URL string
	// StreamURL is the same database with a role that may stream. "" is URL.
	StreamURL string
	// Heartbeat is the interval of Config.HeartbeatInterval. 0 is 30 s.
	Heartbeat time.Duration
}

// Store returns the store of a relay, without a connection.
func (d Database) Store(of store.Settings) (ledger.Store, error) {
	of.URL = d.URL
	st, err := pgstore.New(of)
	if err != nil {
		return ledger.Store{}, err
	}
	return ledger.Store{Tables: st, Ledger: st.Ledger}, nil
}

// Stream returns a source that reads the WAL, without a connection.
func (d Database) Stream(of capture.Settings) (capture.Stream, error) {
	src, err := New(Config{
		URL: d.URL, StreamURL: d.StreamURL, Name: of.Name, Outboxes: of.Outboxes, HeartbeatInterval: d.Heartbeat, MaxBatchBytes: of.MaxBatchBytes,
		MayCreate: true, // the server decides, because only a table's owner may publish it
		TakeOver:  true, // only the leader opens it
	})
	if err != nil {
		return nil, err
	}
	return src, nil
}

// MaxSilence returns the interval of the heartbeats.
func (d Database) MaxSilence() time.Duration {
	if d.Heartbeat == 0 {
		return defaultHeartbeat
	}
	return max(0, d.Heartbeat)
}

// Unreachable reports whether a retry may succeed after an error.
func (Database) Unreachable(err error) bool {
	var old *OldTransactionError // the transaction ends eventually
	return errors.As(err, &old) || pgstore.Unreachable(err)
}
