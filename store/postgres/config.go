package postgres

import (
	"errors"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Config configures a store.
type Config struct {
	// URL is the postgres:// URL of the database that holds the outboxes.
	URL string
	// Name is the relay's name, [a-z0-9_]{1,40}. It is the key of the relay's own rows.
	Name string
	// Holder identifies this relay to operators and to other relays of the name, for
	// example by host and process id. The store appends # and eight random digits, so
	// that no two stores share a holder.
	Holder string
	// Outboxes are the tables, each with its layout.
	Outboxes []store.Outbox
	// TakeoverTimeout is how long another program's claim holds a row, by the server's
	// clock. 0: rows in PROCESSING are claimed at once.
	TakeoverTimeout time.Duration
}

// Validate reports every problem of the configuration in one error.
func (c *Config) Validate() error {
	_, err := ParseURL(c.URL, "")
	return errors.Join(err, store.ValidateName(c.Name), store.ValidateOutboxes(c.Outboxes, c.TakeoverTimeout))
}
