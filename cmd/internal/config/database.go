package config

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/capture/mongo"
	"github.com/sluicebox/sluicebox/capture/mysql"
	"github.com/sluicebox/sluicebox/capture/postgres"
	"github.com/sluicebox/sluicebox/capture/sqlite"
	"github.com/sluicebox/sluicebox/store"
	storemongo "github.com/sluicebox/sluicebox/store/mongo"
	storemysql "github.com/sluicebox/sluicebox/store/mysql"
	"github.com/sluicebox/sluicebox/store/outbox"
	writemongo "github.com/sluicebox/sluicebox/store/outbox/mongo"
	writemysql "github.com/sluicebox/sluicebox/store/outbox/mysql"
	writepg "github.com/sluicebox/sluicebox/store/outbox/postgres"
	writesqlite "github.com/sluicebox/sluicebox/store/outbox/sqlite"
	storepg "github.com/sluicebox/sluicebox/store/postgres"
	storesqlite "github.com/sluicebox/sluicebox/store/sqlite"
)

// databaseType is the code of one kind of database.
type databaseType struct {
	// schemes are the schemes of its URLs, in lower case.
	schemes []string
	// file means that its URLs have a path and no host, and that it has no roles.
	file bool
	// documents means that rows are documents with fields.
	documents bool
	// checkURL returns a *store.SetupError, without a password, about an invalid URL, or
	// errNotURL.
	checkURL func(raw string) error
	// open returns the database of a source; password may be nil.
	open func(s *Source, password store.Passworder) sluicebox.Database
	// writer returns a writer for the rows of ingest, without a connection.
	writer func(url, application string) (outbox.Writer, error)
	// diagnoseWriter checks what the writer needs of tables.
	diagnoseWriter func(ctx context.Context, url, application string, outboxes []*store.Outbox) ([]store.Finding, error)
	// describe describes a table; see store/postgres.Describe.
	describe func(ctx context.Context, url, application string, o *store.Outbox, wanted func(*store.TableInfo) []string) (*store.TableInfo, error)
}

// databaseTypes returns the kinds of databases.
func databaseTypes() []databaseType {
	return []databaseType{
		{
			schemes: []string{"postgres", "postgresql"}, checkURL: checkURL, describe: storepg.Describe, writer: writepg.NewWriter, diagnoseWriter: writepg.Diagnose,
			open: func(s *Source, password store.Passworder) sluicebox.Database {
				return postgres.Database{URL: s.URL.Reveal(), StreamURL: s.StreamURL.Reveal(), Heartbeat: s.HeartbeatInterval, Password: password}
			},
		},
		{
			schemes: []string{"mysql", "mariadb"}, describe: storemysql.Describe, writer: writemysql.NewWriter, diagnoseWriter: writemysql.Diagnose,
			checkURL: func(raw string) error {
				if err := checkURL(raw); err != nil {
					return err
				}
				_, err := storemysql.ParseURL(raw, "")
				return err
			},
			open: func(s *Source, password store.Passworder) sluicebox.Database {
				id := uint32(s.ServerID) //nolint:gosec // checked with the file
				return mysql.Database{URL: s.URL.Reveal(), StreamURL: s.StreamURL.Reveal(), ServerID: id, Password: password}
			},
		},
		{
			schemes: []string{"mongodb", "mongodb+srv"}, documents: true, checkURL: checkMongoURL, describe: storemongo.Describe, writer: writemongo.NewWriter, diagnoseWriter: writemongo.Diagnose,
			open: func(s *Source, _ store.Passworder) sluicebox.Database {
				return mongo.Database{URL: s.URL.Reveal(), StreamURL: s.StreamURL.Reveal()}
			},
		},
		{
			schemes: []string{"sqlite"}, file: true, describe: storesqlite.Describe, diagnoseWriter: writesqlite.Diagnose,
			writer: func(url, _ string) (outbox.Writer, error) { return writesqlite.NewWriter(url) },
			checkURL: func(raw string) error {
				_, err := storesqlite.ParseURL(raw)
				return err
			},
			open: func(s *Source, _ store.Passworder) sluicebox.Database { return sqlite.Database{URL: s.URL.Reveal()} },
		},
	}
}

// password returns what runs the command of password-command, nil without one.
func (c *Config) password() store.Passworder {
	argv := c.Settings.Source.PasswordCommand
	if len(argv) == 0 {
		return nil
	}
	return c.passwords.Command("source.password-command", argv)
}

// DatabaseURLForms lists the forms of a source's URL.
const DatabaseURLForms = "postgres://user@host:port/database, mysql://, mariadb:// or mongodb:// in the same way, or sqlite:///path/to/file.db"

// databaseType returns the kind of database of the address; false if it has none.
func (u URL) databaseType() (databaseType, bool) {
	scheme, rest, found := strings.Cut(string(u), ":")
	all := databaseTypes()
	i := slices.IndexFunc(all, func(t databaseType) bool {
		return found && slices.Contains(t.schemes, strings.ToLower(scheme)) && (t.file || strings.HasPrefix(rest, "//"))
	})
	if i < 0 {
		return databaseType{}, false
	}
	return all[i], true
}

