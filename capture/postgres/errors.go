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
	"github.com/sluicebox/sluicebox/capture/internal/fault"
)

// refusalTimeout is how long the server may refuse a stream before the refusal counts as
// permanent. A predecessor's session may take until wal_sender_timeout to end.
const refusalTimeout = slotBusyTimeout

// noWalsenderError is a *capture.NoStreamError that may resolve within moments.
type noWalsenderError struct{ capture.NoStreamError }

// Unwrap makes the error a *capture.NoStreamError.
func (e *noWalsenderError) Unwrap() error { return &e.NoStreamError }

// transient reports whether a server error does not concern the WAL: shutdown (class
// 57P), a cancelled statement (57014), the connection (08), or a lack of memory or disk
// (53).
func transient(pg *pgconn.PgError) bool {
	return strings.HasPrefix(pg.Code, "57P") || pg.Code == "57014" ||
		strings.HasPrefix(pg.Code, "08") || strings.HasPrefix(pg.Code, "53")
}

// explainStreamError distinguishes a lost log and an unreadable log from a lost
// connection.
func (s *slots) explainStreamError(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err
	}

	switch pg.Code {
	case "42704", // undefined_object: the slot, or the publication at that position
		"55000", // object_not_in_prerequisite_state: the slot was invalidated
		"58P01": // undefined_file: the WAL was removed
		return &capture.LostError{Reason: strings.TrimSuffix(pg.Message+": "+pg.Detail, ": ")}
	case "42501": // insufficient_privilege
		return s.explainConnect(err)
	}

	err = fmt.Errorf("stream from slot %s: %w", s.cfg.Name, err)
	if transient(pg) {
		return err
	}
	return &fault.UnreadableLogError{Err: err}
}

// classifyRefusal classifies the error of a stream that did not start. A slot in use and
// the lack of a walsender are ordinary errors for a while.
func (s *Source) classifyRefusal(ctx context.Context, err error) error {
	var pg *pgconn.PgError
	var busy *noWalsenderError
	held := errors.As(err, &pg) && pg.Code == "55006" // object_in_use
	if !held && !errors.As(err, &busy) {
		s.refusedSince = time.Time{}
		return s.failures.Classify(err, false, s.resume.Last())
	}

	now := time.Now()
	if s.refusedSince.IsZero() {
		s.refusedSince = now
	}
	if waited := now.Sub(s.refusedSince); waited < refusalTimeout {
		return fmt.Errorf("server has refused the stream for %s: %v", waited.Round(time.Millisecond), err) // becomes permanent later
	}
	if busy != nil {
		return err
	}

	readErr := s.control.retryOnce(ctx, func(conn *pgx.Conn) error {
		sl, err := s.slots.query(ctx, conn, s.cfg.Name)
		if err == nil && sl.active {
			err = s.slots.heldError(&sl)
		}
		return err
	})
	if readErr != nil {
		return readErr
	}
	return err // it was released meanwhile
}
