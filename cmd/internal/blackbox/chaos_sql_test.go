package blackbox

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// sqlChaos is the chaosStore of a conn.
type sqlChaos struct {
	*conn
	// time is a column's value of a time, or nil: the driver's.
	time func(at time.Time) any
}

func (s sqlChaos) at(at time.Time) any {
	if s.time == nil {
		return at
	}
	return s.time(at)
}

func (s sqlChaos) begin(ctx context.Context, rows []*chaosRow) (end func(commit bool) error, err error) {
	tx, err := s.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	end = func(commit bool) error {
		if commit {
			return tx.Commit()
		}
		return tx.Rollback()
	}
	for _, table := range []string{"outbox_events", "outbox_dispatch_jobs"} {
		var places []string
		var args []any
		flush := func() error {
			if len(places) == 0 {
				return nil
			}
			text, in := s.text("INSERT INTO "+table+" (id, type, message_group, payload, status, created_at) VALUES "+strings.Join(places, ", "), args)
			places, args = nil, nil
			_, err := tx.ExecContext(ctx, text, in...)
			return err
		}
		for _, r := range rows {
			if r.table != table {
				continue
			}
			n := len(args)
			places = append(places, fmt.Sprintf("($%d, $%d, $%d, $%d, 'PENDING', $%d)", n+1, n+2, n+3, n+4, n+5))
			var group any = r.group
			if r.group == "" {
				group = nil
			}
			args = append(args, r.id, r.kind, group, r.payload, s.at(r.at))
			if len(places) == 500 {
				if err = flush(); err != nil {
					break
				}
			}
		}
		if err == nil {
			err = flush()
		}
		if err != nil {
			_ = tx.Rollback()
			return nil, err
		}
	}
	return end, nil
}

func (s sqlChaos) exists(err error) bool {
	return err != nil && (strings.Contains(err.Error(), "SQLSTATE 23505") || strings.Contains(err.Error(), "Error 1062") || strings.Contains(err.Error(), "UNIQUE constraint failed"))
}

func (s sqlChaos) states(_ context.Context, since time.Time, take func(id, state string)) error {
	const of = "SELECT id, status FROM outbox_events WHERE created_at >= $1 UNION ALL SELECT id, status FROM outbox_dispatch_jobs WHERE created_at >= $1"
	return s.each(of, []any{s.at(since)}, func(scan func(...any) error) error {
		var id, state string
		err := scan(&id, &state)
		take(id, state)
		return err
	})
}

// binlogSize is how many bytes all binlogs of a MySQL or MariaDB have.
func binlogSize(ctx context.Context, c *conn) (n int64, err error) {
	rows, err := c.QueryContext(ctx, "SHOW BINARY LOGS")
	if err != nil {
		return 0, err
	}
	defer func() { _ = rows.Close() }()
	columns, err := rows.Columns()
	if err != nil {
		return 0, err
	}
	for rows.Next() {
		var size int64
		into := make([]any, len(columns)) // MySQL has one more than MariaDB
		for i := range into {
			into[i] = new(any)
		}
		into[1] = &size
		if err := rows.Scan(into...); err != nil {
			return 0, err
		}
		n += size
	}
	return n, rows.Err()
}
