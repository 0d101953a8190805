package sqlite

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
	sqlitestore "github.com/sluicebox/sluicebox/store/sqlite"
)

// Source is the log of one relay in a SQLite file.
type Source struct {
	cfg          Config
	path         string
	writeSession session
	readSession  session // apart, so that no look waits for a write that waits for its lock
	resume       capture.Resume
	log          string // which log Open found; "" before

	offered   atomic.Int64  // highest position that the receiver was offered since Open
	acked     atomic.Int64  // highest acknowledged position
	ackSignal chan struct{} // holds a signal after an acknowledgement
}

var _ capture.Resumer = (*Source)(nil)

// Resume returns what has been sent so far.
func (s *Source) Resume() *capture.Resume { return &s.resume }

// Acknowledge gives the log up to a position away. A run deletes it within
// moments. A position that was not sent since Open is ignored: it is of another
// log.
func (s *Source) Acknowledge(p store.Position) {
	n, err := parsePosition(p)
	if err != nil || n > s.offered.Load() {
		return
	}
	for {
		old := s.acked.Load()
		if n <= old {
			return
		}
		if s.acked.CompareAndSwap(old, n) {
			break
		}
	}
	select {
	case s.ackSignal <- struct{}{}:
	default:
	}
}

// Mark writes a marker into the log, in a transaction of its own.
func (s *Source) Mark(ctx context.Context, token string) error {
	insert := "INSERT INTO " + s.logTable() + " (outbox, id, at) VALUES ('', ?, 0)"
	err := s.writeSession.write(ctx, func(ctx context.Context, conn *sqlitestore.Conn) error {
		_, err := conn.Exec(ctx, insert, token)
		return err
	})
	if err != nil {
		return fmt.Errorf("write a marker into the log: %w", sqlitestore.Explain(err))
	}
	return nil
}

// Compare orders two numbers of the log.
func (s *Source) Compare(a, b store.Position) int {
	return capture.ComparePositions(a, b, parsePosition)
}

// Close ends the connections. Call it when no other call is open.
func (s *Source) Close() {
	s.writeSession.close()
	s.readSession.close()
}

// logTable returns the name of the log's table, quoted.
func (s *Source) logTable() string { return sqlitestore.Ident(sqlitestore.LogTable(s.cfg.Name)) }

// parsePosition reads a number of the log. "" is before everything.
func parsePosition(p store.Position) (int64, error) {
	if p == "" {
		return -1, nil
	}
	n, err := strconv.ParseInt(string(p), 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is not a position of SQLite's log, such as 4711", p)
	}
	return n, nil
}

func formatPosition(n int64) store.Position { return store.Position(strconv.FormatInt(n, 10)) }

// session is one connection that is opened when it is needed and kept. Its
// transactions run one at a time.
type session struct {
	path string
	sem  chan struct{} // holds one token
	conn *sqlitestore.Conn
}

func newSession(path string) session {
	ses := session{path: path, sem: make(chan struct{}, 1)}
	ses.sem <- struct{}{}
	return ses
}

// write runs fn in a transaction. A power failure may take it back: what is
// written here is asked for or deleted again.
func (ses *session) write(ctx context.Context, fn func(context.Context, *sqlitestore.Conn) error) error {
	return ses.do(ctx, func(conn *sqlitestore.Conn) error {
		return conn.Write(ctx, sqlitestore.Normal, func(ctx context.Context) error { return fn(ctx, conn) })
	})
}

// do calls fn with the connection.
func (ses *session) do(ctx context.Context, fn func(*sqlitestore.Conn) error) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-ses.sem:
	}
	defer func() { ses.sem <- struct{}{} }()
	if ses.conn != nil && ses.conn.Replaced() != nil {
		ses.drop()
	}
	if ses.conn == nil {
		conn, err := sqlitestore.Dial(ctx, ses.path)
		if err != nil {
			return err
		}
		ses.conn = conn
	}
	err := fn(ses.conn)
	if err != nil && !sqlitestore.IsLocked(err) {
		ses.drop()
	}
	return err
}

// close ends the connection once the transaction that uses it has ended.
func (ses *session) close() {
	<-ses.sem
	defer func() { ses.sem <- struct{}{} }()
	ses.drop()
}

func (ses *session) drop() {
	if ses.conn != nil {
		ses.conn.Close()
		ses.conn = nil
	}
}
