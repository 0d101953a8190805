package sqlite

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/sluicebox/sluicebox/store"
)

// Config configures a Store.
type Config = store.Settings

// validate reports all errors of the configuration, in one error.
func validate(c *Config) error {
	_, err := ParseURL(c.URL)
	errs := []error{err, store.ValidateName(c.Name), store.ValidateOutboxes(c.Outboxes, c.TakeoverTimeout), store.RejectMessages(c.Outboxes, "SQLite")}
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
