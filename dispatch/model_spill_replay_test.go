package dispatch

import (
	"slices"

	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// theJob is the only replay of a spillModel.
const theJob = "job"

// spillReplayModel is the model's replay: the rows still in the store, and the held lanes.
type spillReplayModel struct {
	rows      []*replayRow // by n
	last      int64
	recording []store.FinishedRow
	held      map[store.LaneKey]bool
	withdrawn bool // rows were withdrawn, or leadership was lost
}

// replayRow is a replayed row.
type replayRow struct {
	n              int64
	row            *storedRow
	arrived, taken bool
}

// startReplay starts with the state that a new leader finds.
func (y *spillModel) startReplay() {
	y.recording, y.held, y.withdrawn = nil, map[store.LaneKey]bool{}, true
	for _, e := range y.rows {
		e.taken = false
	}
}

// replay sends rows again: new ones, or the rest of a job once none of its rows is in
// memory.
func (y *spillModel) replay(t *rapid.T) {
	if y.ended || y.withdrawn && y.core.jobRows(theJob) > 0 {
		return
	}
	from := len(y.rows)
	if y.withdrawn {
		from, y.withdrawn = 0, false
	}
	if len(y.log) > 0 && len(y.rows) < 20 {
		for range rapid.IntRange(1, 5).Draw(t, "rows") {
			y.last++
			y.rows = append(y.rows, &replayRow{n: y.last, row: rapid.SampledFrom(y.log).Draw(t, "row")})
		}
	}
	var rows []store.ReplayRow
	for _, e := range y.rows[from:] {
		rows = append(rows, store.ReplayRow{N: e.n, Item: e.row.item()})
	}
	y.core.replay(theJob, rows)
}

func (y *spillModel) withdrawReplay(*rapid.T) {
	y.core.withdrawJob(theJob)
	y.withdrawn = true
}

// recordFinished takes finished rows, or deletes them from the store.
func (y *spillModel) recordFinished(t *rapid.T) {
	if len(y.recording) > 0 {
		y.delete(y.recording)
		y.recording = nil
		y.core.replayDoneWritten(y.now)
		return
	}
	_, y.recording = y.core.nextReplayDone(rapid.IntRange(1, 4).Draw(t, "most"))
	for _, d := range y.recording {
		e := y.replayedRow(d.N)
		if (d.Result == store.ReplaySent) != e.taken || d.Lane != e.row.key || d.ID != e.row.id {
			t.Fatalf("row %s, taken %v, is noted as %+v", e.row.id, e.taken, d)
		}
	}
}

func (y *spillModel) delete(done []store.FinishedRow) {
	for _, d := range done {
		y.rows = slices.DeleteFunc(y.rows, func(e *replayRow) bool { return e.n == d.N })
	}
}

func (y *spillModel) replayedRow(n int64) *replayRow {
	i := slices.IndexFunc(y.rows, func(e *replayRow) bool { return e.n == n })
	if i < 0 {
		y.t.Fatalf("row %d of the job is done with\n%s", n, y.describe())
	}
	return y.rows[i]
}

// answerReplay answers a request with replayed rows.
func (y *spillModel) answerReplay(t *rapid.T, req *request) sink.Result {
	res := sink.Result{Outcome: outcomeOf(rapid.SampledFrom([]sink.Class{
		sink.Delivered, sink.Delivered, sink.Delivered, sink.Rejected, sink.Refused, sink.Unavailable,
	}).Draw(t, "answer"))}
	for _, run := range req.Runs {
		for _, rw := range run.Rows {
			switch e := y.replayedRow(rw.ReplayN); {
			case y.receiverDown || y.lanesDown[e.row.key]:
				res.Outcome = outcomeOf(sink.Unavailable)
			case isClaimed(rw), isSpilled(rw), isSpilling(rw), rw.Seq != 0, rw.Ticket != nil:
				t.Fatalf("row %s of the job is claimed, spilled, has a seq or a ticket", rw.ID)
			}
		}
	}
	if res.Class != sink.Delivered {
		return res
	}
	for _, run := range req.Runs {
		for _, rw := range run.Rows {
			e := y.replayedRow(rw.ReplayN)
			if e.taken {
				t.Fatalf("row %s of the job is taken twice by one leader", rw.ID)
			}
			for _, before := range y.rows {
				if before.row.key == e.row.key && before.n < e.n && !before.arrived && (e.row.key.Group.Valid || y.cfg.Ungrouped == FIFO) {
					t.Fatalf("row %d of the job arrives before %d", e.n, before.n)
				}
			}
			e.arrived, e.taken = true, true
		}
	}
	return res
}

func (y *spillModel) holdForReplay(t *rapid.T) {
	key := rapid.SampledFrom(y.keys).Draw(t, "lane")
	y.core.holdForReplay(theJob, key)
	y.held[key] = key.Group.Valid || y.cfg.Ungrouped == FIFO
}

func (y *spillModel) releaseReplayHold(t *rapid.T) {
	y.advance(rapid.SampledFrom(y.keys).Draw(t, "lane"))
}

func (y *spillModel) advance(key store.LaneKey) {
	delete(y.held, key)
	y.core.releaseReplayHold(theJob, key, y.now)
}

// checkClaims checks that no row of a held lane or of the job is claimed.
func (y *spillModel) checkClaims() {
	for _, req := range y.claiming {
		for _, run := range req.Runs {
			name := run.Lane.Name
			if name.Job != "" || y.held[name.LaneKey] && run.Rows[0].Skip == nil {
				y.t.Fatalf("lane %s of job %q is claimed; held %v", name.LaneKey, name.Job, y.held[name.LaneKey])
			}
		}
	}
}

// checkReplay checks that held lanes are known, and quiescent only if the table shows what
// was delivered, and that no row of a job is spilled.
func (y *spillModel) checkReplay() {
	for key := range y.held {
		if l := y.core.live()[LaneName{LaneKey: key}]; y.held[key] && (l == nil || len(l.ReplayHolds) != 1) {
			y.t.Fatalf("lane %s is not held for the job\n%s", key, y.describe())
		}
	}
	for _, r := range y.log {
		if y.held[r.key] && r.deliveredEpoch == y.epoch && !r.settled() {
			if y.core.heldLane(r.key).Quiescent {
				y.t.Fatalf("lane %s is still, and row %s, which was delivered, is %s\n%s", r.key, r.id, r.status, y.describe())
			}
		}
	}
	for p := range y.core.pendingSpills() {
		if p.Row.Job != nil || p.Lane != nil && p.Lane.Job != nil {
			y.t.Fatalf("row %s of the job is spilled", p.Row.ID)
		}
	}
	if n := y.core.jobRows(theJob); n > len(y.rows) {
		y.t.Fatalf("%d rows of the job are in memory, %d are left", n, len(y.rows))
	}
}
