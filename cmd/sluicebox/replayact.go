package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/store"
)

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
