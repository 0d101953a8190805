package mongo

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
)

// Config configures a Store.
type Config struct {
	// URL is the mongodb:// or mongodb+srv:// URL, including the database that holds the
	// outboxes; see ParseURL.
	URL string
	// Name is the relay's name, [a-z0-9_]{1,40}. It keys the relay's documents.
	Name string
	// Holder identifies this process to operators and to other relays with the same name,
	// for example by host and process id. The store appends # and eight random digits, so
	// that holders are unique.
	Holder string
	// Outboxes are the collections, each with its layout. Schema names a database other
	// than the URL's.
	Outboxes []store.Outbox
	// TakeoverTimeout is how long another process's claim holds a document, by the server's
	// clock. With 0, documents in PROCESSING are claimed at once.
	TakeoverTimeout time.Duration
}

// Validate reports all errors of the configuration, joined. It makes no DNS lookup.
func (c *Config) Validate() error {
	var errs []error
	if strings.HasPrefix(c.URL, "mongodb+srv://") {
		_, err := databaseOf(c.URL)
		errs = append(errs, err)
	} else {
		_, _, err := ParseURL(c.URL, "")
		errs = append(errs, err)
	}

	errs = append(errs, store.ValidateName(c.Name), store.ValidateOutboxes(c.Outboxes, c.TakeoverTimeout))
	for i := range c.Outboxes {
		errs = append(errs, validateNames(&c.Outboxes[i]))
	}
	return errors.Join(errs...)
}

// validateNames rejects collection and field names that the server refuses or interprets
// differently.
func validateNames(o *store.Outbox) error {
	var errs []error
	fault := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("outbox %q: "+format, append([]any{o.Name}, args...)...))
	}

	switch {
	case strings.ContainsAny(o.Table, "$\x00") || strings.HasPrefix(o.Table, "system."):
		fault("invalid collection name %q", o.Table)
	case strings.HasPrefix(o.Table, ownPrefix):
		fault("collection %s belongs to the relay", o.Table)
	}

	named := o.Layout.NamedColumns()
	for _, n := range named {
		if !isPath(n.Column) {
			fault("layout %s: %s: invalid field name %q: a name must not begin with $, and dots separate the names of a path", o.Layout.Name, n.Key, n.Column)
		}
	}

	// The relay must not write a field that contains, or is part of, another named field.
	for _, u := range columns.UsedColumns(&o.Layout) {
		i := slices.IndexFunc(named, func(n store.NamedColumn) bool { return u.Write && isNestedField(n.Column, u.Column) })
		if i >= 0 {
			fault("layout %s: field %q (%s) lies inside field %q (%s), which the relay writes", o.Layout.Name, named[i].Column, named[i].Key, u.Column, o.Layout.ConfigKey(u.Column))
		}
	}

	return errors.Join(errs...)
}

// isPath reports whether a name is a field name or a dotted path of field names.
func isPath(name string) bool {
	for part := range strings.SplitSeq(name, ".") {
		if part == "" || part[0] == '$' || strings.ContainsRune(part, 0) {
			return false
		}
	}
	return true
}

// isNestedField reports whether the field inner lies inside outer.
func isNestedField(inner, outer string) bool { return strings.HasPrefix(inner, outer+".") }
