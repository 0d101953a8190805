package mongo

import (
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
	mongostore "github.com/sluicebox/sluicebox/store/mongo"
)

// Database is a MongoDB database with outboxes. It implements sluicebox.Database.
type Database struct {
	// URL is mongodb://user@host:port/database.
	URL string
	// StreamURL is the same database with a role that may stream. "" is URL.
	StreamURL string
}

// Store returns the store of a relay, without a connection.
func (d Database) Store(of store.Settings) (ledger.Store, error) {
	st, err := mongostore.New(mongostore.Config{URL: d.URL, Name: of.Name, Holder: of.Holder, Outboxes: of.Outboxes, TakeoverTimeout: of.TakeoverTimeout})
	if err != nil {
		return ledger.Store{}, err
	}
	return ledger.Store{Tables: st, Ledger: st.Ledger}, nil
}

// Stream returns a source that reads the change stream, without a connection.
func (d Database) Stream(of capture.Settings) (capture.Stream, error) {
	src, err := New(Config{URL: d.URL, StreamURL: d.StreamURL, Name: of.Name, Outboxes: of.Outboxes, MaxBatchBytes: of.MaxBatchBytes})
	if err != nil {
		return nil, err
	}
	return src, nil
}

// MaxSilence returns the longest interval between two messages.
func (Database) MaxSilence() time.Duration { return HeartbeatPeriod }

// Unreachable reports whether a retry may succeed after an error.
func (Database) Unreachable(err error) bool { return mongostore.Unreachable(err) }
