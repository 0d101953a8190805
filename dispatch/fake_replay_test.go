package dispatch

import (
	"context"
	"fmt"

	"github.com/sluicebox/sluicebox/store"
)

// replayRecords is the backend's record of replayed rows.
type replayRecords struct {
	refuse        error      // returned by FinishRows while it is set
	done          [][]string // "job n id result error" of each statement
	sent, refused int        // as observed
}

// FinishRows takes as long as other statements.
func (d *fakeBackend) FinishRows(ctx context.Context, _ store.Epoch, job string, done []store.FinishedRow) error {
	err := d.statement(ctx, nil)
	defer d.mu.Unlock()
	if err == nil {
		err = d.replayLog.refuse
	}
	if err != nil {
		return err
	}
	var lines []string
	for _, r := range done {
		word := map[store.ReplayResult]string{store.ReplaySent: "sent", store.ReplayRefused: "refused: "}[r.Result]
		lines = append(lines, fmt.Sprintf("%s %d %s %s%s", job, r.N, r.ID, word, r.Error))
	}
	d.replayLog.done = append(d.replayLog.done, lines)
	return nil
}

func (d *fakeBackend) replayed(sent, refused int) {
	d.set(func() { d.replayLog.sent, d.replayLog.refused = d.replayLog.sent+sent, d.replayLog.refused+refused })
}

// replayOf numbers rows as rows of a job, starting at from.
func replayOf(from int64, rows []store.Item) []store.ReplayRow {
	out := make([]store.ReplayRow, len(rows))
	for i := range rows {
		out[i] = store.ReplayRow{N: from + int64(i), Item: rows[i]}
	}
	return out
}

// jobs lists the replays of the messages that arrived.
func (d *fakeBackend) jobs() (jobs []string) {
	for _, m := range d.messages {
		jobs = append(jobs, m.Replay)
	}
	return jobs
}
