package mysql

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"strings"

	"github.com/sluicebox/sluicebox/store"
)

// upgradeFiles holds the upgrades of the relay's tables in order: step n upgrades version
// n-1 to version n. A released step never changes. Each of its statements can be
// repeated.
//
//go:embed schema/*.sql
var upgradeFiles embed.FS

// version is the version of the relay's tables that this program needs.
const version = 1

// viewsFile creates the views for operators. It is not a step.
const viewsFile = "views"

// installTimeout is how long one installation waits for another, in seconds.
const installTimeout = 60

// Install implements store.Installer. CREATE TABLE commits implicitly, so an interrupted
// step runs again from its first statement. A second relay that installs at the same time
// waits for the first. The views are created together with the tables, if the account may
// create views.
func (s *Store) Install(ctx context.Context) error {
	err := s.control.do(ctx, func(ctx context.Context, c *conn) error {
		have, err := installed(ctx, c)
		if err == nil {
			err = c.rollback(ctx) // end the snapshot
		}
		if err != nil || have == version {
			return err
		}
		if err := install(ctx, c); err != nil {
			return explainInstall(c, have, err)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("install relay tables: %w", Explain(err))
	}

	return nil
}

// install runs the steps. The lock that excludes other installations ends with the
// session at the latest.
func install(ctx context.Context, c *conn) (err error) {
	lock := lockName(c.server.database, "\x00install")
	var got sql.NullBool
	if err := c.row(ctx, "SELECT GET_LOCK(?, ?)", []any{lock, installTimeout}, &got); err != nil {
		return err
	}

	if !got.Bool {
		return fmt.Errorf("another relay has been installing its tables for %d s", installTimeout)
	}
	defer func() {
		if _, unlocked := c.sqlConn.ExecContext(ctx, "DO RELEASE_ALL_LOCKS()"); err == nil {
			err = unlocked
		}
	}()

	if err := c.rollback(ctx); err != nil {
		return err
	}
	have, err := installed(ctx, c) // another relay may have been faster
	if err != nil {
		return err
	}

	for n := have + 1; n <= version; n++ {
		if err := c.install(ctx, stepName(n)); err != nil {
			return err
		}
		if _, err := c.sqlConn.ExecContext(ctx, "COMMIT"); err != nil {
			return err
		}
	}

	err = c.install(ctx, viewsFile)
	switch code(err) {
	case codeTableDenied, codeColumnDenied, codeDatabaseDenied:
		return nil // an account that may create no view works without them
	}
	return err
}

// install runs the statements of a file.
func (c *conn) install(ctx context.Context, name string) error {
	for _, text := range statements(name) {
		if _, err := c.sqlConn.ExecContext(ctx, text); err != nil {
			return fmt.Errorf("step %s: %w", name, err)
		}
	}
	return nil
}

// statements returns the statements of a file.
func statements(name string) (list []string) {
	for _, text := range strings.SplitAfter(readUpgrade(name), ";\n") {
		if text = strings.TrimSuffix(strings.TrimSpace(text), ";"); text != "" {
			list = append(list, text)
		}
	}
	return list
}

func stepName(n int) string { return fmt.Sprintf("%04d", n) }

func readUpgrade(name string) string {
	text, err := upgradeFiles.ReadFile("schema/" + name + ".sql")
	if err != nil {
		panic(err) // the file is part of the program
	}
	return string(text)
}

// installed returns the version of the relay's tables; 0 if there are none or one is
// missing. Tables of an unreleased version, or of a newer one than this program's, are a
// *store.SetupError.
func installed(ctx context.Context, c *conn) (int, error) {
	exists, err := hasTable(ctx, c, ownPrefix+"meta")
	if err != nil || !exists {
		return 0, err
	}

	have := 0
	err = c.row(ctx, "SELECT m.version FROM "+ownPrefix+"meta AS m", nil, &have)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil // the first step was interrupted
	}
	if err != nil || have == 0 {
		return have, err
	}

	complete := true
	for _, t := range ownTables() {
		missing, err := c.lacks(ctx, ownPrefix+t.name)
		if err != nil {
			return 0, err
		}
		if missing && t.name == "record" {
			return have, unreleased()
		}
		complete = complete && !missing
	}
	switch {
	case have > version:
		return have, &store.SetupError{
			Problem: fmt.Sprintf("relay tables have version %d, this program supports versions up to %d", have, version),
			Remedy:  "run the newer release of sluicebox that installed them",
		}
	case !complete:
		return 0, nil
	}
	return have, nil
}

// unreleased returns the error for tables with a version but without the records.
func unreleased() *store.SetupError {
	return &store.SetupError{
		Problem: "relay tables are incomplete, or of an unreleased version: there is no table " + ownPrefix + "record",
		Remedy:  "drop every table and view whose name begins with " + ownPrefix + ", then " + initHint + ": the relay then starts over",
	}
}

// lacks reports whether a table does not exist. A table that the account may not read exists.
func (c *conn) lacks(ctx context.Context, name string) (bool, error) {
	rows, err := c.sqlConn.QueryContext(ctx, "EXPLAIN SELECT 1 FROM "+Ident(name))
	if err == nil {
		err = rows.Close()
	}
	switch n := code(err); {
	case n == codeNoTable:
		return true, nil
	case n != 0:
		return false, nil
	}
	return false, err
}

// Script implements store.Installer. It returns the text of the steps that Install runs, and
// of the views. It drops nothing.
func (s *Store) Script() string {
	var text strings.Builder
	for n := 1; n <= version; n++ {
		text.WriteString(readUpgrade(stepName(n)))
		text.WriteByte('\n')
	}
	text.WriteString(readUpgrade(viewsFile))
	return text.String()
}

// explainInstall names an account that may create the tables if this one may not.
func explainInstall(c *conn, have int, err error) error {
	if n := code(err); n != codeTableDenied && n != codeColumnDenied && n != codeDatabaseDenied {
		return err
	}
	return &store.SetupError{
		Problem: fmt.Sprintf("relay tables have version %d, this program needs %d, and %s may not create them: %s", have, version, Account(c.server.account), err),
		Remedy: "run `sluicebox init` as an account that has CREATE on database " + c.server.database +
			", or run the output of `sluicebox init --print` there; then:\n" + strings.Join(grantAll(&c.server), "\n"),
	}
}

// Account quotes user@host, as CURRENT_USER() returns it, for a statement.
func Account(text string) string {
	at := strings.LastIndexByte(text, '@')
	if at < 0 {
		return "'" + literal(text) + "'"
	}
	return "'" + literal(text[:at]) + "'@'" + literal(text[at+1:]) + "'"
}

// ownTable is one of the relay's tables, with the rights that the relay needs on it.
type ownTable struct {
	name   string
	rights []string
}

func ownTables() []ownTable {
	return []ownTable{
		{"meta", []string{"SELECT"}},
		{"leader", []string{"SELECT", "INSERT", "UPDATE"}},
		{"record", []string{"SELECT", "INSERT", "UPDATE", "DELETE"}},
		{"queue", []string{"SELECT", "INSERT", "DELETE"}},
		{"replay", []string{"SELECT", "INSERT", "DELETE"}},
		{"marker", []string{"SELECT", "INSERT", "UPDATE"}},
	}
}

// grantAll returns the grants on the relay's tables.
func grantAll(s *server) []string {
	var list []string
	for _, t := range ownTables() {
		list = append(list, grant(s, t.rights, ownPrefix+t.name))
	}
	return list
}

func grant(s *server, rights []string, table string) string {
	return fmt.Sprintf("GRANT %s ON %s TO %s;", strings.Join(rights, ", "), Ident(s.database, table), Account(s.account))
}

// MayInstall reports whether the relay's tables are missing or outdated and the account
// may create tables, so that Install would fix it. It changes nothing.
func (s *Store) MayInstall(ctx context.Context) (allowed bool, err error) {
	err = s.control.do(ctx, func(ctx context.Context, c *conn) error {
		return c.tx(ctx, func() error {
			have, err := installed(ctx, c)
			if _, ok := errors.AsType[*store.SetupError](err); ok {
				return nil
			}
			if err != nil || have == version {
				return err
			}
			allowed, err = mayCreate(ctx, c)
			return err
		})
	})
	if err != nil {
		return false, fmt.Errorf("check the right to create relay tables: %w", Explain(err))
	}

	return allowed, nil
}

// probeTable is the name of a table that no release creates.
const probeTable = ownPrefix + "of_no_release"

// mayCreate reports whether the account may create the relay's tables. CREATE TABLE …
// LIKE a missing table never creates anything, and the server checks the rights first,
// including those granted by roles.
func mayCreate(ctx context.Context, c *conn) (bool, error) {
	for _, t := range ownTables() {
		_, err := c.sqlConn.ExecContext(ctx, "CREATE TABLE "+Ident(ownPrefix+t.name)+" LIKE "+Ident(probeTable))
		switch n := code(err); {
		case n == codeTableDenied && strings.Contains(err.Error(), "CREATE"), n == codeDatabaseDenied:
			return false, nil
		case n != codeNoTable && n != codeTableDenied && n != codeTableExists:
			return false, err
		}
	}

	const fill = "EXPLAIN INSERT INTO " + ownPrefix + "meta (one, version) VALUES (1, 1) ON DUPLICATE KEY UPDATE version = 1"
	rows, err := c.sqlConn.QueryContext(ctx, fill)
	if err == nil {
		err = rows.Close() // MariaDB reports the error here
	}

	if n := code(err); n == codeTableDenied || n == codeNoTable {
		return n == codeNoTable, nil
	}
	return err == nil, err
}
