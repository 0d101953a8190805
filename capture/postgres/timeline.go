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

// timelineChangedError says that the server's log goes on in another timeline than the one that
// was read: a standby was promoted, or the server was restored. Open decides at the
// checkpoint where to go on.
func timelineChangedError(now, was int32) error {
	return fmt.Errorf("the server was promoted or restored: its log goes on in timeline %d, it was read in timeline %d: %w",
		now, was, store.ErrInterrupted)
}

// originMismatch says in one line why the checkpoint's position is no place in the log of
// an origin, which the session is of; "" if it is. Another timeline of the same server will do if the
// position lies on the part that both share: up to there they hold the same
// transactions, and the slot, which stands no further, brings all that follow in
// this one.
//
// A checkpoint that is found in the tables of a promoted server always lies there:
// its row was written after what it names, and has come over. So it does after a
// restore to a point in time. It need not where the row was written to another
// server than the log was read from, so the history of the timelines is asked.
func (s *Source) originMismatch(ctx context.Context, conn *pgconn.PgConn, origin string, at store.Checkpoint) (string, error) {
	if at.Origin == origin {
		return "", nil
	}
	was, rest, ok := splitTimeline(at.Origin)
	now, here, _ := splitTimeline(origin)
	if !ok || rest != here {
		return fmt.Sprintf("the checkpoint is of the log %s, this is %s", at.Origin, origin), nil
	}
	lsn, err := parseLSN(at.Position)
	if err != nil {
		return "", err
	}
	branch, err := branchPoint(ctx, conn, was, now)
	switch {
	case err != nil:
		return "", fmt.Errorf("read the history of timeline %d: %w", now, s.explainConnect(err))
	case branch == 0:
		return fmt.Sprintf("the checkpoint is of timeline %d, which is no ancestor of the server's timeline %d", was, now), nil
	case lsn > branch:
		return fmt.Sprintf("the checkpoint %s of timeline %d is behind %s, where timeline %d left it: the server was promoted or restored without what came between",
			at.Position, was, branch, now), nil
	}
	return "", nil
}

// splitTimeline takes the timeline out of an origin; see originOf.
func splitTimeline(origin string) (timeline int32, rest string, ok bool) {
	system, rest, _ := strings.Cut(origin, "/")
	number, rest, found := strings.Cut(rest, "/")
	n, err := strconv.ParseInt(number, 10, 32)
	return int32(n), system + "/" + rest, found && err == nil
}

// branchPoint asks where the server's timeline left another one: the logs are the
// same up to there. 0 says that it does not come from that one, or that the server
// does not know any more.
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

// parseTimelineHistory reads the file of a timeline: a line for each ancestor, with its
// number and where it was left.
func parseTimelineHistory(content []byte, was int32) (pglogrepl.LSN, error) {
	for line := range strings.Lines(string(content)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) < 2 {
			return 0, fmt.Errorf("a line of another form: %q", line)
		}
		number, err := strconv.ParseInt(fields[0], 10, 32)
		if err != nil {
			return 0, fmt.Errorf("a line of another form: %q", line)
		}
		if int32(number) == was {
			return parseLSN(store.Position(fields[1]))
		}
	}
	return 0, nil
}

// inRecovery asks whether the server is a standby.
func inRecovery(ctx context.Context, conn *pgconn.PgConn) (bool, error) {
	results, err := conn.Exec(ctx, "SELECT pg_is_in_recovery()").ReadAll()
	if err != nil {
		return false, err
	}
	return len(results) == 1 && len(results[0].Rows) == 1 && string(results[0].Rows[0][0]) == "t", nil
}
