package sqlite

import (
	"errors"
	"fmt"
	"regexp"
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
	// Outboxes are the tables, each with its layout.
	Outboxes []store.Outbox
	// TakeoverTimeout is how long a claim of somebody else holds a row. 0: rows
	// in PROCESSING are claimed at once.
	TakeoverTimeout time.Duration
}

var nameForm = regexp.MustCompile(`^[a-z0-9_]{1,40}$`)

// Validate reports everything that is wrong with the configuration, in one
// error.
func (c *Config) Validate() error {
	var errs []error
	if _, err := ParseURL(c.URL); err != nil {
		errs = append(errs, err)
	}
	if !nameForm.MatchString(c.Name) {
		errs = append(errs, fmt.Errorf("name %q: use 1 to 40 of a-z, 0-9 and _", c.Name))
	}
	if c.TakeoverTimeout < 0 {
		errs = append(errs, fmt.Errorf("the takeover time-out is %s, must not be negative", c.TakeoverTimeout))
	}
	if len(c.Outboxes) == 0 {
		errs = append(errs, errors.New("no outbox is configured"))
	}
	seen := map[string]bool{}
	for i := range c.Outboxes {
		o := &c.Outboxes[i]
		if seen[o.Name] {
			errs = append(errs, fmt.Errorf("outbox %q is configured twice", o.Name))
		}
		seen[o.Name] = true
		errs = append(errs, c.validateOutbox(o))
	}
	return errors.Join(errs...)
}

func (c *Config) validateOutbox(o *store.Outbox) error {
	var errs []error
	if o.Name == "" {
		errs = append(errs, errors.New("an outbox has no name"))
	}
	if o.Table == "" {
		errs = append(errs, fmt.Errorf("outbox %q: no table is named", o.Name))
	}
	if o.Schema != "" && !strings.EqualFold(o.Schema, "main") {
		errs = append(errs, fmt.Errorf("outbox %q: schema %q: a SQLite file has one schema, main; leave it out", o.Name, o.Schema))
	}
	if err := o.Layout.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("outbox %q: %w", o.Name, err))
	}
	if c.TakeoverTimeout > 0 && o.Layout.State != store.StateNone && o.Layout.Columns.Claimed == "" {
		errs = append(errs, fmt.Errorf(
			"outbox %q: a takeover time-out needs a column for the time of the claim, and layout %s names none; name one or take over at once",
			o.Name, o.Layout.Name))
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
