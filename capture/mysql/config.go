package mysql

import (
	"errors"
	"math/rand/v2"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/logsource"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
	mystore "github.com/sluicebox/sluicebox/store/mysql"
)

// Config configures a Source.
type Config struct {
	// URL is the database, mysql://user@host:port/database or mariadb://…. It serves
	// everything except the stream: the checks, the descriptions of tables, the markers.
	URL string
	// StreamURL is the same server with a role that may stream. It defaults to URL.
	StreamURL string
	// Password, if not nil, returns the password of each new connection in place of the URLs'.
	Password store.Passworder
	// Name is the relay's name, [a-z0-9_]{1,40}.
	Name string
	// Outboxes are the tables to read.
	Outboxes []store.Outbox
	// ServerID identifies the relay among the server's replicas and must be unique among
	// them. 0 selects a random id above 2^31 for each stream, because MariaDB ends an
	// older stream with the same id before it starts one, and waits up to
	// net_write_timeout if the older stream has no reader.
	ServerID uint32
	// MaxBatchRows and MaxBatchBytes limit a batch; a single row may exceed the bytes.
	// They default to 500 rows and 4 MiB.
	MaxBatchRows  int
	MaxBatchBytes int
}

// Validate reports every missing or invalid value in one error.
func (c *Config) Validate() error {
	return errors.Join(store.ValidateName(c.Name), store.ValidateOutboxes(c.Outboxes, 0), logsource.ValidateBatch(c.MaxBatchRows, c.MaxBatchBytes))
}

func (c *Config) setDefaults() {
	if c.StreamURL == "" {
		c.StreamURL = c.URL
	}
	logsource.SetBatchDefaults(&c.MaxBatchRows, &c.MaxBatchBytes)
}

// minRandomServerID starts the upper half of all server ids, which administrators rarely
// assign by hand.
const minRandomServerID = 1 << 31

// anyServerID returns a random server id that is unlikely to be in use.
func anyServerID() uint32 { return minRandomServerID | rand.Uint32() }

// New validates a configuration and returns its source. It does not connect. Close the
// source after all other calls have returned.
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

	if err := errors.Join(mystore.SetPassword(config, cfg.Password), mystore.SetPassword(stream, cfg.Password)); err != nil {
		return nil, err
	}
	control, err := newControl(config)
	if err != nil {
		return nil, err
	}
	return &Source{cfg: cfg, control: control, stream: stream}, nil
}

// Database is a MySQL or MariaDB database with outboxes. It implements sluicebox.Database.
type Database struct {
	// URL is mysql://user@host:port/database or mariadb://….
	URL string
	// StreamURL is the same server with a role that may stream. "" is URL.
	StreamURL string
	// ServerID is Config.ServerID.
	ServerID uint32
	// Password is Config.Password.
	Password store.Passworder
}

// Store returns the store of a relay, without a connection.
func (d Database) Store(of store.Settings) (ledger.Store, error) {
	of.URL, of.Password = d.URL, d.Password
	st, err := mystore.New(of)
	if err != nil {
		return ledger.Store{}, err
	}
	return ledger.Store{Tables: st, Ledger: st.Ledger}, nil
}

// Stream returns a source that reads the binlog, without a connection.
func (d Database) Stream(of capture.Settings) (capture.Stream, error) {
	src, err := New(Config{URL: d.URL, StreamURL: d.StreamURL, Password: d.Password, ServerID: d.ServerID, Name: of.Name, Outboxes: of.Outboxes, MaxBatchBytes: of.MaxBatchBytes})
	if err != nil {
		return nil, err
	}
	return src, nil
}

// MaxSilence returns the interval of the server's heartbeats.
func (Database) MaxSilence() time.Duration { return HeartbeatPeriod }

// Unreachable reports whether a retry may succeed after an error.
func (Database) Unreachable(err error) bool { return mystore.Unreachable(err) }
