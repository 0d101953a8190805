package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/checkpoint/replay"
	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/store"
)

// replayCommands is `sluicebox replay …`.
type replayCommands struct {
	Start  replayStartCommand  `cmd:"" default:"withargs" help:"Start a replay, which sends delivered rows again, and show its progress. The word start is optional."`
	List   replayListCommand   `cmd:"" help:"List the replays, the latest first."`
	Errors replayErrorsCommand `cmd:"" help:"List the rows of a replay that the receiver refused."`
	Pause  replayPauseCommand  `cmd:"" help:"Pause a replay, so that live rows continue, until it is resumed."`
	Resume replayResumeCommand `cmd:"" help:"Resume a replay."`
	Cancel replayCancelCommand `cmd:"" help:"Cancel a replay."`
}

// replayStartCommand is `sluicebox replay start`, or `sluicebox replay` alone.
type replayStartCommand struct {
	requestFlags
	leaderFlags
	From    string   `placeholder:"NAME" help:"Start after this checkpoint (sluicebox checkpoint list)."`
	Since   timeFlag `placeholder:"TIME" help:"Start at this time: 2026-01-31T15:04:05Z, or 2h for two hours ago."`
	Until   timeFlag `placeholder:"TIME" help:"End before this time. Default: now."`
	Outbox  []string `sep:"none" placeholder:"NAME" help:"Rows of this outbox. Repeatable, like --kind, --group and --id. Default: all rows."`
	Route   string   `placeholder:"NAME" help:"Send to this route alone. Needs --outbox; required for an outbox with routes."`
	Kind    []string `sep:"none" placeholder:"KIND" help:"Rows of this kind."`
	Group   []string `sep:"none" placeholder:"GROUP" help:"Rows of this message group."`
	NoGroup bool     `help:"Rows without a group, in addition to rows of --group."`
	ID      []string `name:"id" sep:"none" placeholder:"ID" help:"The row with this id."`
	ToSink  string   `placeholder:"NAME" help:"Send to this sink. Default: the sink of each row's outbox."`
	Rate    int      `placeholder:"N" help:"Most rows per second. Default: no limit."`
	Source  string   `enum:"auto,log,table" default:"auto" placeholder:"WHERE" help:"Where to read the rows: log, table, or auto for the log if it is retained, else the table. Default: ${default}."`
	DryRun  bool     `help:"Count the rows and send none."`
	Detach  bool     `help:"Do not wait for the end; print the replay's id."`
	JSON    bool     `name:"json" help:"Print the replay as JSON."`
}

// Validate is called before Run.
func (c *replayStartCommand) Validate() error {
	switch {
	case c.From == "" && c.Since.IsZero():
		return errors.New("replay start missing: use --from NAME or --since TIME")
	case c.From != "" && !c.Since.IsZero():
		return errors.New("--from and --since can't be used together")
	case !c.Since.IsZero() && !c.Until.IsZero() && !c.Since.Before(c.Until.Time):
		return errors.New("--since is not before --until: no row matches")
	case c.Route != "" && len(c.Outbox) == 0:
		return errors.New("--route needs --outbox")
	case c.Rate < 0:
		return fmt.Errorf("--rate is %d, must be at least 1", c.Rate)
	}

	if err := c.spec().Validate(); err != nil {
		return err
	}
	return c.requestFlags.Validate()
}

func (c *replayStartCommand) spec() *replay.Spec {
	legs := slices.Clone(c.Outbox)
	for i := range legs {
		legs[i] = store.LegName(legs[i], c.Route)
	}
	s := &replay.Spec{
		From: c.From, Since: c.Since.UTC(), Until: c.Until.UTC(), Outboxes: legs, Groups: c.Group, NoGroup: c.NoGroup,
		Kinds: c.Kind, IDs: c.ID, Sink: c.ToSink, Rate: c.Rate, DryRun: c.DryRun,
	}
	if c.Source != "auto" {
		s.Read = replay.Source(c.Source)
	}
	return s
}

// Run requests a replay and shows its progress until it ends.
func (c *replayStartCommand) Run(ctx context.Context, p *program) error {
	of, closed, err := c.open(p)
	if err != nil {
		return err
	}
	defer closed()
	id, err := of.StartReplay(ctx, c.spec())
	if err != nil {
		return requestFailure(err)
	}

	if c.Detach {
		return c.printDetached(ctx, p, of, id)
	}
	p.note("replay %s", id)
	seen := &replayProgress{program: p, id: id, screen: newScreen(p.stderr)}
	var job admin.Replay
	err = c.await(ctx, p, func(ctx context.Context) (done, taken bool, err error) {
		list, err := of.Replays(ctx)
		at := slices.IndexFunc(list, func(r admin.Replay) bool { return r.ID == id })
		switch {
		case err != nil:
			return false, false, err
		case at < 0:
			return false, false, &commandError{code: exitFailed, problem: fmt.Sprintf("replay %s is no longer among the latest %d", id, store.MaxEndedJobs)}
		}
		job = list[at]
		seen.update(&job, nextReplayID(list[at+1:]), time.Now())
		return job.Ended(), anyBegun(list[at:]), nil
	})
	seen.end()
	if err != nil {
		return c.unfinishedError(err, "replay "+id, "it continues without this command",
			fmt.Sprintf("sluicebox replay list shows it, sluicebox replay cancel %s ends it", id))
	}

	return c.report(p, &job)
}

