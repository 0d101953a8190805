package mysql

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/sluicebox/sluicebox/store"
	mystore "github.com/sluicebox/sluicebox/store/mysql"
)

// Config says what to read and how.
type Config struct {
	// URL is the database, mysql://user@host:port/database or mariadb://…. It
	// serves all but the stream: the checks, the descriptions of tables, markers.
	URL string
	// StreamURL is the same server for a role of its own that may stream. "" is
	// URL.
	StreamURL string
	// Name is the relay's name, [a-z0-9_]{1,40}.
	Name string
	// Outboxes are the tables to read.
	Outboxes []store.Outbox
	// ServerID is what the relay calls itself among the server's replicas; no
	// other of them may have the number. 0 is another for each stream, above 2^31:
	// MariaDB ends an older stream of the same number before it begins one, and
	// waits for net_write_timeout if nobody reads that stream any more.
	ServerID uint32
	// MaxBatchRows and MaxBatchBytes bound a batch; a single row may exceed the
	// bytes. 0 is 500 rows and 4 MiB.
	MaxBatchRows  int
	MaxBatchBytes int
}

// Defaults of a Config.
const (
	defaultBatchRows  = 500
	defaultBatchBytes = 4 << 20
)

// Validate reports every value that is missing or out of range, in one error.
func (c *Config) Validate() error {
	errs := []error{store.ValidateName(c.Name), store.ValidateOutboxes(c.Outboxes, 0)}
	if c.MaxBatchRows < 0 || c.MaxBatchBytes < 0 {
		errs = append(errs, fmt.Errorf("the bounds of a batch are %d rows and %d bytes, must not be negative", c.MaxBatchRows, c.MaxBatchBytes))
	}
	return errors.Join(errs...)
}

func (c *Config) setDefaults() {
	if c.StreamURL == "" {
		c.StreamURL = c.URL
	}
	if c.MaxBatchRows == 0 {
		c.MaxBatchRows = defaultBatchRows
	}
	if c.MaxBatchBytes == 0 {
		c.MaxBatchBytes = defaultBatchBytes
	}
}

// minRandomServerID is the half of all server ids that people do not number their servers
// with.
const minRandomServerID = 1 << 31

// anyServerID is a number that nobody else will have by accident.
func anyServerID() uint32 { return minRandomServerID | rand.Uint32() }

// New checks a configuration and returns its source. It connects to nothing.
// Close it when no call on it is open.
func New(cfg Config) (*Source, error) {
	if err := cfg.Validate(); err != nil {
		return nil, &store.SetupError{Problem: err.Error()}
	}
	config, err := mystore.ParseURL(cfg.URL, "sluicebox "+cfg.Name+" control")
	if err != nil {
		return nil, err
	}
	cfg.setDefaults()
	stream, err := mystore.ParseURL(cfg.StreamURL, "sluicebox "+cfg.Name+" stream")
	if err != nil {
		return nil, err
	}
	control, err := newControl(config)
	if err != nil {
		return nil, err
	}
	return &Source{cfg: cfg, control: control, stream: stream}, nil
}
