package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicebox/sluicebox/store"
)

// timelineChangedError means that the server's WAL continues on another timeline than the
// run read, because a standby was promoted or the server was restored. Open decides at
// the checkpoint where to continue.
func timelineChangedError(now, was int32) error {
	return fmt.Errorf("server was promoted or restored: its WAL continues on timeline %d, it was read on timeline %d: %w",
		now, was, store.ErrInterrupted)
}

// originMismatch returns in one line why the checkpoint's position does not belong to the
// log of an origin; "" if it does. The session must be of that origin. Another timeline
// of the same server is accepted if the position lies on the part that both share; see the
// package documentation. A checkpoint found in the tables of a promoted or recovered server
// lies there, unless its row was written to another server than the WAL was read from.
func (s *Source) originMismatch(ctx context.Context, conn *pgconn.PgConn, origin string, at store.Checkpoint) (string, error) {
	if at.Origin == origin {
		return "", nil
	}

	was, rest, ok := splitTimeline(at.Origin)
	now, here, _ := splitTimeline(origin)
	if !ok || rest != here {
		return fmt.Sprintf("checkpoint is of log %s, this is %s", at.Origin, origin), nil
	}

	lsn, err := parseLSN(at.Position)
	if err != nil {
		return "", err
	}

	branch, err := branchPoint(ctx, conn, was, now)
	switch {
	case err != nil:
		return "", fmt.Errorf("read history of timeline %d: %w", now, s.slots.explainConnect(err))
	case branch == 0:
		return fmt.Sprintf("checkpoint is of timeline %d, which is not an ancestor of the server's timeline %d", was, now), nil
	case lsn > branch:
		return fmt.Sprintf("checkpoint %s of timeline %d is after %s, where timeline %d branched off: the server was promoted or restored without the WAL in between",
			at.Position, was, branch, now), nil
	}

	return "", nil
}

// splitTimeline extracts the timeline from an origin; see originOf.
func splitTimeline(origin string) (timeline int32, rest string, ok bool) {
	system, rest, _ := strings.Cut(origin, "/")
	number, rest, found := strings.Cut(rest, "/")
	n, err := strconv.ParseInt(number, 10, 32)
	return int32(n), system + "/" + rest, found && err == nil
}

// branchPoint returns where the server's timeline left another one: the WAL is the same
// up to there. 0 means that it does not descend from that timeline, or that the server no
// longer knows.
func branchPoint(ctx context.Context, conn *pgconn.PgConn, was, now int32) (pglogrepl.LSN, error) {
	history, err := pglogrepl.TimelineHistory(ctx, conn, now)
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "58P01" { // undefined_file; the first timeline has none
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return parseTimelineHistory(history.Content, was)
}

// parseTimelineHistory parses a timeline history file: one line per ancestor, with its
// number and the position where it was left.
func parseTimelineHistory(content []byte, was int32) (pglogrepl.LSN, error) {
	for line := range strings.Lines(string(content)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) < 2 {
			return 0, fmt.Errorf("malformed line %q", line)
		}
		number, err := strconv.ParseInt(fields[0], 10, 32)
		if err != nil {
			return 0, fmt.Errorf("malformed line %q", line)
		}
		if int32(number) == was {
			return parseLSN(store.Position(fields[1]))
		}
	}
	return 0, nil
}

// inRecovery reports whether the server is a standby.
func inRecovery(ctx context.Context, conn *pgconn.PgConn) (bool, error) {
	results, err := conn.Exec(ctx, "SELECT pg_is_in_recovery()").ReadAll()
	if err != nil {
		return false, err
	}
	return len(results) == 1 && len(results[0].Rows) == 1 && string(results[0].Rows[0][0]) == "t", nil
}
