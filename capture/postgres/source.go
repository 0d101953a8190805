package postgres

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/capture/internal/logsource"
	"github.com/sluicebox/sluicebox/store"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
)

// Source reads the WAL of one PostgreSQL database through a slot.
type Source struct {
	cfg     Config
	control *control
	slots   slots
	resume  capture.Resume

	// Set by Open.
	system           pglogrepl.IdentifySystemResult
	origin           string // originOf the log, and its published tables
	publicationState string // see readPublicationState
	server           *server
	watched          []*watchedTable // set by Watch
	confirmed        pglogrepl.LSN   // the slot's position
	repl             *pgconn.PgConn

	failures     fault.FailureCounter
	refusedSince time.Time // start of the current series of refused streams

	acks logsource.Acks[pglogrepl.LSN]
	wake waker
}

var _ capture.Resumer = (*Source)(nil)

// Resume returns the progress so far.
func (s *Source) Resume() *capture.Resume { return &s.resume }

// Acknowledge lets the server discard the WAL up to a position. The server receives it
// within 100 ms. A position that was not sent since Open is ignored, because it belongs
// to another log.
func (s *Source) Acknowledge(p store.Position) {
	if s.acks.Acknowledge(p, parseLSN, s.Compare) {
		s.wake.interrupt()
	}
}

// acked returns the acknowledged LSN, 0 before the first acknowledgement since Open.
func (s *Source) acked() pglogrepl.LSN {
	if last := s.acks.Last(); last != nil {
		return last.Parsed
	}
	return 0
}

// resetState discards the acknowledgements and the progress of an earlier Open.
func (s *Source) resetState(from store.Position) {
	s.acks.Reset("", 0) // the slot's position is older than from
	s.acks.Offer(from)
	s.resume.Reset(from)
}

// waker interrupts the read of a run.
type waker struct {
	mu   sync.Mutex
	conn net.Conn // of the run; nil between runs
}

// interrupt makes the read return at once.
func (w *waker) interrupt() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn != nil {
		_ = w.conn.SetReadDeadline(time.Unix(1, 0)) // fails only on a closed connection
	}
}

func (w *waker) set(conn net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conn = conn
}

// Mark writes a marker into the WAL, in a transaction of its own.
func (s *Source) Mark(ctx context.Context, token string) error {
	if err := s.control.exec(ctx, "SELECT pg_logical_emit_message(true, $1, $2::text)", s.cfg.Name+markSuffix, token); err != nil {
		return fmt.Errorf("write marker into WAL: %w", pgstore.Explain(err))
	}
	return nil
}

// Compare orders two LSNs.
func (s *Source) Compare(a, b store.Position) int {
	return capture.ComparePositions(a, b, parseLSN)
}

// Distance implements capture.Distance.
func (s *Source) Distance(from, to store.Position) (bytes int64, known bool) {
	a, errA := parseLSN(from)
	b, errB := parseLSN(to)
	if from == "" || errA != nil || errB != nil {
		return 0, false
	}
	return int64(max(a, b) - a), true
}

// Close ends the sessions. Call it after all other calls have returned.
func (s *Source) Close() {
	s.closeStream()
	s.control.close()
}

// closeStream closes the replication session that Open left.
func (s *Source) closeStream() {
	closeSession(s.repl)
	s.repl = nil
}

// originOf identifies the WAL of a server, a timeline and a database.
func originOf(id pglogrepl.IdentifySystemResult) string {
	return fmt.Sprintf("%s/%d/%s", id.SystemID, id.Timeline, id.DBName)
}

// parseLSN parses an LSN: two hexadecimal numbers of up to 8 digits, separated by a
// slash. "" is 0, which is before everything.
func parseLSN(p store.Position) (pglogrepl.LSN, error) {
	if p == "" {
		return 0, nil
	}
	high, low, ok := strings.Cut(string(p), "/")
	h, errH := strconv.ParseUint(high, 16, 32)
	l, errL := strconv.ParseUint(low, 16, 32)
	if !ok || errH != nil || errL != nil {
		return 0, fmt.Errorf("%q is not a position of PostgreSQL, such as 16/B374D848", p)
	}
	return pglogrepl.LSN(h<<32 | l), nil
}
