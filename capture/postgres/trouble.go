package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

const (
	// mostFailures is how often the log may fail to be read at one place. The
	// pauses between make it last some seconds.
	mostFailures = 7
	// refusedFor is how long the server may refuse a stream before it counts as
	// refused for good: a predecessor's session may take until wal_sender_timeout
	// to end.
	refusedFor = activeWait
)

// trouble counts what runs end with, so that what trying again does not mend is
// told from a lost connection. It belongs to the goroutine of Run.
type trouble struct {
	failures int       // in a row, without a row or a position between
	refused  time.Time // since when the server has refused the stream
}

// logError is a fault of the log itself at the place where a run stands: the
// server could not decode it, or the relay not read what the server sent. One
// may be an accident.
type logError struct{ err error }

func (e *logError) Error() string { return e.err.Error() }
func (e *logError) Unwrap() error { return e.err }

// busyError is a *capture.NoStreamError that may pass by itself within moments.
type busyError struct{ capture.NoStreamError }

// Unwrap makes the error a *capture.NoStreamError.
func (e *busyError) Unwrap() error { return &e.NoStreamError }

// transient reports whether an error of the server is none of the log's: it ends
// (class 57P), somebody cancelled (57014), the connection (08), memory or disk
// that it has not just now (53).
func transient(pg *pgconn.PgError) bool {
	return strings.HasPrefix(pg.Code, "57P") || pg.Code == "57014" ||
		strings.HasPrefix(pg.Code, "08") || strings.HasPrefix(pg.Code, "53")
}

// explainStreaming tells a lost log, and one that cannot be read, from a lost
// connection.
func (s *Source) explainStreaming(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err
	}
	switch pg.Code {
	case "42704", // undefined_object: the slot, or the publication as of that place in the log
		"55000", // object_not_in_prerequisite_state: the slot was invalidated
		"58P01": // undefined_file: the log was removed
		return &capture.LostError{Reason: strings.TrimSuffix(pg.Message+": "+pg.Detail, ": ")}
	case "42501": // insufficient_privilege
		return s.explainStream(err)
	}
	err = fmt.Errorf("stream from slot %s: %w", s.cfg.Name, err)
	if transient(pg) {
		return err
	}
	return &logError{err}
}

// refused says what becomes of a stream that did not begin. A slot in use and
// the lack of a walsender are ordinary errors for a while.
func (s *Source) refused(ctx context.Context, err error) error {
	var pg *pgconn.PgError
	var busy *busyError
	held := errors.As(err, &pg) && pg.Code == "55006" // object_in_use
	if !held && !errors.As(err, &busy) {
		s.trouble.refused = time.Time{}
		return s.failed(err, false)
	}
	now := time.Now()
	if s.trouble.refused.IsZero() {
		s.trouble.refused = now
	}
	if waited := now.Sub(s.trouble.refused); waited < refusedFor {
		return fmt.Errorf("the server has refused the stream for %s: %v", waited.Round(time.Millisecond), err) // final later
	}
	if busy != nil {
		return err
	}
	lookErr := s.control.twice(ctx, func(conn *pgx.Conn) error {
		sl, err := s.findSlot(ctx, conn)
		if err == nil && sl.active {
			err = s.held(&sl)
		}
		return err
	})
	if lookErr != nil {
		return lookErr
	}
	return err // it was just let go
}

// failed says what becomes of a run that ended with an error. progress says that
// it had sent something new. A place in the log that cannot be read however often
// it is tried is as good as lost: a new cut goes on behind it.
func (s *Source) failed(err error, progress bool) error {
	var row *rowError
	var setup *store.SetupError
	var fault *logError
	switch {
	case errors.As(err, &row):
		return &capture.LostError{Reason: fmt.Sprintf("what follows %s holds a row that cannot be relayed: %v", s.resume.Last(), row)}
	case errors.As(err, &setup) || !errors.As(err, &fault):
		return err
	}
	if progress {
		s.trouble.failures = 0
	}
	s.trouble.failures++
	if s.trouble.failures >= mostFailures {
		return &capture.LostError{Reason: fmt.Sprintf("what follows %s cannot be read, tried %d times: %v", s.resume.Last(), s.trouble.failures, err)}
	}
	return fmt.Errorf("the log cannot be read behind %s, %d failures in a row: %w", s.resume.Last(), s.trouble.failures, err)
}