// anyBegun reports whether a leader has started one of the replays. The list has the
// latest first.
func anyBegun(list []admin.Replay) bool {
	return slices.ContainsFunc(list, func(r admin.Replay) bool {
		return !r.Ended() && (r.State != string(store.JobWaiting) || r.Reason != "")
	})
}

// nextReplayID returns the id of the next replay to run among earlier requests, or "" for
// none.
func nextReplayID(earlier []admin.Replay) string {
	for i := len(earlier) - 1; i >= 0; i-- {
		if !earlier[i].Ended() {
			return earlier[i].ID
		}
	}
	return ""
}

// printDetached prints the id of the replay, or the replay as JSON.
func (c *replayStartCommand) printDetached(ctx context.Context, p *program, of admin.Replays, id string) error {
	if !c.JSON {
		_, err := fmt.Fprintln(p.stdout, id)
		return err
	}
	job, err := admin.FindReplay(ctx, of, id)
	if err != nil {
		return requestFailure(err)
	}
	return p.json(job)
}

// report prints the result of a replay. The error's exit code says whether every row was
// accepted.
func (c *replayStartCommand) report(p *program, job *admin.Replay) error {
	if c.JSON {
		if err := p.json(job); err != nil {
			return err
		}
	} else if store.JobState(job.State) == store.JobDone {
		if _, err := fmt.Fprintln(p.stdout, replayResultText(job)); err != nil {
			return err
		}
	}
	return replayFailure(job)
}

// replayResultText describes a finished replay in one or two lines.
func replayResultText(job *admin.Replay) string {
	if !job.Spec.DryRun {
		return fmt.Sprintf("replay %s: done; %s sent, %s", job.ID, rowCountText(job.Sent), undeliveredText(job))
	}
	text := fmt.Sprintf("replay %s: dry run; %s would be sent, %s", job.ID, rowCountText(job.Remaining), undeliveredText(job))
	if !job.UntilAt.IsZero() && job.Spec.Until.IsZero() {
		text += "\nto send only the rows up to this time: --until " + job.UntilAt.UTC().Format(time.RFC3339Nano)
	}
	return text
}

// undeliveredText counts the rows that were skipped or refused.
func undeliveredText(job *admin.Replay) string {
	text := groupDigits(job.Skipped) + " skipped"
	if job.Refused > 0 {
		text += ", " + groupDigits(job.Refused) + " refused"
	}
	return text
}

// rowCountText formats a number of rows.
func rowCountText(n int64) string {
	if n == 1 {
		return "1 row"
	}
	return groupDigits(n) + " rows"
}

// groupDigits formats a number with its digits in groups of three.
func groupDigits(n int64) string {
	digits := fmt.Sprint(n)
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(' ')
		}
		b.WriteRune(d)
	}
	return b.String()
}

// replayFailure returns the error of a replay that did not send everything, or nil.
func replayFailure(job *admin.Replay) error {
	code, text, remedy := exitFailed, "", ""
	switch store.JobState(job.State) {
	case store.JobDone:
		if job.Refused == 0 {
			return nil
		}
		text, remedy = rowCountText(job.Refused)+" refused", fmt.Sprintf("sluicebox replay errors %s lists them, with the receiver's reasons", job.ID)
	case store.JobRefused:
		code, text = exitConfig, "refused: "+oneLine(job.Reason)
	case store.JobCancelled:
		text = "cancelled; " + rowCountText(job.Sent) + " sent before"
	default:
		text = fmt.Sprintf("failed: %s; %s sent before", oneLine(job.Reason), rowCountText(job.Sent))
	}

	return &commandError{code: code, problem: fmt.Sprintf("replay %s: %s", job.ID, text), remedy: remedy}
}

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
	note, waitsFor, _ = strings.Cut(reason, store.JobWaitsFor)
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

// replayListCommand is `sluicebox replay list`.
type replayListCommand struct {
	requestFlags
	JSON bool `name:"json" help:"Print JSON."`
}

// Run lists the replays.
func (c *replayListCommand) Run(ctx context.Context, p *program) error {
	of, closed, err := c.open(p)
	if err != nil {
		return err
	}
	defer closed()
	list, err := of.Replays(ctx)
	if err != nil {
		return requestFailure(err)
	}

	return p.printList(c.JSON, admin.ReplayList{Replays: append([]admin.Replay{}, list...)}, "no replays",
		[]string{"ID", "STATE", "FROM", "SOURCE", "ROWS", "SENT", "SKIPPED", "REFUSED", "LEFT", "ASKED", "REASON"}, tableRows(list, replayRow))
}

