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
	// progressInterval is the time between progress lines if a line cannot be redrawn.
	progressInterval = 10 * time.Second
	// rateWindow is the time over which a rate is computed.
	rateWindow = 10 * time.Second
	barWidth   = 20
)

// replayProgress shows the progress of a replay: in one redrawn line on a terminal, else
// in periodic lines.
type replayProgress struct {
	program *program
	id      string
	screen  *screen // nil: no terminal

	state, note string
	text        string    // latest progress line
	lastNoteAt  time.Time // time of the latest periodic line
	samples     []progressSample
}

// progressSample is the number of finished rows at a time.
type progressSample struct {
	at   time.Time
	rows int64
}

// update shows the state of the replay. behind is the id of the replay it waits for.
func (g *replayProgress) update(job *admin.Replay, behind string, now time.Time) {
	if note, _ := splitReplayNote(job.Reason); note != g.note {
		g.note = note
		// The result line reports the reason of an end.
		if state := store.JobState(job.State); g.note != "" && (!state.Ended() || state == store.JobDone) {
			g.erase()
			g.program.note("replay %s: %s", g.id, oneLine(g.note))
		}
	}

	text := progressText(job, behind, g.rate(job, now))
	switch {
	case g.screen != nil && text != g.text:
		g.text = text
		_ = g.screen.line(text) // there is no other output for the error
	case g.screen != nil:
	case !job.Ended() && (job.State != g.state || now.Sub(g.lastNoteAt) >= progressInterval && (text != g.text || store.JobState(job.State).Started())):
		g.lastNoteAt, g.text = now, text
		g.program.note("replay %s: %s", g.id, text)
	}

	g.state = job.State
}

// erase clears the progress line before a permanent line.
func (g *replayProgress) erase() {
	if g.screen != nil {
		g.text = ""
		_ = g.screen.line("")
	}
}

// end keeps the latest progress line.
func (g *replayProgress) end() {
	if g.screen != nil && g.state != "" {
		g.program.note("")
	}
}

// rate returns the finished rows per second in rateWindow, or 0 if unknown.
func (g *replayProgress) rate(job *admin.Replay, now time.Time) float64 {
	done := doneRows(job)
	if n := len(g.samples); n > 0 && g.samples[n-1].rows > done || job.State != g.state {
		g.samples = nil // reading and sending have different rates
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

// doneRows returns the number of finished rows, or of rows read while the replay only
// reads.
func doneRows(job *admin.Replay) int64 {
	if job.State == string(store.JobCopying) || job.Spec.DryRun {
		return job.Rows
	}
	return job.Sent + job.Skipped + job.Refused
}

// splitReplayNote splits a replay's reason into the note and the condition it waits for.
// The leader joins them with a semicolon.
func splitReplayNote(reason string) (note, waitsFor string) {
	note, waitsFor, _ = strings.Cut(reason, replay.WaitsFor)
	return note, waitsFor
}

// progressText describes a replay in a line, without its id.
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
		return "waits for the leader"
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

// rateParts returns a rate and the time that the remaining rows take at this rate.
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
