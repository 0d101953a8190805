package mysql

import (
	"errors"
	"fmt"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// maxNameBytes is the maximum length of an outbox's name in the relay's tables.
const maxNameBytes = 255

// Config configures a Store.
type Config struct {
	// URL is the mysql:// or mariadb:// URL of the database that holds the outboxes; see
	// ParseURL.
	URL string
	// Name is the relay's name, [a-z0-9_]{1,40}. It is the key of the relay's own rows.
	Name string
	// Holder identifies this relay to operators and to other relays of the same name, for
	// example by host and process. The store appends a # and eight random digits, so that
	// no two stores have the same holder.
	Holder string
	// Outboxes are the tables, each with its layout.
	Outboxes []store.Outbox
	// TakeoverTimeout is how long another processor's claim holds a row, by the server's
	// clock. 0 means that rows in PROCESSING are claimed at once.
	TakeoverTimeout time.Duration
}

// Validate reports all problems of the configuration in one error.
func (c *Config) Validate() error {
	_, err := ParseURL(c.URL, "")
	errs := []error{err, store.ValidateName(c.Name), store.ValidateOutboxes(c.Outboxes, c.TakeoverTimeout)}
	for i := range c.Outboxes {
		if name := c.Outboxes[i].Name; len(name) > maxNameBytes {
			errs = append(errs, fmt.Errorf("outbox %.20q…: name has %d bytes, at most %d are allowed", name, len(name), maxNameBytes))
		}
	}
	return errors.Join(errs...)
}
