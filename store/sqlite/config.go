package sqlite

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Config is what a store needs to know.
type Config struct {
	// URL is the sqlite: URL of the file that holds the outboxes; see ParseURL.
	URL string
	// Name is the relay's name, [a-z0-9_]{1,40}. It keys the relay's own rows.
	Name string
	// Holder is what this relay calls itself, its host and process, say: operators
	// and other relays of the name read it. The store adds a # and eight random
	// digits, so that no two stores have the same.
	Holder string
	// Outboxes are the tables, each with its layout.
	Outboxes []store.Outbox
	// TakeoverTimeout is how long a claim of somebody else holds a row. 0: rows
	// in PROCESSING are claimed at once.
	TakeoverTimeout time.Duration
}

// Validate reports everything that is wrong with the configuration, in one
// error.
func (c *Config) Validate() error {
	_, err := ParseURL(c.URL)
	errs := []error{err, store.ValidateName(c.Name), store.ValidateOutboxes(c.Outboxes, c.TakeoverTimeout)}
	for i := range c.Outboxes {
		if o := &c.Outboxes[i]; o.Schema != "" && !strings.EqualFold(o.Schema, "main") {
			errs = append(errs, fmt.Errorf("outbox %q: schema %q: a SQLite file has one schema, main; leave it out", o.Name, o.Schema))
		}
	}
	return errors.Join(errs...)
}

// Ident quotes an identifier.
func Ident(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// TableName returns the outbox's table, quoted.
func TableName(o *store.Outbox) string { return Ident(o.Table) }

// LogTable returns the name of the table that the triggers of the relay of a
// name fill, unquoted. Its AUTOINCREMENT counter is the position of a view.
func LogTable(relay string) string { return "sluicebox_log_" + relay }
