package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
)

// deadLetterActionFlags choose the FAILED rows for an action of the running relay.
type deadLetterActionFlags struct {
	relayFlags
	deadLetterFlags
	AllOutboxes bool     `help:"Rows of every configured outbox."`
	All         bool     `help:"Every FAILED row of the outbox. Required if neither ids nor flags select rows."`
	IDs         []string `arg:"" optional:"" name:"id" help:"Ids of the rows. Default: all rows that the flags choose."`
	Limit       int      `default:"0" placeholder:"N" help:"The most rows, the oldest first. Default: all."`
	Yes         bool     `short:"y" help:"Do not ask for confirmation."`
	DryRun      bool     `help:"Count the rows and change nothing."`
	JSON        bool     `name:"json" help:"Print JSON."`
}

// Validate is called before Run.
func (f *deadLetterActionFlags) Validate() error {
	slices.Sort(f.IDs)
	f.IDs = slices.Compact(f.IDs)
	switch {
	case f.Limit < 0:
		return fmt.Errorf("--limit is %d, must be at least 1", f.Limit)
	case f.AllOutboxes && f.Outbox != "":
		return errors.New("--outbox and --all-outboxes can't be used together")
	case len(f.IDs) > admin.MaxDeadLetters:
		return fmt.Errorf("%d ids exceed the limit of %d per request", len(f.IDs), admin.MaxDeadLetters)
	case f.All && f.chooses():
		return errors.New("--all selects every FAILED row; omit it, or omit the ids and filters")
	case !f.All && !f.chooses() && f.Limit == 0 && !f.DryRun:
		return errors.New("no rows selected; name their ids, filter by --kind, --group, --no-group, --error, --since or --until, or use --all for every FAILED row")
	}
	return f.deadLetterFlags.Validate()
}

// chooses reports whether ids or flags select some of an outbox's FAILED rows.
func (f *deadLetterActionFlags) chooses() bool {
	return len(f.IDs) > 0 || f.Kind != "" || f.selectedGroup() != nil || f.Error != "" || !f.Since.IsZero() || !f.Until.IsZero()
}

// outboxes returns the chosen outboxes. An action that changes rows must name them.
func (f *deadLetterActionFlags) outboxes(cfg *config.Config) ([]string, error) {
	if cfg == nil {
		if f.Outbox == "" {
			return nil, usageError("no outbox named and no configuration found", "name it with --outbox, or the configuration with -c FILE")
		}
		return []string{f.Outbox}, nil
	}
	names, err := outboxNames(cfg, f.Outbox)
	if err == nil && len(names) > 1 && !f.AllOutboxes {
		return nil, usageError("several outboxes: "+strings.Join(names, ", "), "name one with --outbox, or use --all-outboxes")
	}
	return names, err
}

// deadLetterAction is one action on FAILED rows.
type deadLetterAction struct {
	name           string // name of the endpoint
	pastParticiple string // result for a row, in one word
	consequence    string // result for the rows, as the end of a sentence
}

// deadLetterActionResult is the result for one outbox.
type deadLetterActionResult struct {
	Outbox string `json:"outbox"`
	Chosen int    `json:"chosen"` // rows chosen by the flags
	Done   int    `json:"done"`   // rows requeued or discarded

	request admin.DeadLetterRequest
}

// deadLetterRequeueCommand is `sluicebox deadletters requeue`.
type deadLetterRequeueCommand struct{ deadLetterActionFlags }

// Run requeues rows.
func (c *deadLetterRequeueCommand) Run(ctx context.Context, p *program) error {
	return c.runAction(ctx, p, &deadLetterAction{name: "requeue", pastParticiple: "requeued",
		consequence: "reset to PENDING, without retries and error, and sent before waiting rows"})
}

// deadLetterDiscardCommand is `sluicebox deadletters discard`.
type deadLetterDiscardCommand struct{ deadLetterActionFlags }

// Run deletes rows.
func (c *deadLetterDiscardCommand) Run(ctx context.Context, p *program) error {
	return c.runAction(ctx, p, &deadLetterAction{name: "discard", pastParticiple: "discarded",
		consequence: "DELETED from the outbox table permanently, including the payload"})
}

// runAction counts the rows, asks for confirmation, and lets the relay act on them in
// batches.
func (f *deadLetterActionFlags) runAction(ctx context.Context, p *program, m *deadLetterAction) error {
	client, cfg, err := f.dial(p)
	if err != nil {
		return err
	}
	defer client.Close()
	outboxes, err := f.outboxes(cfg)
	if err != nil {
		return err
	}

	plan, total, err := f.plan(ctx, client, m, outboxes)
	if err != nil {
		return err
	}

	if total == 0 && len(f.IDs) > 0 {
		return &commandError{code: exitFailed, problem: "no FAILED row has one of these ids; nothing was changed", remedy: "sluicebox deadletters list shows them"}
	}
	if !f.DryRun && total > 0 {
		if err := f.confirm(ctx, p, m, plan); err != nil {
			return err
		}
		for i := range plan {
			if err := plan[i].run(ctx, p, client, m); err != nil {
				return err
			}
		}
	}

	return f.report(p, m, plan)
}

