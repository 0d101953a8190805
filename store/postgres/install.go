package postgres

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicebox/sluicebox/store"
)

// upgradeFiles are the upgrades of the relay's tables, in order: step n brings version
// n-1 to version n. A released step never changes.
//
//go:embed schema/*.sql
var upgradeFiles embed.FS

// version is the version of the relay's tables that this program requires.
const version = 1

// installLock is the advisory lock that serializes installations: "sluicebx" in ASCII.
const installLock = 0x736c756963656278

// Install implements store.Installer. All steps are one transaction; a concurrent
// installation waits for it.
func (s *Store) Install(ctx context.Context) error {
	err := s.control.do(ctx, func(ctx context.Context, sess *session) error {
		have, err := installed(ctx, sess.conn)
		if lacksRight(err) {
			return nil // the tables exist, and Check reports the missing right
		}
		if err != nil || have == version {
			return err
		}
		if err := install(ctx, sess.conn); err != nil {
			return explainInstall(ctx, sess.conn, have, err)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("install relay tables: %w", Explain(err))
	}
	return nil
}

func install(ctx context.Context, conn *pgx.Conn) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_catalog.pg_advisory_xact_lock($1)", int64(installLock)); err != nil {
			return err
		}

		have, err := installed(ctx, tx) // another relay may have installed them meanwhile
		if err != nil {
			return err
		}

		for n := have + 1; n <= version; n++ {
			text, err := readUpgrade(n)
			if err != nil {
				return err
			}
			// A script of several statements needs the simple protocol.
			if _, err := conn.PgConn().Exec(ctx, text).ReadAll(); err != nil {
				return fmt.Errorf("step %d: %w", n, err)
			}
		}

		return nil
	})
}

// querier is implemented by connections and transactions.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// installed returns the version of the relay's tables, 0 if there are none. A version
// that is newer than this program's, or was never released, is a *store.SetupError.
func installed(ctx context.Context, conn querier) (int, error) {
	const find = `
SELECT coalesce(bool_or(c.relname = 'meta'), false), coalesce(bool_or(c.relname = 'record'), false)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'sluicebox'`

	var exists, hasRecords bool
	if err := conn.QueryRow(ctx, find).Scan(&exists, &hasRecords); err != nil || !exists {
		return 0, err
	}

	var have int
	if err := conn.QueryRow(ctx, "SELECT coalesce(max(version), 0) FROM sluicebox.meta").Scan(&have); err != nil || have == 0 {
		return 0, err
	}
	if !hasRecords {
		return have, &store.SetupError{
			Problem: "relay tables are incomplete, or of an unreleased version: there is no table sluicebox.record",
			Remedy:  "run DROP SCHEMA sluicebox CASCADE, then run `sluicebox init`: the relay then starts over",
		}
	}
	if have > version {
		return have, &store.SetupError{
			Problem: fmt.Sprintf("relay tables have version %d; this program supports versions up to %d", have, version),
			Remedy:  "run the newer release of sluicebox that created them",
		}
	}
	return have, nil
}

// lacksRight reports whether the server refused a statement because the role lacks a
// privilege.
func lacksRight(err error) bool {
	return code(err) == "42501" // insufficient_privilege
}

func readUpgrade(n int) (string, error) {
	text, err := upgradeFiles.ReadFile(fmt.Sprintf("schema/%04d.sql", n))
	return string(text), err
}

// Script implements store.Installer. It returns the steps that Install runs, as one
// transaction.
func (s *Store) Script() string { return script(0) }

// script returns the steps that follow version have.
func script(have int) string {
	var sb strings.Builder
	sb.WriteString("BEGIN;\n\n")
	for n := have + 1; n <= version; n++ {
		text, err := readUpgrade(n)
		if err != nil {
			panic(err) // the file is embedded
		}
		sb.WriteString(text)
		sb.WriteByte('\n')
	}
	sb.WriteString("COMMIT;\n")
	return sb.String()
}

