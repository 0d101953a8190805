package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"

	"github.com/sluicebox/sluicebox/store"
	sqlitestore "github.com/sluicebox/sluicebox/store/sqlite"
)

// registrySQL creates the table that identifies the logs. given is the highest number whose
// row was deleted after an acknowledgement.
const registrySQL = `CREATE TABLE IF NOT EXISTS sluicebox_log (
  name  TEXT NOT NULL PRIMARY KEY,
  id    TEXT NOT NULL,
  given INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID`

// registerSQL gives the log a new id.
const registerSQL = `INSERT INTO sluicebox_log (name, id) VALUES (%s, lower(hex(randomblob(16))))
ON CONFLICT (name) DO UPDATE SET id = excluded.id, given = 0`

// logSQL creates the log table. A row without an outbox is a marker, and its id is the
// token. The column id has no type, so it keeps the id in the type of the outbox.
func (s *Source) logSQL() string {
	return "CREATE TABLE " + s.logTable() + ` (
  seq    INTEGER PRIMARY KEY AUTOINCREMENT,
  outbox TEXT NOT NULL,
  id,
  at     INTEGER NOT NULL
)`
}

// triggerPrefix is the trigger name without the outbox. A relay's name cannot contain the
// hyphen, so triggers of two relays never share a name.
func (s *Source) triggerPrefix() string { return sqlitestore.LogTable(s.cfg.Name) + "-" }

// nowMillis is the time in milliseconds since 1970-01-01, whose Julian day is 2440587.5. It runs
// in the SQLite library of the services, of any version: unixepoch would need 3.38.
const nowMillis = "CAST((julianday('now') - 2440587.5) * 86400000 + 0.5 AS INTEGER)"

// triggerSQL creates the trigger of an outbox, in the form in which SQLite stores the text.
func (s *Source) triggerSQL(o *store.Outbox) string {
	return "CREATE TRIGGER " + sqlitestore.Ident(s.triggerPrefix()+o.Name) +
		" AFTER INSERT ON " + sqlitestore.TableName(o) + " BEGIN\n" +
		"  INSERT INTO " + s.logTable() + " (outbox, id, at) VALUES (" + literal(o.Name) + ", NEW." +
		sqlitestore.Ident(o.Layout.Columns.ID) + ", " + nowMillis + ");\nEND"
}

// literal quotes a text for a statement that takes no parameters.
func literal(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }

// Script returns the statements that Publish runs on a file without any of the objects.
func (s *Source) Script() string {
	var sb strings.Builder
	sb.WriteString("BEGIN IMMEDIATE;\n\n" + registrySQL + ";\n" + fmt.Sprintf(registerSQL, literal(s.cfg.Name)) + ";\n\n" + s.logSQL() + ";\n")
	for i := range s.cfg.Outboxes {
		sb.WriteString("\n" + s.triggerSQL(&s.cfg.Outboxes[i]) + ";\n")
	}
	sb.WriteString("\nCOMMIT;\n")
	return sb.String()
}

// Publish creates the log and its triggers, or completes them. Rows inserted earlier are not
// in the log; the next Open detects that.
func (s *Source) Publish(ctx context.Context) error {
	conn, err := sqlitestore.Dial(ctx, s.path)
	if err != nil {
		return err
	}
	defer conn.Close()
	st, err := s.readLogState(ctx, conn)
	if err == nil && st.incomplete() {
		_, err = s.completeLog(ctx, conn)
	}
	return err
}

// logState is the state of the log in the file.
type logState struct {
	id      string // id of the log, "" if it is not registered
	trimmed int64
	counter int64 // the highest number ever assigned
	table   bool
	// missing are triggers to create, stale are triggers to drop, by name.
	missing    map[string]string
	stale      []string
	lossReason string // reason why the log may lack rows, "" if it lacks none
}

// incomplete reports whether there is an object to create or to drop.
func (st *logState) incomplete() bool { return st.lossReason != "" || len(st.stale) > 0 }

// readLogState checks the tables and reads the state of the log.
func (s *Source) readLogState(ctx context.Context, conn *sqlitestore.Conn) (st logState, err error) {
	err = conn.Read(ctx, func(ctx context.Context) error {
		for i := range s.cfg.Outboxes {
			if err := sqlitestore.CheckTable(ctx, conn, &s.cfg.Outboxes[i]); err != nil {
				return err
			}
		}
		st, err = s.inspectLog(ctx, conn)
		return err
	})
	return st, wrapInstallError(err)
}