// plan counts the chosen rows of each outbox, in total at most --limit.
func (f *deadLetterActionFlags) plan(ctx context.Context, client *admin.Client, m *deadLetterAction, outboxes []string) (plan []deadLetterActionResult, total int, err error) {
	for _, outbox := range outboxes {
		req := admin.DeadLetterRequest{
			Outbox: outbox, IDs: f.IDs, Kind: f.Kind, Group: f.Group, NoGroup: f.NoGroup, Error: f.Error,
			Since: f.Since.Time, Until: f.Until.Time, DryRun: true,
		}
		n, err := client.ActOnDeadLetters(ctx, m.name, req)
		if err != nil {
			return nil, 0, deadLetterActionFailure(err, 0, 0)
		}
		req.DryRun = false
		if req.Until = n.Until; n.Until.IsZero() {
			req.Expect = &n.Count // the table records no times, so the number guards the action
		}
		chosen := n.Count
		if f.Limit > 0 {
			chosen = min(chosen, f.Limit-total)
		}
		total += chosen
		plan = append(plan, deadLetterActionResult{Outbox: outbox, Chosen: chosen, request: req})
	}

	return plan, total, nil
}

// deadLetterActionFailure adds to an error how many rows were done.
func deadLetterActionFailure(err error, done, of int) error {
	left := "the rows stay FAILED"
	if done > 0 {
		left = fmt.Sprintf("%d of %d done, the others stay FAILED", done, of)
	}
	err = relayFailure(err)
	var own *commandError
	if errors.As(err, &own) {
		return &commandError{code: own.code, problem: own.problem + "; " + left, remedy: own.remedy}
	}
	return fmt.Errorf("%w; %s", err, left)
}

// confirm describes the action and asks for confirmation.
func (f *deadLetterActionFlags) confirm(ctx context.Context, p *program, m *deadLetterAction, plan []deadLetterActionResult) error {
	for i := range plan {
		if r := &plan[i]; r.Chosen > 0 {
			p.note("%s: %s will be %s.", quoteCell(r.Outbox), failedRowsText(r.Chosen), m.consequence)
		}
	}

	if f.Yes {
		return nil
	}
	if !isTerminal(p.stdin) {
		return usageError("stdin is not a terminal; nothing was changed", "use --yes to skip the confirmation, or --dry-run to count only")
	}

	_, _ = io.WriteString(p.stderr, "Continue? [y/N] ")
	answer, err := readLine(ctx, p.stdin)
	if err != nil {
		p.note("")
		return &commandError{code: exitFailed, problem: "no answer; nothing was changed"}
	}

	if a := strings.ToLower(strings.TrimSpace(answer)); a != "y" && a != "yes" {
		return &commandError{code: exitFailed, problem: "not confirmed; nothing was changed"}
	}
	return nil
}

func failedRowsText(n int) string {
	if n == 1 {
		return "1 FAILED row"
	}
	return fmt.Sprintf("%d FAILED rows", n)
}

// isTerminal reports whether the input is a terminal.
// readLine reads one line. If the context ends first, the read stays blocked until the
// process exits, because a terminal read has no deadline.
func readLine(ctx context.Context, in io.Reader) (string, error) {
	type read struct {
		line string
		err  error
	}

	done := make(chan read, 1)
	go func() {
		line, err := bufio.NewReader(in).ReadString('\n')
		done <- read{line, err}
	}()
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case r := <-done:
		return r.line, r.err
	}
}

// run lets the relay act on the rows of one outbox, in batches.
func (r *deadLetterActionResult) run(ctx context.Context, p *program, client *admin.Client, m *deadLetterAction) error {
	for r.Done < r.Chosen {
		r.request.Limit = min(admin.MaxDeadLetters, r.Chosen-r.Done)
		n, err := client.ActOnDeadLetters(ctx, m.name, r.request)
		if err != nil {
			return deadLetterActionFailure(err, r.Done, r.Chosen)
		}
		if n.Count == 0 {
			return nil // the other rows are no longer FAILED
		}
		r.request.Expect = nil
		if r.Done += n.Count; r.Chosen > admin.MaxDeadLetters {
			p.note("%s: %d of %d %s", quoteCell(r.Outbox), r.Done, r.Chosen, m.pastParticiple)
		}
	}

	return nil
}

// report prints the result, or the plan of a dry run.
func (f *deadLetterActionFlags) report(p *program, m *deadLetterAction, plan []deadLetterActionResult) error {
	if f.JSON {
		return p.json(struct {
			DryRun   bool                     `json:"dry_run"`
			Outboxes []deadLetterActionResult `json:"outboxes"`
		}{f.DryRun, plan})
	}
	for i := range plan {
		r := &plan[i]
		line := fmt.Sprintf("%s: %s %s", quoteCell(r.Outbox), rowsText(r.Done), m.pastParticiple)
		switch {
		case f.DryRun:
			line = fmt.Sprintf("%s: %s would be %s", quoteCell(r.Outbox), failedRowsText(r.Chosen), m.pastParticiple)
		case r.Chosen == 0:
			line = fmt.Sprintf("%s: no FAILED row matches", quoteCell(r.Outbox))
		case r.Done < r.Chosen:
			line += fmt.Sprintf("; %s no longer FAILED", rowsText(r.Chosen-r.Done))
		}
		if _, err := fmt.Fprintln(p.stdout, line); err != nil {
			return err
		}
	}
	return nil
}