// is reports whether the address is of the kind of database with a scheme.
func (u URL) is(scheme string) bool {
	t, _ := u.databaseType()
	return slices.Contains(t.schemes, scheme)
}

// SQLite reports whether the address is an SQLite file.
func (u URL) SQLite() bool { return u.is("sqlite") }

// Postgres reports whether the address is a PostgreSQL database.
func (u URL) Postgres() bool { return u.is("postgres") }

// MySQL reports whether the address is a MySQL or MariaDB database.
func (u URL) MySQL() bool { return u.is("mysql") }

// Mongo reports whether the address is a MongoDB database.
func (u URL) Mongo() bool { return u.is("mongodb") }

// documents reports whether the rows of the database are documents.
func (u URL) documents() bool {
	t, _ := u.databaseType()
	return t.documents
}

// database returns the database of source.url.
func (c *Config) database() (sluicebox.Database, error) {
	t, found := c.Settings.Source.URL.databaseType()
	if !found {
		scheme, _, _ := strings.Cut(c.Settings.Source.URL.Reveal(), ":")
		return nil, &store.SetupError{Problem: fmt.Sprintf("source.url: unknown scheme %q", scheme)}
	}
	return t.open(&c.Settings.Source, c.password()), nil
}

// checkDatabase never shows a server's URL, because the invalid part may be its password.
func (k *checker) checkDatabase(path string, raw URL) {
	if !k.hasNoProblem(path) {
		return
	}
	t, found := raw.databaseType()
	if !found {
		text := "is not a URL; write "
		if strings.Contains(raw.Reveal(), "://") {
			text = "must be "
		}
		k.fail(path, "%s%s", text, DatabaseURLForms)
		return
	}

	err := t.checkURL(raw.Reveal())
	var setup *store.SetupError
	switch {
	case errors.Is(err, errNotURL):
		scheme, _, _ := strings.Cut(raw.Reveal(), ":")
		k.fail(path, "is not a URL of the form %s://user:password@host:port/database; percent-encode special characters in the user name and password (@ is %%40, # is %%23, / is %%2F)", strings.ToLower(scheme))
	case errors.As(err, &setup):
		k.fail(path, "%s; %s", setup.Problem, setup.Remedy)
	case err != nil:
		k.fail(path, "%s", err)
	}
}

// errNotURL means that a text is no URL, or that a part of it may be its password.
var errNotURL = errors.New("not a URL")

// checkURL checks the form of a URL with one or several hosts.
func checkURL(raw string) error {
	plain, _ := storepg.SplitHosts(raw)
	u, err := url.Parse(plain)
	if err != nil || mayExposePassword(u) {
		return errNotURL
	}
	return nil
}

// checkMongoURL validates a URL, whose list of hosts net/url does not parse, in the MongoDB
// store, which makes no DNS query for it.
func checkMongoURL(raw string) error {
	c := storemongo.Config{URL: raw}
	var setup *store.SetupError
	if err := c.Validate(); errors.As(err, &setup) { // other problems are reported elsewhere
		return setup
	}
	return nil
}

// describeTimeout bounds the description of a table.
const describeTimeout = 30 * time.Second

// Describe describes a table, [schema.]table, of the database; see the stores' Describe. The
// error is a *store.SetupError if the table's name is invalid.
func (u URL) Describe(ctx context.Context, application, table string, wanted func(*store.TableInfo) []string) (*store.TableInfo, error) {
	t, found := u.databaseType()
	if !found {
		return nil, &store.SetupError{Problem: "the source is not a URL of a supported database", Remedy: "write " + DatabaseURLForms}
	}
	k := checker{newReport("")}
	k.checkTable("table", table, u)
	for _, p := range k.problems {
		return nil, &store.SetupError{Problem: "the table " + p.Text}
	}
	o := store.Outbox{Name: table, Table: table}
	if !t.documents { // a collection name may contain dots
		o.Schema, o.Table = splitTable(table)
	}
	if t.file {
		o.Schema = ""
	}
	ctx, cancel := context.WithTimeoutCause(ctx, describeTimeout, fmt.Errorf("no answer within %s", describeTimeout))
	defer cancel()
	info, err := t.describe(ctx, u.Reveal(), application, &o, wanted)
	if setup, ok := errors.AsType[*store.SetupError](err); ok {
		plain := *setup
		plain.Problem = strings.TrimPrefix(plain.Problem, "outbox "+table+": ")
		return nil, &plain
	}
	return info, err
}

// ValidColumn reports whether the configuration can name a column, or a field of documents.
func ValidColumn(name string, documents bool) bool {
	if documents {
		return !badField(name) && !strings.Contains(name, ".")
	}
	return !badIdentifier(name)
}
