package mongo

import (
	"errors"

	"github.com/sluicebox/sluicebox/capture/internal/logsource"
	"github.com/sluicebox/sluicebox/store"
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

func (c *Config) setDefaults() {
	if c.StreamURL == "" {
		c.StreamURL = c.URL
	}
	logsource.SetBatchDefaults(&c.MaxBatchRows, &c.MaxBatchBytes)
}

// New checks a configuration and returns its source, without connecting. Call Close when no
// other call is running.
func New(cfg Config) (*Source, error) {
	if err := cfg.Validate(); err != nil {
		return nil, &store.SetupError{Problem: err.Error()}
	}

	cfg.setDefaults()
	application := "sluicebox " + cfg.Name + " stream"
	control := &lazyClient{url: cfg.URL, application: application}
	stream := control
	if cfg.StreamURL != cfg.URL {
		stream = &lazyClient{url: cfg.StreamURL, application: application}
	}
	return &Source{cfg: cfg, control: control, stream: stream, plan: newPlan(&cfg)}, nil
}
