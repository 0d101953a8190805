package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"strconv"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/logsource"
	"github.com/sluicebox/sluicebox/store"
	sqlitestore "github.com/sluicebox/sluicebox/store/sqlite"
)

// Source reads the log of one relay in a SQLite file.
type Source struct {
	cfg          Config
	path         string
	writeSession session
	readSession  session // separate, so that a read never waits for a write that waits for its lock
	resume       capture.Resume
	log          string // id of the log that Open found; "" before

	acks      logsource.Acks[int64]
	ackSignal chan struct{} // holds a signal after an acknowledgement
}

var _ capture.Resumer = (*Source)(nil)

// Resume returns the state of the batches sent so far.
func (s *Source) Resume() *capture.Resume { return &s.resume }

// Acknowledge lets a run delete the log up to a position. It ignores a position that was not
// sent since Open, because it belongs to another log.
func (s *Source) Acknowledge(p store.Position) {
	if s.acks.Acknowledge(p, parsePosition, s.Compare) {
		s.requestTrim()
	}
}

// acked returns the acknowledged number, 0 before the first acknowledgement since Open.
func (s *Source) acked() int64 {
	if last := s.acks.Last(); last != nil {
		return last.Parsed
	}
	return 0
}

// Mark writes a marker into the log, in its own transaction.
func (s *Source) Mark(ctx context.Context, token string) error {
	insert := "INSERT INTO " + s.logTable() + " (outbox, id, at) VALUES ('', ?, " + nowMillis + ")"
	err := s.writeSession.write(ctx, func(ctx context.Context, conn *sqlitestore.Conn) error {
		_, err := conn.Exec(ctx, insert, token)
		return err
	})
	if err != nil {
		return fmt.Errorf("write marker: %w", sqlitestore.Explain(err))
	}
	return nil
}

// Compare orders two numbers of the log.
func (s *Source) Compare(a, b store.Position) int {
	return capture.ComparePositions(a, b, parsePosition)
}

// Close closes the connections. Call it after all other calls have returned.
func (s *Source) Close() {
	s.writeSession.close()
	s.readSession.close()
}

// logTable returns the quoted name of the log table.
func (s *Source) logTable() string { return sqlitestore.Ident(sqlitestore.LogTable(s.cfg.Name)) }

// parsePosition parses a number of the log. "" is before every position.
func parsePosition(p store.Position) (int64, error) {
	if p == "" {
		return -1, nil
	}
	n, err := strconv.ParseInt(string(p), 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("invalid SQLite log position %q; a position is a number such as 4711", p)
	}
	return n, nil
}

func formatPosition(n int64) store.Position { return store.Position(strconv.FormatInt(n, 10)) }

// session is a connection that is opened on first use and kept. Its transactions run one at
// a time.
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

// write runs fn in a transaction. A power failure may undo it. That is harmless, because a
// marker is requested again and log rows are deleted again.
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

// close closes the connection once its running transaction has ended.
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

const (
	// rowBytes is the size of a log row without its two texts: 2 bytes of cell pointer, 1 of
	// record length, 3 of rowid, 5 of record header and 6 of time. See
	// https://www.sqlite.org/fileformat2.html.
	rowBytes = 17
	// retainedSample is the number of newest rows whose mean size is used for all.
	retainedSample = 100
)

// Retained estimates the part of the file that the log after the acknowledged position
// takes, without reading all of it. The estimate is the number of rows times the mean size
// of the newest ones. The numbers give the row count, because they have no gaps: a rollback
// returns its numbers. Rows of the outboxes do not count, because the log holds only their
// ids. There is no limit but the disk.
//
// Rows that are acknowledged but not yet deleted do not count. Before the first
// acknowledgement since Open, the whole log counts.
func (s *Source) Retained(ctx context.Context) (capture.RetainedLog, error) {
	table := s.logTable()
	query := fmt.Sprintf(`SELECT (SELECT min(seq) FROM %[1]s), (SELECT max(seq) FROM %[1]s),
	(SELECT avg(length(CAST(outbox AS BLOB)) + coalesce(length(CAST(id AS BLOB)), 0))
		FROM (SELECT outbox, id FROM %[1]s ORDER BY seq DESC LIMIT %[2]d))`, table, retainedSample)
	var first, last int64
	var texts float64
	err := s.readSession.do(ctx, func(conn *sqlitestore.Conn) error {
		return conn.Query(ctx, query, nil, func(row []driver.Value) error {
			first, _ = row[0].(int64)
			last, _ = row[1].(int64)
			texts, _ = row[2].(float64)
			return nil
		})
	})
	if err != nil {
		return capture.RetainedLog{}, fmt.Errorf("read log size: %w", sqlitestore.Explain(err))
	}

	rows := max(0, last-max(s.acked(), first-1))
	return capture.RetainedLog{Bytes: int64(float64(rows) * (rowBytes + texts))}, nil
}
