package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store/backoff"
	sqlitestore "github.com/sluicebox/sluicebox/store/sqlite"
)

const (
	// trimInterval is the minimum time between two rounds that delete acknowledged rows, and
	// trimRows the maximum number of rows of a transaction.
	trimInterval = 100 * time.Millisecond
	trimRows     = 500
	// trimPause between two transactions lets waiting services acquire the write lock,
	// because SQLite's busy handler retries after 1 ms and 2 ms.
	trimPause = 2 * time.Millisecond
	// finalTrimTimeout is the timeout of the round that ends a run.
	finalTrimTimeout = time.Second
)

// trim deletes the log up to the acknowledged position until the context ends, and then once
// more.
func (s *Source) trim(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), finalTrimTimeout)
			defer cancel()
			_ = s.trimAll(last) // the next run deletes the rest
			return nil
		case <-s.ackSignal:
		}
		err := s.trimAll(ctx)
		switch {
		case err == nil || ctx.Err() != nil:
		case sqlitestore.IsLocked(err):
			s.requestTrim() // it is not urgent
		default:
			return err
		}
		_ = backoff.Sleep(ctx, trimInterval) // the next round sees the end of the context
	}
}

// requestTrim requests a round of trim.
func (s *Source) requestTrim() {
	select {
	case s.ackSignal <- struct{}{}:
	default:
	}
}

func (s *Source) trimAll(ctx context.Context) error {
	for {
		more, err := s.trimOnce(ctx, s.acked())
		if err != nil {
			return fmt.Errorf("delete acknowledged log: %w", sqlitestore.Explain(err))
		}
		if !more {
			return nil
		}
		if err := backoff.Sleep(ctx, trimPause); err != nil {
			return err
		}
	}
}

// trimOnce deletes up to trimRows rows from the start of the log, up to a number.
func (s *Source) trimOnce(ctx context.Context, acked int64) (more bool, err error) {
	const given = "UPDATE sluicebox_log SET given = ? WHERE name = ? AND id = ?"
	err = s.writeSession.write(ctx, func(ctx context.Context, conn *sqlitestore.Conn) error {
		more = false
		first := acked + 1
		err := conn.Query(ctx, "SELECT min(seq) FROM "+s.logTable(), nil, func(row []driver.Value) error {
			if n, ok := row[0].(int64); ok {
				first = n
			}
			return nil
		})
		if err != nil || first > acked {
			return err
		}
		last := min(acked, first+trimRows-1)
		n, err := conn.Exec(ctx, given, last, s.cfg.Name, s.log)
		if err == nil && n == 0 {
			return &capture.LostError{Reason: "log was recreated"}
		}
		if err != nil {
			return err
		}
		more = last < acked
		_, err = conn.Exec(ctx, "DELETE FROM "+s.logTable()+" WHERE seq <= ?", last)
		return err
	})
	return more, err
}
