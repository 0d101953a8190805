package store

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Outbox is one configured table, or prefix of messages, with its layout.
type Outbox struct {
	// Name identifies the outbox in lanes, the relay's tables and messages. Several
	// outboxes may share one table.
	Name   string
	Schema string // empty: the database's default
	Table  string
	Layout Layout
	// MessagePrefix names an outbox without a table, on PostgreSQL: its rows are the
	// transactional logical messages with this prefix (pg_logical_emit_message). The columns
	// of the layout are members of the JSON object that is the content of a message. The
	// layout is LogOnly, and its id and payload are optional; see MessageLayout.
	MessagePrefix string
	// Kind is the kind of every row, for layouts without a kind column.
	Kind string
	// Retention is how long a delivered row is kept; 0 means forever. See Pruner.
	Retention time.Duration
	// Archive is the table of the same database that receives the rows deleted after
	// Retention, in ArchiveSchema; "" keeps none. It has the columns of the outbox.
	ArchiveSchema, Archive string
	// Routes are the destinations of the rows, at most MaxRoutes; none: the outbox has one. See
	// Legs.
	Routes []Route
	// AnyRequired: a row is COMPLETED with the first required leg that delivers it, and FAILED
	// once all required legs failed. Otherwise it takes every required leg, and one that fails
	// makes the row FAILED.
	AnyRequired bool
	// FailedArchive is the table of the same database that receives the rows that Discard takes
	// out of the outbox, in FailedArchiveSchema; "" keeps none. It has the columns of the outbox.
	// The relay discards FAILED rows by itself then.
	FailedArchiveSchema, FailedArchive string
}

// ArchiveTable returns the archive as a table of its own, with the outbox's layout; nil if
// there is none.
func (o *Outbox) ArchiveTable() *Outbox { return o.copyTo(o.ArchiveSchema, o.Archive) }

// FailedArchiveTable returns the table for discarded rows like ArchiveTable.
func (o *Outbox) FailedArchiveTable() *Outbox {
	return o.copyTo(o.FailedArchiveSchema, o.FailedArchive)
}

// ArchiveTables returns the tables that rows are moved into.
func (o *Outbox) ArchiveTables() (tables []*Outbox) {
	for _, a := range []*Outbox{o.ArchiveTable(), o.FailedArchiveTable()} {
		if a != nil && (len(tables) == 0 || tables[0].Schema != a.Schema || tables[0].Table != a.Table) {
			tables = append(tables, a)
		}
	}
	return tables
}

func (o *Outbox) copyTo(schema, table string) *Outbox {
	if table == "" {
		return nil
	}
	a := *o
	a.Schema, a.Table = schema, table
	a.ArchiveSchema, a.Archive, a.FailedArchiveSchema, a.FailedArchive = "", "", "", ""
	return &a
}

// namePattern is narrow because a relay's name becomes part of the names of slots,
// publications, tables and files.
var namePattern = regexp.MustCompile(`^[a-z0-9_]{1,40}$`)

// ValidateName reports whether name is a valid relay name.
func ValidateName(name string) error {
	if namePattern.MatchString(name) {
		return nil
	}
	return fmt.Errorf("name %q: use 1 to 40 of a-z, 0-9 and _", name)
}

// ShardName returns the name of the relay of one partition, for example shop/3.
func ShardName(relay string, partition int) string { return fmt.Sprintf("%s/%d", relay, partition) }

// ValidateShardName is ValidateName, but accepts names of ShardName too. Nothing of the database's log
// may have such a name.
func ValidateShardName(name string) error {
	if relay, partition, found := strings.Cut(name, "/"); found && shardPattern.MatchString(partition) {
		return ValidateName(relay)
	}
	return ValidateName(name)
}

var shardPattern = regexp.MustCompile(`^(0|[1-9][0-9]{0,3})$`)

// ValidateOutboxes returns every reason why a relay cannot work on the outboxes, in one
// error. takeover is how long another processor's claim holds a row; 0 means not at all.
func ValidateOutboxes(outboxes []Outbox, takeover time.Duration) error {
	var errs []error
	if takeover < 0 {
		errs = append(errs, fmt.Errorf("takeover timeout %s must not be negative", takeover))
	}
	if len(outboxes) == 0 {
		errs = append(errs, errors.New("no outbox is configured"))
	}

	seen := map[string]bool{}
	for i := range outboxes {
		o := &outboxes[i]
		if seen[o.Name] {
			errs = append(errs, fmt.Errorf("outbox %q is configured twice", o.Name))
		}
		seen[o.Name] = true
		for _, r := range o.Routes {
			if leg := LegName(o.Name, r.Name); slices.ContainsFunc(outboxes, func(o Outbox) bool { return o.Name == leg }) {
				errs = append(errs, fmt.Errorf("outbox %q has the name of a route of outbox %q; rename one", leg, o.Name))
			}
		}
		errs = append(errs, o.validate(takeover))
	}

	return errors.Join(errs...)
}

func (o *Outbox) validate(takeover time.Duration) error {
	var errs []error
	if o.Name == "" {
		errs = append(errs, errors.New("outbox has no name"))
	}
	layout := o.Layout
	switch {
	case o.MessagePrefix != "":
		layout = MessageLayout(o.Layout)
		if err := o.validateMessages(); err != nil {
			errs = append(errs, fmt.Errorf("outbox %q: %w", o.Name, err))
		}
	case o.Table == "":
		errs = append(errs, fmt.Errorf("outbox %q: no table is named", o.Name))
	}
	if err := layout.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("outbox %q: %w", o.Name, err))
	}

	if takeover > 0 && o.Layout.State != StateNone && o.Layout.Columns.Claimed == "" {
		errs = append(errs, fmt.Errorf(
			"outbox %q: a takeover timeout needs a claim time column, and layout %s has none; name one in columns.claimed, or take over at once",
			o.Name, o.Layout.Name))
	}

	if takeover > 0 && o.Layout.Unclaimed {
		errs = append(errs, fmt.Errorf("outbox %q: a takeover timeout needs written claims; set claims: on, or take over at once", o.Name))
	}
	for _, err := range []error{o.ValidateRetention(), o.ValidateArchive(), o.ValidateFailedArchive(), o.validateRoutes()} {
		if err != nil {
			errs = append(errs, fmt.Errorf("outbox %q: %w", o.Name, err))
		}
	}

	return errors.Join(errs...)
}

// Settings configure a store.
type Settings struct {
	// URL is the URL of the database that holds the outboxes; see ParseURL of its package.
	URL string
	// Name is the relay's name, [a-z0-9_]{1,40}. It is the key of the relay's own rows.
	Name string
	// Holder identifies this process to operators and to other relays of the name, for
	// example by host and process id. The store appends # and eight random digits, so that
	// no two stores share a holder.
	Holder string
	// Outboxes are the tables, each with its layout.
	Outboxes []Outbox
	// TakeoverTimeout is how long another program's claim holds a row, by the server's
	// clock. 0: rows in PROCESSING are claimed at once.
	TakeoverTimeout time.Duration
	// IdleTimeout is how long a session of PostgreSQL that has nothing to do stays open, except the one of
	// the lock and the one that the leader's records need. 0: until the store closes.
	IdleTimeout time.Duration
	// Password, if not nil, returns the password of each new connection in place of the URL's.
	Password Passworder
}

// Passworder returns the password of a new connection, for example a token that expires. The error
// shows no secret. It is safe for concurrent use.
type Passworder interface {
	Password(ctx context.Context) (string, error)
}
