package mongo

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
	"github.com/sluicebox/sluicebox/store/layouts"
)

// Config configures a Store.
type Config struct {
	// URL is the mongodb:// or mongodb+srv:// URL, including the database that holds the
	// outboxes; see ParseURL.
	URL string
	// Name is the relay's name, [a-z0-9_]{1,40}, or that of a shard; see store.ShardName. It keys the relay's documents.
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
	errs := []error{ValidateURL(c.URL), store.ValidateShardName(c.Name), store.ValidateOutboxes(c.Outboxes, c.TakeoverTimeout), store.RejectMessages(c.Outboxes, "MongoDB")}
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
		i := slices.IndexFunc(named, func(n store.NamedColumn) bool { return u.Write && strings.HasPrefix(n.Column, u.Column+".") })
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

// urlForm is the expected form of a URL, for error texts.
const urlForm = "mongodb://user:password@host:27017/database or mongodb+srv://user:password@name/database"

const (
	// connectTimeout bounds dialling a host.
	connectTimeout = 3 * time.Second
	// heartbeatInterval is how often the driver polls each server's state. A server that
	// steps down reports it at once. A silent server counts as the primary for at most this
	// interval plus connectTimeout. The driver's minimum is 500 ms.
	heartbeatInterval = 2 * time.Second
	// minPoolSize is the smallest accepted maxPoolSize, because a long read must not hold
	// up a ping.
	minPoolSize = 8
	// selectTimeout bounds the search for a primary. An election usually takes a second or
	// two, and calls retry.
	selectTimeout = 3 * time.Second
)

// ValidateURL is ParseURL without a DNS lookup, and so without most checks of a
// mongodb+srv:// URL.
func ValidateURL(raw string) error {
	if strings.HasPrefix(raw, "mongodb+srv://") {
		_, err := databaseOf(raw)
		return err
	}
	_, _, err := ParseURL(raw, "")
	return err
}

// ParseURL reads a connection string for the relay, as MongoDB's drivers define it
// (mongodb.com/docs/manual/reference/connection-string).
//
//   - The string must name a database.
//   - TLS follows the string: mongodb:// without tls=true means no TLS.
//   - Reads and writes go to the primary, whatever the string says.
//   - The driver does not retry reads; the caller does.
//   - mongodb+srv:// makes a DNS lookup.
//
// Errors are *store.SetupError and contain no password.
func ParseURL(raw, application string) (opts *options.ClientOptions, database string, err error) {
	database, err = databaseOf(raw)
	if err != nil {
		return nil, "", err
	}

	opts = options.Client().ApplyURI(raw)
	if err := opts.Validate(); err != nil {
		return nil, "", refuseURL("cannot be used: "+withoutSecrets(raw, err), "see https://www.mongodb.com/docs/manual/reference/connection-string")
	}

	opts.SetAppName(application).SetReadPreference(readpref.Primary()).SetRetryReads(false)
	opts.ConnectTimeout = cmp.Or(opts.ConnectTimeout, new(connectTimeout))
	opts.HeartbeatInterval = cmp.Or(opts.HeartbeatInterval, new(heartbeatInterval))
	opts.ServerSelectionTimeout = cmp.Or(opts.ServerSelectionTimeout, new(selectTimeout))
	if n := opts.MaxPoolSize; n != nil && *n != 0 && *n < minPoolSize {
		opts.SetMaxPoolSize(minPoolSize)
	}

	opts.Timeout = nil // each call sets its own
	return opts, database, nil
}

// databaseOf returns the database that a connection string names.
func databaseOf(raw string) (string, error) {
	rest, ok := strings.CutPrefix(raw, "mongodb://")
	if !ok {
		rest, ok = strings.CutPrefix(raw, "mongodb+srv://")
	}

	if !ok {
		return "", refuseURL("is not of the form "+urlForm, "percent-encode special characters in the user name, password and database")
	}

	// An @ after a / or ? belongs to a password that contains such a character.
	rest, query, _ := strings.Cut(rest, "?")
	at := strings.LastIndexByte(rest, '@')
	if slash := strings.IndexByte(rest, '/'); strings.ContainsAny(rest, "#") || slash >= 0 && slash < at || strings.Contains(query, "@") {
		return "", refuseURL("is not of the form "+urlForm, "percent-encode special characters in the user name and password (@ is %40, # is %23, / is %2F, ? is %3F)")
	}

	_, name, _ := strings.Cut(rest[at+1:], "/")
	name, err := url.PathUnescape(name)
	switch {
	case err != nil || strings.ContainsAny(name, "/\\. \"$\x00"):
		return "", refuseURL("names an invalid database", "write "+urlForm)
	case name == "":
		return "", refuseURL("names no database", "write "+urlForm)
	case slices.Contains([]string{"admin", "local", "config"}, name):
		return "", refuseURL("names the database "+name+", which is the server's own", "name the database that holds the outbox; ?authSource=admin says where the user is defined")
	}

	return name, nil
}

func refuseURL(problem, remedy string) error {
	return &store.SetupError{Problem: "database URL " + problem, Remedy: remedy}
}

// withoutSecrets returns the text of an error without the URL's user and password.
func withoutSecrets(raw string, err error) string {
	cause := errors.Unwrap(err)
	if cause == nil {
		cause = err
	}

	message := cause.Error()
	_, rest, _ := strings.Cut(raw, "://")
	rest, _, _ = strings.Cut(rest, "?")
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		user, password, _ := strings.Cut(rest[:at], ":")
		plain, _ := url.PathUnescape(password)
		for _, secret := range []string{rest[:at], password, plain, user} {
			if secret != "" {
				message = strings.ReplaceAll(message, secret, "…")
			}
		}
	}
	return message
}

// InDatabase returns a connection string, which may name several hosts, with another
// database in its path. authSource stays the original database.
func InDatabase(raw, name string) string {
	scheme, rest, _ := strings.Cut(raw, "://")
	rest, query, _ := strings.Cut(rest, "?")
	hosts, was, _ := strings.Cut(rest, "/")
	if strings.Contains(hosts, "@") && was != "" && !strings.Contains(strings.ToLower(query), "authsource=") {
		query = strings.TrimPrefix(query+"&authSource="+was, "&")
	}
	if query != "" {
		query = "?" + query
	}
	return scheme + "://" + hosts + "/" + name + query
}

// FlowCatalyst is the layout of the two collections of the FlowCatalyst outbox processor.
// The status is a word, and delivered documents are kept.
func FlowCatalyst() store.Layout { return documents("flowcatalyst") }

// OutboxMessages is the layout of the collection that FlowCatalyst's SDKs write today: _id,
// camelCase names, dates.
func OutboxMessages() store.Layout { return documents("outbox-messages") }

// OutboxMessagesText is the other layout of that collection: id, snake_case names, times as
// RFC 3339 text.
func OutboxMessagesText() store.Layout { return documents("outbox-messages-text") }

// documents returns the layout of a preset.
func documents(preset string) store.Layout {
	p, _ := layouts.Named(preset)
	return *p.Documents
}
