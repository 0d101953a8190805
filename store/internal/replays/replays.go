// Package replays is what the databases share of named checkpoints and replays.
package replays

import (
	"fmt"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/outboxes"
)

// The wishes for a named checkpoint, as the own tables have them.
const (
	RequestMake = "make"
	RequestDrop = "drop"
)

// EndedStates are the states in which a job has ended, as the own tables have them.
func EndedStates() []string {
	return []string{string(store.JobDone), string(store.JobFailed), string(store.JobRefused), string(store.JobCancelled)}
}

// CheckRows reports what keeps rows from being copied.
func CheckRows(set *outboxes.Set, rows []store.ReplayRow) error {
	for i := range rows {
		r := &rows[i]
		if _, err := set.Find(r.Outbox); err != nil {
			return err
		}
		if r.N <= 0 {
			return fmt.Errorf("row %q of outbox %s has the number %d, must be positive", r.ID, r.Outbox, r.N)
		}
	}
	return nil
}

// CheckFinished reports what keeps rows from being done with.
func CheckFinished(done []store.FinishedRow) error {
	for i := range done {
		if d := &done[i]; d.Result > store.ReplayRefused {
			return fmt.Errorf("row %q of outbox %s: %d is no result", d.ID, d.Lane.Outbox, d.Result)
		}
	}
	return nil
}

// CheckLimit reports that a limit is none.
func CheckLimit(limit int) error {
	if limit <= 0 {
		return fmt.Errorf("the limit is %d, must be positive", limit)
	}
	return nil
}

// Tally counts the rows of a call by what became of them.
type Tally struct{ Sent, Skipped, Refused int64 }

// Count counts a row.
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

// StoresError reports whether the error of the row that was counted last is kept, if so many
// were refused before the call.
func (t *Tally) StoresError(before int64) bool { return before+t.Refused <= store.MaxJobErrors }