// roleName returns the quoted name of a session's role, for statements in error texts.
func roleName(ctx context.Context, conn *pgx.Conn) string {
	var name string
	if err := conn.QueryRow(ctx, "SELECT current_user").Scan(&name); err != nil {
		return "the relay's role"
	}
	return Ident(name)
}

// explainInstall names who may create or upgrade the relay's tables, if the role may not.
func explainInstall(ctx context.Context, conn *pgx.Conn, have int, err error) error {
	if !lacksRight(err) {
		return err
	}

	var pg *pgconn.PgError
	errors.As(err, &pg)
	role := roleName(ctx, conn)
	if have > 0 {
		return &store.SetupError{
			Problem: fmt.Sprintf("relay tables have version %d, this program needs %d, and %s may not change them: %s",
				have, version, role, pg.Message),
			Remedy: "run `sluicebox init` as the role that owns the schema sluicebox and its tables, or run as that role:\n" +
				script(have) + "then:\n" + strings.Join(grantAll(role), "\n"),
		}
	}
	return &store.SetupError{
		Problem: fmt.Sprintf("%s may not create the relay tables: %s", role, pg.Message),
		Remedy: "run `sluicebox init` as a role that may create the schema sluicebox, or run the output of `sluicebox init --print` as that role; then:\n" +
			strings.Join(grantAll(role), "\n"),
	}
}

// grantAll lists the grants on the relay's tables.
func grantAll(role string) []string {
	list := []string{"GRANT USAGE ON SCHEMA sluicebox TO " + role + ";"}
	for _, t := range ownTables() {
		list = append(list, "GRANT "+strings.Join(t.rights, ", ")+" ON sluicebox."+t.name+" TO "+role+";")
	}
	return list
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
	}
}

// explainOwn explains the error of a statement on the relay's tables.
func explainOwn(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return Explain(err)
	}
	if (pg.Code == "42P01" || pg.Code == "3F000") && strings.Contains(pg.Message, "sluicebox") { // undefined_table, invalid_schema_name
		return &store.SetupError{Problem: "relay tables are missing or of another version: " + pg.Message, Remedy: "run `sluicebox init`"}
	}
	return Explain(err)
}

// MayInstall reports whether the relay's tables are missing or outdated and Install would
// fix that: the role may create them, or owns the existing ones. It changes nothing.
func (s *Store) MayInstall(ctx context.Context) (may bool, err error) {
	const allowed = `
SELECT coalesce(
  (SELECT pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND pg_catalog.has_schema_privilege(n.oid, 'CREATE') AND NOT EXISTS (
      SELECT FROM pg_catalog.pg_class c WHERE c.relnamespace = n.oid AND c.relkind = 'r' AND NOT pg_catalog.pg_has_role(c.relowner, 'USAGE'))
    FROM pg_catalog.pg_namespace n WHERE n.nspname = 'sluicebox'),
  pg_catalog.has_database_privilege(current_database(), 'CREATE'))`

	const countTables = `
SELECT count(*) FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'sluicebox' AND c.relname = ANY ($1::text[])`

	var names []string
	for _, t := range ownTables() {
		names = append(names, t.name)
	}

	err = s.control.do(ctx, func(ctx context.Context, sess *session) error {
		if err := sess.conn.QueryRow(ctx, allowed).Scan(&may); err != nil || !may {
			return err
		}

		have, err := installed(ctx, sess.conn)
		if _, ok := errors.AsType[*store.SetupError](err); ok {
			may = false
			return nil
		}

		var tables int
		if err == nil {
			err = sess.conn.QueryRow(ctx, countTables, names).Scan(&tables)
		}

		may = have > 0 && have < version || have == 0 && tables == 0
		return err
	})
	if err != nil {
		return false, fmt.Errorf("check whether the relay tables may be created: %w", Explain(err))
	}
	return may, nil
}
