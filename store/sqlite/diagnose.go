package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
	"github.com/sluicebox/sluicebox/store/internal/finding"
	"github.com/sluicebox/sluicebox/store/internal/sessions"
)

// Diagnose implements store.Diagnoser, on its own connection. It takes the write lock
// briefly, to check that it may write, and writes nothing.
func (s *Store) Diagnose(ctx context.Context) ([]store.Finding, error) {
	if !s.lifetime.Begin() {
		return nil, sessions.ErrClosed
	}
	defer s.lifetime.Done()
	ctx, cancel := s.lifetime.Bind(ctx)
	defer cancel()
	file := checker{List: finding.List{Subject: "file"}}
	found, err := s.diagnose(ctx, &file)
	found = append(file.Findings, found...)
	if setup, ok := errors.AsType[*store.SetupError](Explain(err)); ok {
		file.Findings = nil
		file.AddSetupError(setup)
		return append(found, file.Findings...), nil
	}
	if err != nil {
		return found, fmt.Errorf("diagnose database: %w", err)
	}
	return found, nil
}

func (s *Store) diagnose(ctx context.Context, file *checker) ([]store.Finding, error) {
	conn, err := DialAsIs(ctx, s.path)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	mode := ""
	err = retry(ctx, lockTimeout, func() error {
		return conn.execOnce(ctx, "PRAGMA journal_mode", func(row []driver.Value) error { mode, _ = textOf(row[0]); return nil })
	})
	if err != nil {
		return nil, err
	}
	if mode == "wal" {
		file.Add(store.GradeOK, conn.Path()+" is in WAL mode", "")
	} else {
		file.Add(store.GradeAdvice, fmt.Sprintf("%s is in journal mode %s; the relay changes it to WAL once no other program uses the file", conn.Path(), mode), "PRAGMA journal_mode=WAL;")
	}

	c, err := s.checkOn(ctx, conn, true)
	return c.Findings, err
}

// unsettledIndex checks that an index finds the unsettled rows.
func (c *checker) unsettledIndex(ctx context.Context, t *table) error {
	if t.Layout.State == store.StateNone {
		return nil
	}
	serves, err := c.planSearches(ctx, t)
	if err != nil {
		return err
	}
	if serves {
		c.Add(store.GradeOK, "an index finds unsettled rows", "")
		return nil
	}
	c.Add(store.GradeAdvice, fmt.Sprintf("no index of %s finds unsettled rows: sweeps and the first start read the whole table", TableName(t.Outbox)), t.stateIndex())
	return nil
}

// planSearches asks the query planner whether it searches an index for the rows. A scan
// would read all of it.
func (c *checker) planSearches(ctx context.Context, t *table) (bool, error) {
	b := &builder{}
	sql := "EXPLAIN QUERY PLAN SELECT 1 FROM " + TableName(t.Outbox) + " WHERE " + t.state(b).Unsettled()
	q := query{sql, b.params}
	serves := false
	err := c.conn.Query(ctx, q.sql, q.args(nil), func(row []driver.Value) error {
		detail, _ := textOf(row[3])
		serves = serves || strings.HasPrefix(detail, "SEARCH ")
		return nil
	})
	return serves, err
}

// stateIndex returns the statement that creates an index on the state. A partial index does
// not serve, because the relay binds the status words as parameters and SQLite cannot match
// its predicate against parameters.
func (t *table) stateIndex() string {
	l := &t.Layout
	var indexed []string
	for _, name := range slices.Concat(columns.StateColumns(l), l.OrderBy, []string{l.Columns.ID}) {
		indexed = append(indexed, Ident(name))
	}
	return fmt.Sprintf("CREATE INDEX %s ON %s (%s);", Ident(t.Table+"_unsettled"), TableName(t.Outbox), strings.Join(indexed, ", "))
}
