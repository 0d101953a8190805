package blackbox

import (
	"context"
	"fmt"
	"strings"
)

// sqlChaos is the chaosStore of a conn.
type sqlChaos struct{ *conn }

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
			args = append(args, r.id, r.kind, group, r.payload, r.at)
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
	return err != nil && (strings.Contains(err.Error(), "SQLSTATE 23505") || strings.Contains(err.Error(), "Error 1062"))
}

func (s sqlChaos) states(_ context.Context, take func(id, state string)) error {
	return s.each("SELECT id, status FROM outbox_events UNION ALL SELECT id, status FROM outbox_dispatch_jobs", nil, func(scan func(...any) error) error {
		var id, state string
		err := scan(&id, &state)
		take(id, state)
		return err
	})
}