func replayRow(r *admin.Replay) []string {
	state, from, source := r.State, r.Spec.From, r.Source
	if r.Spec.DryRun {
		state += " (dry run)"
	}

	if !r.Ended() && (r.DesiredState == store.DesiredCancel || r.DesiredState == store.DesiredPause && r.State != string(store.JobPaused)) {
		state += ", to " + string(r.DesiredState)
	}
	if from == "" {
		from = r.Spec.Since.UTC().Format(time.RFC3339)
	}

	if source == "" {
		source = "-"
	}
	count := func(n int64) string { return strconv.FormatInt(n, 10) }
	return []string{
		r.ID, state, quoteCell(from), source, count(r.Rows), count(r.Sent), count(r.Skipped), count(r.Refused), count(r.Remaining),
		ageText(r.RequestedAt, time.Now()), oneLine(strings.TrimPrefix(r.Reason, "; ")),
	}
}

// replayErrorsCommand is `sluicebox replay errors`.
type replayErrorsCommand struct {
	requestFlags
	Job   string `arg:"" name:"id" help:"The replay's id."`
	Limit int    `default:"100" placeholder:"N" help:"The most rows to list. Default: ${default}."`
	JSON  bool   `name:"json" help:"Print JSON."`
}

// Validate is called before Run.
func (c *replayErrorsCommand) Validate() error {
	if c.Limit > store.MaxJobErrors {
		return fmt.Errorf("--limit is %d; at most %d refused rows are recorded", c.Limit, store.MaxJobErrors)
	}
	if err := checkLimit(c.Limit); err != nil {
		return err
	}
	return c.requestFlags.Validate()
}

// Run lists the refused rows.
func (c *replayErrorsCommand) Run(ctx context.Context, p *program) error {
	of, closed, err := c.open(p)
	if err != nil {
		return err
	}
	defer closed()
	list, err := of.ReplayErrors(ctx, c.Job, c.Limit)
	if err != nil {
		return requestFailure(err)
	}

	lines := tableRows(list, func(e *store.ReplayError) []string {
		return []string{quoteCell(e.Outbox), quoteCell(e.Kind), groupCell(e.Group), quoteCell(e.ID), ageText(e.At, time.Now()), oneLine(e.Reason)}
	})
	err = p.printList(c.JSON, admin.ReplayErrorList{Errors: append([]store.ReplayError{}, list...)}, "replay "+c.Job+": no row was refused",
		[]string{"OUTBOX", "KIND", "GROUP", "ID", "AGE", "ERROR"}, lines)
	if err != nil || c.JSON || len(list) == 0 {
		return err
	}
	if job, err := admin.FindReplay(ctx, of, c.Job); err == nil && job.Refused > int64(len(list)) {
		p.note("%s more; --limit shows them, up to %d", groupDigits(job.Refused-int64(len(list))), store.MaxJobErrors)
	}

	return nil
}

// replayFlags name one replay.
type replayFlags struct {
	requestFlags
	leaderFlags
	Job  string `arg:"" name:"id" help:"The replay's id."`
	JSON bool   `name:"json" help:"Print the resulting replay as JSON."`
}

// act requests a state for a replay and waits until it is reached.
func (f *replayFlags) act(ctx context.Context, p *program, desired store.DesiredState, isSo func(job *admin.Replay) bool) error {
	of, closed, err := f.open(p)
	if err != nil {
		return err
	}
	defer closed()
	if err := of.ActOnReplay(ctx, f.Job, desired); err != nil {
		return requestFailure(err)
	}

	var job *admin.Replay
	err = f.await(ctx, p, func(ctx context.Context) (done, taken bool, err error) {
		if job, err = admin.FindReplay(ctx, of, f.Job); err != nil {
			return false, false, err
		}
		return isSo(job), false, nil
	})
	if err != nil {
		return f.unfinishedError(err, "replay "+f.Job, "the request stays queued", "sluicebox replay list shows it")
	}

	if f.JSON {
		return p.json(job)
	}
	text := fmt.Sprintf("replay %s: %s; %s sent", f.Job, job.State, rowCountText(job.Sent))
	if !job.Ended() { // remaining rows of an ended replay are dropped
		text += ", " + groupDigits(job.Remaining) + " left"
	}

	_, err = fmt.Fprintln(p.stdout, text)
	return err
}

// replayPauseCommand is `sluicebox replay pause`.
type replayPauseCommand struct{ replayFlags }

// Run pauses a replay.
func (c *replayPauseCommand) Run(ctx context.Context, p *program) error {
	return c.act(ctx, p, store.DesiredPause, func(job *admin.Replay) bool { return job.Ended() || job.State == string(store.JobPaused) })
}

// replayResumeCommand is `sluicebox replay resume`.
type replayResumeCommand struct{ replayFlags }

// Run resumes a replay.
func (c *replayResumeCommand) Run(ctx context.Context, p *program) error {
	return c.act(ctx, p, store.DesiredRun, func(job *admin.Replay) bool { return job.State != string(store.JobPaused) })
}

// replayCancelCommand is `sluicebox replay cancel`.
type replayCancelCommand struct{ replayFlags }

// Run cancels a replay.
func (c *replayCancelCommand) Run(ctx context.Context, p *program) error {
	return c.act(ctx, p, store.DesiredCancel, (*admin.Replay).Ended)
}
