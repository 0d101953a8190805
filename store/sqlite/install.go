package sqlite

import (
	"context"
	"database/sql/driver"
	"embed"
	"errors"
	"fmt"
	"strings"

	"github.com/sluicebox/sluicebox/store"
)

// upgradeFiles are the upgrade steps of the relay's tables, in order. Step n upgrades
// version n-1 to version n. A released step never changes.
//
//go:embed schema/*.sql
var upgradeFiles embed.FS

// version is the version of the relay's tables that this program requires.
const version = 1

// initHint is the remedy that creates the relay's tables.
const initHint = "run `sluicebox init`"

// Install implements store.Installer. All steps run in one transaction; a second relay that
// installs at the same time waits for it.
func (s *Store) Install(ctx context.Context) error {
	err := s.writer.do(ctx, func(ctx context.Context) error {
		conn := s.writer.conn
		var have int
		err := conn.Read(ctx, func(ctx context.Context) (err error) {
			have, err = installed(ctx, conn)
			return err
		})
		if err != nil || have == version {
			return err
		}
		return conn.Write(ctx, Full, func(ctx context.Context) error {
			have, err := installed(ctx, conn) // another relay may have installed meanwhile
			if err != nil {
				return err
			}
			for n := have + 1; n <= version; n++ {
				text, err := readUpgrade(n)
				if err != nil {
					return err
				}
				if err := conn.Script(ctx, text); err != nil {
					return fmt.Errorf("step %d: %w", n, err)
				}
			}
			return nil
		})
	})
	if err != nil {
		return fmt.Errorf("install relay tables: %w", Explain(err))
	}
	return nil
}

// MayInstall reports whether the relay's tables are missing or outdated and Install would create
// them. It takes the write lock briefly, as Diagnose does, and changes nothing.
func (s *Store) MayInstall(ctx context.Context) (may bool, err error) {
	conn, err := DialAsIs(ctx, s.path)
	if err == nil {
		defer conn.Close()
		err = conn.Write(ctx, Normal, func(ctx context.Context) error {
			have, err := installed(ctx, conn)
			may = err == nil && have < version
			return err
		})
	}
	if _, ok := errors.AsType[*store.SetupError](Explain(err)); ok {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("check whether the relay tables may be created: %w", Explain(err))
	}
	return may, nil
}

// installed returns the version of the relay's tables, 0 if there are none. A version newer
// than this program is a *store.SetupError.
func installed(ctx context.Context, conn *Conn) (int, error) {
	exists, err := hasTable(ctx, conn, "sluicebox_meta")
	if err != nil || !exists {
		return 0, err
	}
	have := 0
	err = conn.Query(ctx, "SELECT version FROM sluicebox_meta", nil, func(row []driver.Value) error {
		n, _ := row[0].(int64)
		have = int(n)
		return nil
	})
	if err != nil || have == 0 {
		return have, err
	}
	if exists, err = hasTable(ctx, conn, "sluicebox_record"); err == nil && !exists {
		return have, &store.SetupError{
			Problem: "relay tables are incomplete, or of an unreleased version: there is no table sluicebox_record",
			Remedy:  "drop every table and view whose name begins with sluicebox_, then " + initHint + ": the relay then starts over",
		}
	}
	if err == nil && have > version {
		err = &store.SetupError{
			Problem: fmt.Sprintf("relay tables have version %d, this program supports versions up to %d", have, version),
			Remedy:  "run the newer release of sluicebox that installed them",
		}
	}
	return have, err
}

// hasTable reports whether one of the relay's tables exists.
func hasTable(ctx context.Context, conn *Conn, name string) (exists bool, err error) {
	err = conn.Query(ctx, "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?", []any{name},
		func([]driver.Value) error { exists = true; return nil })
	return exists, err
}

func readUpgrade(n int) (string, error) {
	text, err := upgradeFiles.ReadFile(fmt.Sprintf("schema/%04d.sql", n))
	return string(text), err
}

// Script implements store.Installer. It returns the steps that Install runs, as one
// transaction for the sqlite3 shell.
func (s *Store) Script() string {
	var sb strings.Builder
	sb.WriteString("PRAGMA journal_mode = WAL;\nBEGIN IMMEDIATE;\n\n")
	for n := 1; n <= version; n++ {
		text, err := readUpgrade(n)
		if err != nil {
			panic(err) // the file is embedded in the program
		}
		sb.WriteString(text)
		sb.WriteByte('\n')
	}
	sb.WriteString("COMMIT;\n")
	return sb.String()
}
