package mysql

import (
	"errors"
	"fmt"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// maxNameBytes is the most bytes of an outbox's name that the own tables hold.
const maxNameBytes = 255

// Config is what a store needs to know.
type Config struct {
	// URL is the mysql:// or mariadb:// URL of the database that holds the outboxes;
	// see ParseURL.
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
	errs := []error{err, store.ValidateName(c.Name), store.ValidateOutboxes(c.Outboxes, c.TakeoverTimeout)}
	for i := range c.Outboxes {
		if name := c.Outboxes[i].Name; len(name) > maxNameBytes {
			errs = append(errs, fmt.Errorf("outbox %.20q…: its name has %d bytes, and the relay's own tables hold %d", name, len(name), maxNameBytes))
		}
	}
	return errors.Join(errs...)
}
