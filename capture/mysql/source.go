package mysql

import (
	"context"
	"fmt"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/acked"
	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/store"
	mystore "github.com/sluicebox/sluicebox/store/mysql"
)

// Source is the binlog of one server of MySQL or MariaDB.
type Source struct {
	cfg             Config
	control         *control
	stream          *driver.Config
	resume          capture.Resume
	failures        fault.FailureCounter
	clash           serverIDClash
	mismatchedTable string // the table whose columns did not fit the last time

	server *server // what Open found; nil before
	// checkUnlogged: Open was called, and rows that the log does not show are lost. missingRowsFrom is
	// when it may be said that there may be some.
	checkUnlogged   bool
	missingRowsFrom time.Time

	acks acked.Tracker[binlogPosition]
}

var _ capture.Resumer = (*Source)(nil)

// Resume returns what has been sent so far.
func (s *Source) Resume() *capture.Resume { return &s.resume }

// Acknowledge notes that the log up to a position is no longer needed, by which
// Retained measures. Nobody is told: the server keeps its binlog by time. A
// position that was not sent since Open is ignored: it is of another log.
func (s *Source) Acknowledge(p store.Position) {
	s.acks.Acknowledge(p, parsePosition, comparePositions)
}

// resetState forgets what an earlier Open found.
func (s *Source) resetState(sv *server, from store.Position, at binlogPosition) {
	s.server = sv
	s.acks.Reset(from, at)
	s.resume.Reset(from)
}

// markTable is one of the store's own tables. It holds a row for each relay, whose
// token its source finds in the binlog.
const markTable = "sluicebox_marker"

// ownPrefix begins the names of all tables of relays.
const ownPrefix = "sluicebox_"

// Mark writes a marker into the binlog, in a transaction of its own: a row of the
// relay's is set to the token.
func (s *Source) Mark(ctx context.Context, token string) error {
	const write = "INSERT INTO " + markTable + " (name, token) VALUES (?, ?) ON DUPLICATE KEY UPDATE token = VALUES(token)"
	if _, err := s.control.db.ExecContext(ctx, write, s.cfg.Name, token); err != nil {
		return fmt.Errorf("write a marker into the binlog: %w", mystore.Explain(err))
	}
	return nil
}

// Compare orders two positions: a is before b if b stands for all that a does,
// and more.
func (s *Source) Compare(a, b store.Position) int { return comparePositions(a, b) }

// Close ends the sessions. Call it when no other call is open.
func (s *Source) Close() { s.control.close() }

// database is the one that the URL names.
func (s *Source) database() string { return s.control.config.DBName }

// schemaOf is where an outbox's table is.
func (s *Source) schemaOf(o *store.Outbox) string {
	if o.Schema != "" {
		return o.Schema
	}
	return s.database()
}
