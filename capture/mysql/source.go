package mysql

import (
	"context"
	"fmt"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/capture/internal/logsource"
	"github.com/sluicebox/sluicebox/store"
	mystore "github.com/sluicebox/sluicebox/store/mysql"
)

// Source is the binlog of one MySQL or MariaDB server.
type Source struct {
	cfg             Config
	control         *control
	stream          *driver.Config
	resume          capture.Resume
	failures        fault.FailureCounter
	clash           serverIDClash
	mismatchedTable string // table whose columns did not match the last time

	server *server // found by Open; nil before
	// checkUnlogged is set by Open: rows that were written but not logged count as lost.
	// missingRowsFrom is the earliest time to report that rows may be missing.
	checkUnlogged   bool
	missingRowsFrom time.Time
	watching        bool      // set by Watch
	since           time.Time // set by ReadRange: earlier rows are left out

	acks logsource.Acks[binlogPosition]
}

var _ capture.Resumer = (*Source)(nil)

// Resume returns the progress of what has been sent.
func (s *Source) Resume() *capture.Resume { return &s.resume }

// Acknowledge records that the log up to a position is no longer needed, for Retained. It
// sends nothing to the server, which keeps its binlog by time. It ignores a position that
// was not sent since Open, because that one belongs to another log.
func (s *Source) Acknowledge(p store.Position) {
	s.acks.Acknowledge(p, parsePosition, comparePositions)
}

// resetState discards the state of an earlier Open.
func (s *Source) resetState(sv *server, from store.Position, at binlogPosition) {
	s.server = sv
	s.acks.Reset(from, at)
	s.resume.Reset(from)
}

// markTable is one of the store's tables. It holds one row per relay, and the source
// finds the row's token in the binlog.
const markTable = "sluicebox_marker"

// ownPrefix is the prefix of all tables of relays.
const ownPrefix = "sluicebox_"

// Mark writes a marker into the binlog by setting the relay's row to the token, in a
// transaction of its own.
func (s *Source) Mark(ctx context.Context, token string) error {
	const write = "INSERT INTO " + markTable + " (name, token) VALUES (?, ?) ON DUPLICATE KEY UPDATE token = VALUES(token)"
	if _, err := s.control.db.ExecContext(ctx, write, s.cfg.Name, token); err != nil {
		return fmt.Errorf("write marker: %w", mystore.Explain(err))
	}
	return nil
}

// Compare orders two positions: a is before b if b contains everything in a, and more.
func (s *Source) Compare(a, b store.Position) int { return comparePositions(a, b) }

// Close ends the sessions. Call it after all other calls have returned.
func (s *Source) Close() { s.control.close() }

// database returns the database of the URL.
func (s *Source) database() string { return s.control.config.DBName }

// schemaOf returns the database of an outbox's table.
func (s *Source) schemaOf(o *store.Outbox) string {
	if o.Schema != "" {
		return o.Schema
	}
	return s.database()
}

// Publish does nothing, because the binlog contains every table, and the store creates
// the table of markers.
func (s *Source) Publish(context.Context) error { return nil }

// Script returns no statements for the same reason.
func (s *Source) Script() string { return "" }
