package mysql

import (
	"context"
	"fmt"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/byoutbox"
)

// States implements store.ReplayReader, on the session for replays. It looks at rows as
// Settled does.
func (s *Store) States(ctx context.Context, rows []store.ClaimRow) ([]store.StateOf, error) {
	parts, err := byoutbox.Sort(s.outboxes, rows)
	if err != nil {
		return nil, fmt.Errorf("look for the states of rows: %w", err)
	}
	states := make([]store.StateOf, len(rows))
	err = lookAll(ctx, s.replay, parts, func(ctx context.Context, c *conn, p *byoutbox.Part) error {
		if p.Absent(states) {
			return nil
		}
		err := lookAt(ctx, c, p, func(t *table) []look {
			var plain, full []int
			for _, i := range p.At {
				if p.Wants(rows, i) {
					full = append(full, i)
				} else {
					plain = append(plain, i)
				}
			}
			return []look{t.stateLook(plain, rows, states, false), t.stateLook(full, rows, states, true)}
		})
		p.CopyStates(rows, states)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look for the states of rows: %w", Explain(err))
	}
	return states, nil
}

// stateLook tells the states of rows, and the payloads of COMPLETED ones. Of several
// rows of one id an open one counts.
func (t *table) stateLook(at []int, rows []store.ClaimRow, states []store.StateOf, payload bool) look {
	var read store.StateOf
	return look{
		at: at, rows: rows,
		columns: func(s *statement) string {
			text := fmt.Sprintf("CASE WHEN %s IS TRUE THEN %d", "("+t.delivered(s)+")", store.RowCompleted)
			text += fmt.Sprintf(" WHEN %s IS TRUE THEN %d ELSE %d END, ", t.failed(s), store.RowFailed, store.RowOpen)
			if !payload {
				return text + "NULL"
			}
			return text + "CASE WHEN " + t.delivered(s) + " THEN " + t.payload() + " END"
		},
		into: []any{&read.State, &read.Payload},
		tell: func(i int, again bool) {
			if !again || read.State == store.RowOpen {
				states[i] = read
			}
		},
		gone:    func(i int) { states[i] = store.StateOf{State: store.RowAbsent} },
		unknown: func(i int) { states[i] = store.StateOf{State: store.RowOpen} },
	}
}
