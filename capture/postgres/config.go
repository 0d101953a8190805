package postgres

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/logsource"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
)

// Config configures a source.
type Config struct {
	// URL is the database, postgres://user@host:port/database. It serves everything
	// except the stream: checks, publication, markers and heartbeats.
	URL string
	// StreamURL is the same database with a separate role for the stream. "" is URL.
	StreamURL string
	// Password, if not nil, returns the password of each new connection in place of the URLs'.
	Password store.Passworder
	// Name is the name of the slot and of the publication: [a-z0-9_]{1,40}, without _cp_.
	Name string
	// Outboxes are the tables, and the prefixes of messages, to read.
	Outboxes []store.Outbox
	// MayCreate allows the source to create the publication or to add a table to it.
	// Otherwise a missing table is an error with the statement to run.
	MayCreate bool
	// TakeOver allows the source to terminate another session that holds the slot. It is
	// for a caller that has acquired the leadership while its predecessor hangs.
	TakeOver bool
	// SlotTimeout is the maximum age of a transaction that the creation of a slot waits
	// for. 0 is 2 s.
	SlotTimeout time.Duration
	// HeartbeatInterval is how long the WAL may be without activity before the source
	// writes a heartbeat. 0 is 30 s, a negative value disables heartbeats.
	HeartbeatInterval time.Duration
	// MaxBatchRows and MaxBatchBytes bound a batch; a single row may exceed the bytes. 0
	// is 500 rows and 4 MiB.
	MaxBatchRows  int
	MaxBatchBytes int
}

// Defaults of a Config.
const (
	defaultSlotTimeout = 2 * time.Second
	defaultHeartbeat   = 30 * time.Second
)

// Validate reports every missing or invalid value in one error.
func (c *Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	// The replication commands do not quote the slot's name.
	errs = append(errs, store.ValidateName(c.Name), store.ValidateOutboxes(c.Outboxes, 0), logsource.ValidateBatch(c.MaxBatchRows, c.MaxBatchBytes))
	if strings.Contains(c.Name, retainedSlotInfix) {
		bad("invalid name %q: it contains %s, which marks slots that retain WAL for a checkpoint of another relay; use another name", c.Name, retainedSlotInfix)
	}
	prefixes := c.messagePrefixes()
	for i, prefix := range prefixes {
		switch {
		case slices.Contains(prefixes[:i], prefix):
			bad("message prefix %q has two outboxes; remove one", prefix)
		case prefix == c.Name+markSuffix || prefix == c.Name+heartbeatSuffix:
			bad("message prefix %q is one of the relay's own messages; use another", prefix)
		}
	}
	if c.SlotTimeout < 0 {
		bad("slot timeout is %s, must not be negative", c.SlotTimeout)
	}
	return errors.Join(errs...)
}

// messagePrefixes returns the prefixes of the outboxes without a table.
func (c *Config) messagePrefixes() (list []string) {
	for i := range c.Outboxes {
		if prefix := c.Outboxes[i].MessagePrefix; prefix != "" {
			list = append(list, prefix)
		}
	}
	return list
}

// Prefixes of the relay's own messages are its name and one of these.
const (
	markSuffix      = ".mark"
	heartbeatSuffix = ".heartbeat"
)

func (c *Config) setDefaults() {
	if c.StreamURL == "" {
		c.StreamURL = c.URL
	}
	if c.SlotTimeout == 0 {
		c.SlotTimeout = defaultSlotTimeout
	}
	if c.HeartbeatInterval == 0 {
		c.HeartbeatInterval = defaultHeartbeat
	}
	logsource.SetBatchDefaults(&c.MaxBatchRows, &c.MaxBatchBytes)
}

// New validates a configuration and returns its source. It opens no connection. Call
// Close after all other calls have returned.
func New(cfg Config) (*Source, error) {
	if err := cfg.Validate(); err != nil {
		return nil, &store.SetupError{Problem: err.Error()}
	}
	cfg.setDefaults()
	control, err := pgstore.ParseURL(cfg.URL, "sluicebox "+cfg.Name+" control")
	if err != nil {
		return nil, err
	}
	stream, err := pgstore.ParseURL(cfg.StreamURL, "sluicebox "+cfg.Name+" stream")
	if err != nil {
		return nil, err
	}
	pgstore.SetPassword(control, cfg.Password)
	pgstore.SetPassword(stream, cfg.Password)
	streamParams(stream)
	s := &Source{cfg: cfg, control: newControl(control)}
	s.slots = newSlots(&s.cfg, s.control, stream)
	return s, nil
}

// streamParams makes the session a replication session whose text output does not depend
// on settings of the role or the database.
func streamParams(c *pgx.ConnConfig) {
	for key, value := range map[string]string{
		"replication":        "database",
		"client_encoding":    "UTF8",
		"bytea_output":       "hex",
		"datestyle":          "ISO",
		"intervalstyle":      "postgres",
		"extra_float_digits": "3",
		// A relay that freezes or loses its host releases the slot soon.
		"wal_sender_timeout": "4s",
		// The session that created a slot keeps its snapshot until the tables are read.
		"idle_in_transaction_session_timeout": "0",
	} {
		c.RuntimeParams[key] = value
	}
}

// Database is a PostgreSQL database with outboxes. It implements sluicebox.Database.
type Database struct {
	// URL is postgres://user@host:port/database.
	URL string
	// StreamURL is the same database with a role that may stream. "" is URL.
	StreamURL string
	// Heartbeat is the interval of Config.HeartbeatInterval. 0 is 30 s.
	Heartbeat time.Duration
	// Password is Config.Password.
	Password store.Passworder
}

// Store returns the store of a relay, without a connection.
func (d Database) Store(of store.Settings) (ledger.Store, error) {
	of.URL, of.Password = d.URL, d.Password
	st, err := pgstore.New(of)
	if err != nil {
		return ledger.Store{}, err
	}
	return ledger.Store{Tables: st, Ledger: st.Ledger}, nil
}

// Stream returns a source that reads the WAL, without a connection.
func (d Database) Stream(of capture.Settings) (capture.Stream, error) {
	src, err := New(Config{
		URL: d.URL, StreamURL: d.StreamURL, Password: d.Password, Name: of.Name, Outboxes: of.Outboxes, HeartbeatInterval: d.Heartbeat, MaxBatchBytes: of.MaxBatchBytes,
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
