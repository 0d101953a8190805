package sqlite

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Config configures a store.
type Config struct {
	// URL is the sqlite: URL of the file that holds the outboxes; see ParseURL.
	URL string
	// Name is the relay's name, [a-z0-9_]{1,40}. It is the key of the relay's rows in its
	// tables.
	Name string
	// Holder identifies this relay to operators and to other relays of the name, for example
	// by host and process. The store appends a # and eight random digits, so that no two
	// stores have the same holder.
	Holder string
	// Outboxes are the tables, each with its layout.
	Outboxes []store.Outbox
	// TakeoverTimeout is the time for which another processor's claim holds a row. 0 claims
	// rows in PROCESSING at once.
	TakeoverTimeout time.Duration
}

// Validate reports all errors of the configuration, in one error.
func (c *Config) Validate() error {
	_, err := ParseURL(c.URL)
	errs := []error{err, store.ValidateName(c.Name), store.ValidateOutboxes(c.Outboxes, c.TakeoverTimeout)}
	for i := range c.Outboxes {
		if o := &c.Outboxes[i]; o.Schema != "" && !strings.EqualFold(o.Schema, "main") {
			errs = append(errs, fmt.Errorf("outbox %q: schema %q: a SQLite file has only the schema main; remove it", o.Name, o.Schema))
		}
	}
	return errors.Join(errs...)
}

// Ident quotes an identifier.
func Ident(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// TableName returns the quoted name of the outbox's table.
func TableName(o *store.Outbox) string { return Ident(o.Table) }

// LogTable returns the unquoted name of a relay's log table, which its triggers fill. Its
// AUTOINCREMENT counter is the position of a view.
func LogTable(relay string) string { return "sluicebox_log_" + relay }

// ParseURL returns the path in a URL of the form sqlite:///absolute/path.db or
// sqlite:relative.db. The error is a *store.SetupError.
func ParseURL(raw string) (string, error) {
	refuse := func(problem, remedy string) (string, error) {
		return "", &store.SetupError{Problem: "database URL " + problem, Remedy: remedy}
	}
	const forms = "use sqlite:///absolute/path.db or sqlite:relative.db"
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "sqlite" {
		return refuse("is not of the form sqlite:///absolute/path.db or sqlite:relative.db",
			"percent-encode special characters in the path")
	}
	if u.Host != "" || u.User != nil {
		return refuse(fmt.Sprintf("names a host, %q", u.Host), forms)
	}
	if u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return refuse("has parameters, but SQLite supports none", "remove them; write a ? or # of the path as %3F or %23")
	}

	path := u.Path
	if u.Opaque != "" {
		if path, err = url.PathUnescape(u.Opaque); err != nil {
			return refuse("has a path that cannot be decoded", "write a % of the path as %25")
		}
	}
	if strings.Contains(path, ":memory:") {
		return refuse("names a database in memory, which no other process can access", forms)
	}
	if path == "" || strings.HasSuffix(path, "/") || strings.ContainsRune(path, 0) {
		return refuse("names no file", forms)
	}
	if runtime.GOOS == "windows" && len(path) > 2 && path[0] == '/' && path[2] == ':' {
		path = path[1:] // sqlite:///C:/path.db
	}
	return filepath.FromSlash(path), nil
}
