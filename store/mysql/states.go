package mysql

import (
	"context"
	"fmt"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/outboxes"
)

// ReadStatuses implements store.ReplayReader on the session for replays. It reads rows as
// ReadSettled does.
func (s *Store) ReadStatuses(ctx context.Context, rows []store.ClaimRow) ([]store.RowStatus, error) {
	parts, err := outboxes.Split(s.outboxes, rows)
	if err != nil {
		return nil, fmt.Errorf("read row statuses: %w", err)
	}

	states := make([]store.RowStatus, len(rows))
	err = runLookups(ctx, s.replay, parts, func(ctx context.Context, c *conn, p *outboxes.Part) error {
		if p.MarkAbsent(states) {
			return nil
		}
		err := lookUpPart(ctx, c, p, func(t *table) []rowLookup {
			var plain, full []int
			for _, i := range p.Indexes {
				if p.WantsPayload(rows, i) {
					full = append(full, i)
				} else {
					plain = append(plain, i)
				}
			}
			return []rowLookup{t.statusLookup(plain, rows, states, false), t.statusLookup(full, rows, states, true)}
		})
		p.CopyDuplicateStatuses(rows, states)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read row statuses: %w", Explain(err))
	}

	return states, nil
}

// statusLookup reads the statuses of rows, and the payloads of COMPLETED ones. If several
// rows share an id, an unsettled one decides.
func (t *table) statusLookup(at []int, rows []store.ClaimRow, states []store.RowStatus, payload bool) rowLookup {
	var read store.RowStatus
	return rowLookup{
		at: at, rows: rows,
		columns: func(s *statement) string {
			text := fmt.Sprintf("CASE WHEN %s IS TRUE THEN %d", "("+t.delivered(s)+")", store.RowCompleted)
			text += fmt.Sprintf(" WHEN %s IS TRUE THEN %d ELSE %d END, ", t.failed(s), store.RowFailed, store.RowUnsettled)
			if !payload {
				return text + "NULL"
			}
			return text + "CASE WHEN " + t.delivered(s) + " THEN " + t.payload() + " END"
		},
		into: []any{&read.State, &read.Payload},
		found: func(i int, again bool) {
			if !again || read.State == store.RowUnsettled {
				states[i] = read
			}
		},
		missing: func(i int) { states[i] = store.RowStatus{State: store.RowAbsent} },
		unknown: func(i int) { states[i] = store.RowStatus{State: store.RowUnsettled} },
	}
}
