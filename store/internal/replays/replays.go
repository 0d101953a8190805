// Package replays checks and counts the rows of replays.
package replays

import (
	"fmt"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/outboxes"
)

// CheckRows reports whether rows can be copied into a job.
func CheckRows(set *outboxes.Set, rows []store.ReplayRow) error {
	for i := range rows {
		r := &rows[i]
		if _, err := set.Find(r.Outbox); err != nil {
			return err
		}
		if r.N <= 0 {
			return fmt.Errorf("row %q of outbox %s: number %d must be positive", r.ID, r.Outbox, r.N)
		}
	}
	return nil
}

// CheckFinished reports whether the results of rows are valid.
func CheckFinished(done []store.FinishedRow) error {
	for i := range done {
		if d := &done[i]; d.Result > store.ReplayRefused {
			return fmt.Errorf("row %q of outbox %s: unknown result %d", d.ID, d.Lane.Outbox, d.Result)
		}
	}
	return nil
}

// CheckLimit reports whether a limit is positive.
func CheckLimit(limit int) error {
	if limit <= 0 {
		return fmt.Errorf("limit %d must be positive", limit)
	}
	return nil
}

// Tally counts the rows of a call by result.
type Tally struct{ Sent, Skipped, Refused int64 }

// Count counts one row.
func (t *Tally) Count(result store.ReplayResult) {
	switch result {
	case store.ReplaySent:
		t.Sent++
	case store.ReplaySkipped:
		t.Skipped++
	case store.ReplayRefused:
		t.Refused++
	}
}

// StoresError reports whether to store the error of the last counted row, if before rows
// were refused before the call.
func (t *Tally) StoresError(before int64) bool { return before+t.Refused <= store.MaxJobErrors }
