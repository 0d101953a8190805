package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/checkpoint/replay"
	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/store"
)

const (
	// progressInterval is how often a line tells of progress where none can be redrawn.
	progressInterval = 10 * time.Second
	// rateWindow is the time over which a rate is taken.
	rateWindow = 10 * time.Second
	barWidth   = 20
)

// replayProgress shows how far a replay is: in one line of a terminal, else in a line
// now and then.
type replayProgress struct {
	program *program
	id      string
	screen  *screen // nil: no terminal

	state, why string
	text       string    // the latest line
	lastNoteAt time.Time // when it was written
	samples    []progressSample
}

// progressSample is how many rows were done with at a moment.
type progressSample struct {
	at   time.Time
	rows int64
}

// update tells of the replay as it is now, and which one it waits for.
func (g *replayProgress) update(job *admin.Replay, behind string, now time.Time) {
	if said, _ := splitReplayNote(job.Reason); said != g.why {
		g.why = said
		// That of an end is told with the end.
		if state := store.JobState(job.State); g.why != "" && (!state.Ended() || state == store.JobDone) {
			g.erase()
			g.program.note("replay %s: %s", g.id, oneLine(g.why))
		}
	}
	text := progressText(job, behind, g.rate(job, now))
	switch {
	case g.screen != nil && text != g.text:
		g.text = text
		_ = g.screen.line(text) // there is nowhere else to show it
	case g.screen != nil:
	case !job.Ended() && (job.State != g.state || now.Sub(g.lastNoteAt) >= progressInterval && (text != g.text || store.JobState(job.State).Started())):
		g.lastNoteAt, g.text = now, text
		g.program.note("replay %s: %s", g.id, text)
	}
	g.state = job.State
}

// erase makes room for a line that stays.
func (g *replayProgress) erase() {
	if g.screen != nil {
		g.text = ""
		_ = g.screen.line("")
	}
}

// end leaves the latest line where it is.
func (g *replayProgress) end() {
	if g.screen != nil && g.state != "" {
		g.program.note("")
	}
}

// rate is how many rows a second were done with in the latest past, 0 where that is not
// known.
func (g *replayProgress) rate(job *admin.Replay, now time.Time) float64 {
	done := doneRows(job)
	if n := len(g.samples); n > 0 && g.samples[n-1].rows > done || job.State != g.state {
		g.samples = nil // it reads or sends, but not both at one rate
	}
	g.samples = append(g.samples, progressSample{now, done})
	for len(g.samples) > 2 && now.Sub(g.samples[1].at) >= rateWindow {
		g.samples = g.samples[1:]
	}
	first := g.samples[0]
	if over := now.Sub(first.at).Seconds(); over > 0 {
		return float64(done-first.rows) / over
	}
	return 0
}

// finishRows is how many rows a replay is done with, or has read where it only reads.
func doneRows(job *admin.Replay) int64 {
	if job.State == string(store.JobCopying) || job.Spec.DryRun {
		return job.Rows
	}
	return job.Sent + job.Skipped + job.Refused
}

// splitReplayNote tells what there is to say of a replay from what it waits for now, which the
// relay that leads writes behind it.
func splitReplayNote(why string) (said, waits string) {
	said, waits, _ = strings.Cut(why, replay.WaitsFor)
	return said, waits
}

// progressText is a replay in a line without its id.
func progressText(job *admin.Replay, behind string, rate float64) string {
	_, waits := splitReplayNote(job.Reason)
	if waits != "" {
		waits = "waits for " + oneLine(waits)
	}
	switch state := store.JobState(job.State); {
	case state == store.JobWaiting && waits != "":
		return waits
	case state == store.JobWaiting && behind != "":
		return "waits for replay " + behind + " to end"
	case state == store.JobWaiting:
		return "waits for the relay that leads"
	case state == store.JobCopying || job.Spec.DryRun && !state.Ended():
		return strings.Join(append([]string{"reads; " + rowCountText(job.Rows) + " so far"}, rateParts(rate, 0)...), "  ")
	case job.Spec.DryRun:
		return job.State + "; " + rowCountText(job.Rows)
	}
	done := job.Rows - job.Remaining
	share := 0.0
	if job.Rows > 0 {
		share = float64(done) / float64(job.Rows)
	}
	filled := int(share * barWidth)
	parts := []string{fmt.Sprintf("[%s%s] %d%%", strings.Repeat("#", filled), strings.Repeat("-", barWidth-filled), int(share*100)),
		groupDigits(done) + "/" + groupDigits(job.Rows)}
	if job.State == string(store.JobPlaying) {
		parts = append(parts, rateParts(rate, job.Remaining)...)
	} else {
		parts = append(parts, job.State)
	}
	if job.Refused > 0 {
		parts = append(parts, groupDigits(job.Refused)+" refused")
	}
	if waits != "" {
		parts = append(parts, waits)
	}
	return strings.Join(parts, "  ")
}

// rateParts are a rate and how long so many rows take at it.
func rateParts(rate float64, left int64) (parts []string) {
	if rate <= 0 {
		return nil
	}
	if rate < 100 {
		parts = append(parts, rateText(rate)+"/s")
	} else {
		parts = append(parts, groupDigits(int64(rate))+"/s")
	}
	if left > 0 {
		parts = append(parts, durationText(time.Duration(float64(left)/rate*float64(time.Second)))+" left")
	}
	return parts
}