// completeLog creates the missing objects and drops the stale ones, in one transaction. It
// returns the new state of the log.
func (s *Source) completeLog(ctx context.Context, conn *sqlitestore.Conn) (st logState, err error) {
	err = conn.Write(ctx, sqlitestore.Full, func(ctx context.Context) error {
		was, err := s.inspectLog(ctx, conn)
		if err != nil {
			return err
		}
		if err := s.fixLog(ctx, conn, &was); err != nil {
			return err
		}
		st, err = s.inspectLog(ctx, conn)
		return err
	})
	return st, wrapInstallError(err)
}

func wrapInstallError(err error) error {
	if err != nil {
		return fmt.Errorf("install log and triggers: %w", sqlitestore.Explain(err))
	}
	return nil
}

// inspectLog reads the state of the log and its triggers.
func (s *Source) inspectLog(ctx context.Context, conn *sqlitestore.Conn) (logState, error) {
	st := logState{missing: map[string]string{}}
	registry := false
	err := conn.Query(ctx, "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'sluicebox_log'", nil,
		func([]driver.Value) error { registry = true; return nil })
	if err == nil && registry {
		err = conn.Query(ctx, "SELECT id, given FROM sluicebox_log WHERE name = ?", []any{s.cfg.Name}, func(row []driver.Value) error {
			st.id, _ = row[0].(string)
			st.trimmed, _ = row[1].(int64)
			return nil
		})
	}
	if err != nil {
		return st, err
	}
	if st.counter, st.table, err = sqlitestore.LogCounter(ctx, conn, s.cfg.Name); err != nil {
		return st, err
	}

	switch {
	case st.id == "" && !st.table:
		st.lossReason = "log did not exist yet"
	case st.id == "" || !st.table:
		st.lossReason = "log was dropped"
	}
	return st, s.inspectTriggers(ctx, conn, &st)
}

func (s *Source) inspectTriggers(ctx context.Context, conn *sqlitestore.Conn, st *logState) error {
	prefix := s.triggerPrefix()
	existing := map[string]string{}
	err := conn.Query(ctx, "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND substr(name, 1, ?) = ?", []any{len(prefix), prefix},
		func(row []driver.Value) error {
			name, _ := row[0].(string)
			existing[name], _ = row[1].(string)
			return nil
		})
	if err != nil {
		return err
	}

	for i := range s.cfg.Outboxes {
		o := &s.cfg.Outboxes[i]
		name, want := prefix+o.Name, s.triggerSQL(o)
		text, exists := existing[name]
		delete(existing, name)
		if text == want {
			continue
		}
		st.missing[name] = want
		if exists {
			st.stale = append(st.stale, name)
		}
		if st.lossReason == "" {
			st.lossReason = fmt.Sprintf("trigger of outbox %s on %s did not exist: the table was recreated, or is new to the relay", o.Name, o.Table)
		}
	}

	for name := range existing { // of outboxes that are no longer configured
		st.stale = append(st.stale, name)
	}
	return nil
}

// fixLog creates the objects that inspectLog found missing.
func (s *Source) fixLog(ctx context.Context, conn *sqlitestore.Conn, st *logState) error {
	var script []string
	for _, name := range st.stale {
		script = append(script, "DROP TRIGGER "+sqlitestore.Ident(name))
	}
	if st.lossReason != "" {
		script = append(script, registrySQL, fmt.Sprintf(registerSQL, literal(s.cfg.Name)))
	}
	if !st.table {
		script = append(script, s.logSQL())
	}

	for _, sql := range st.missing {
		script = append(script, sql)
	}
	for _, sql := range script {
		if err := conn.Script(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// Diagnose checks the log and its triggers without changing anything. A missing log or
// trigger is not a fault, because the relay creates it and reads earlier inserts from the
// tables. An error means that the log could not be checked. Diagnose leaves out the problems
// that the store's Diagnose reports.
func (s *Source) Diagnose(ctx context.Context) ([]store.Finding, error) {
	conn, err := sqlitestore.DialAsIs(ctx, s.path)
	var st logState
	if err == nil {
		defer conn.Close()
		st, err = s.readLogState(ctx, conn)
	}

	finding := store.Finding{Grade: store.GradeOK, Subject: "log"}
	var setup *store.SetupError
	switch {
	case errors.As(err, &setup):
		return nil, nil // the store reports it
	case err != nil:
		return nil, err
	case st.id == "":
		finding.Text = "log does not exist yet; `sluicebox init` or the relay creates it"
	case st.incomplete():
		finding.Text = fmt.Sprintf("log is incomplete; the relay will complete it and take a snapshot of the tables: %s", st.lossReason)
	default:
		finding.Text = "log exists, with a trigger on each outbox"
	}
	return []store.Finding{finding}, nil
}
