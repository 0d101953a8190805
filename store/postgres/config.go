package postgres

import (
	"errors"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Config is what a store needs to know.
type Config struct {
	// URL is the postgres:// URL of the database that holds the outboxes.
	URL string
	// Name is the relay's name, [a-z0-9_]{1,40}. It keys the relay's own rows.
	Name string
	// Holder is what this relay calls itself, its host and process, say: operators
	// and other relays of the name read it. The store adds a # and eight random
	// digits, so that no two stores have the same.
	Holder string
	// Outboxes are the tables, each with its layout.
	Outboxes []store.Outbox
	// TakeoverTimeout is how long a claim of somebody else holds a row, by the
	// server's clock. 0: rows in PROCESSING are claimed at once.
	TakeoverTimeout time.Duration
}

// Validate reports everything that is wrong with the configuration, in one
// error.
func (c *Config) Validate() error {
	_, err := ParseURL(c.URL, "")
	return errors.Join(err, store.ValidateName(c.Name), store.ValidateOutboxes(c.Outboxes, c.TakeoverTimeout))
}
