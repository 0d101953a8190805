package mysql

import (
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
	mystore "github.com/sluicebox/sluicebox/store/mysql"
)

// Database is a MySQL or MariaDB database with outboxes. It implements sluicebox.Database.
type Database struct {
	// URL is mysql://user@host:port/database or mariadb://….
	URL string
	// StreamURL is the same server with a role that may stream. "" is URL.
	StreamURL string
	// ServerID is Config.ServerID.
	ServerID uint32
}

// Store returns the store of a relay, without a connection.
func (d Database) Store(of store.Settings) (ledger.Store, error) {
	of.URL = d.URL
	st, err := mystore.New(of)
	if err != nil {
		return ledger.Store{}, err
	}
	return ledger.Store{Tables: st, Ledger: st.Ledger}, nil
}

// Stream returns a source that reads the binlog, without a connection.
func (d Database) Stream(of capture.Settings) (capture.Stream, error) {
	src, err := New(Config{URL: d.URL, StreamURL: d.StreamURL, ServerID: d.ServerID, Name: of.Name, Outboxes: of.Outboxes, MaxBatchBytes: of.MaxBatchBytes})
	if err != nil {
		return nil, err
	}
	return src, nil
}

// MaxSilence returns the interval of the server's heartbeats.
func (Database) MaxSilence() time.Duration { return HeartbeatPeriod }

// Unreachable reports whether a retry may succeed after an error.
func (Database) Unreachable(err error) bool { return mystore.Unreachable(err) }
