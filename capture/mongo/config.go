package mongo

import (
	"errors"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/logsource"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
	mongostore "github.com/sluicebox/sluicebox/store/mongo"
)

// Config configures a Source.
type Config struct {
	// URL is the database, mongodb://user@host:port/database. It serves everything except
	// the stream: checks and markers.
	URL string
	// StreamURL is the same database with a separate role for the stream. "" means URL.
	StreamURL string
	// Name is the relay's name, [a-z0-9_]{1,40}.
	Name string
	// Outboxes are the collections to read, all in the URL's database.
	Outboxes []store.Outbox
	// MaxBatchRows and MaxBatchBytes bound a batch. A single row may exceed the bytes, and
	// the rows that several outboxes make of one document stay together. 0 means 500 rows
	// and 4 MiB.
	MaxBatchRows  int
	MaxBatchBytes int
}

// Validate reports every missing or invalid value, joined into one error. It makes no DNS
// lookup.
func (c *Config) Validate() error {
	of := mongostore.Config{URL: c.URL, Name: c.Name, Outboxes: c.Outboxes}
	errs := []error{of.Validate(), logsource.ValidateBatch(c.MaxBatchRows, c.MaxBatchBytes)}
	if c.StreamURL != "" {
		errs = append(errs, mongostore.ValidateURL(c.StreamURL))
	}
	return errors.Join(errs...)
}

// New checks a configuration and returns its source, without connecting. Call Close when no
// other call is running.
func New(cfg Config) (*Source, error) {
	if err := cfg.Validate(); err != nil {
		return nil, &store.SetupError{Problem: err.Error()}
	}

	if cfg.StreamURL == "" {
		cfg.StreamURL = cfg.URL
	}
	logsource.SetBatchDefaults(&cfg.MaxBatchRows, &cfg.MaxBatchBytes)

	application := "sluicebox " + cfg.Name + " stream"
	control := &lazyClient{url: cfg.URL, application: application}
	stream := control
	if cfg.StreamURL != cfg.URL {
		stream = &lazyClient{url: cfg.StreamURL, application: application}
	}
	return &Source{cfg: cfg, control: control, stream: stream, plan: newPlan(&cfg)}, nil
}

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
