package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/store"
)

// deadLetterCommands is `sluicebox deadletters …`.
type deadLetterCommands struct {
	List    deadLetterListCommand    `cmd:"" help:"List FAILED rows from the database, also without a running relay."`
	Show    deadLetterShowCommand    `cmd:"" help:"Show FAILED rows with their payloads, also without a running relay."`
	Requeue deadLetterRequeueCommand `cmd:"" help:"Reset FAILED rows to PENDING; the running relay sends them again."`
	Discard deadLetterDiscardCommand `cmd:"" help:"Delete FAILED rows from the table permanently, through the running relay."`
}

// deadLetterFlags choose FAILED rows.
type deadLetterFlags struct {
	Outbox string `placeholder:"NAME" help:"Rows of one outbox. Without it, list reads all outboxes; requeue and discard need it if there are several."`
	Route  string `placeholder:"NAME" help:"Rows that FAILED on this route. Default: of an outbox with routes, all of them."`
	Kind   string `placeholder:"KIND" help:"Rows of one kind."`
	groupFlags
	Error string   `placeholder:"TEXT" help:"Rows whose error contains this text."`
	Since timeFlag `placeholder:"TIME" help:"Rows that FAILED at this time or later: 2026-01-31T15:04:05Z, or 2h for two hours ago."`
	Until timeFlag `placeholder:"TIME" help:"Rows that FAILED before this time."`
}

// timeFlag is a time, given as such or as a duration before now.
type timeFlag struct{ time.Time }

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *timeFlag) UnmarshalText(text []byte) error {
	if ago, err := time.ParseDuration(string(text)); err == nil && ago >= 0 {
		m.Time = time.Now().Add(-ago)
		return nil
	}
	t, err := time.Parse(time.RFC3339Nano, string(text))
	if err != nil {
		return fmt.Errorf("invalid time %q: want a time such as 2026-01-31T15:04:05Z, or how long ago such as 90s or 2h", text)
	}
	m.Time = t
	return nil
}

// Validate is called before Run.
func (f *deadLetterFlags) Validate() error {
	if !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until.Time) {
		return errors.New("--since is not before --until: no row matches")
	}
	return nil
}

func (f *deadLetterFlags) filter(outbox string, ids []string) store.DeadLetterFilter {
	return store.DeadLetterFilter{
		Outbox: outbox, IDs: ids, Kind: f.Kind, Group: f.selectedGroup(), Error: f.Error,
		Since: f.Since.Time, Until: f.Until.Time,
	}
}

// outboxNames returns the named outbox, or all configured ones.
func outboxNames(cfg *config.Config, named string) ([]string, error) {
	var all []string
	for _, o := range cfg.Outboxes() {
		all = append(all, o.Name)
	}
	if named == "" {
		return all, nil
	}
	if !slices.Contains(all, named) {
		return nil, usageError(fmt.Sprintf("unknown outbox %q", named), "the outboxes are "+strings.Join(all, ", "))
	}
	return []string{named}, nil
}

// chosenLegs returns the outboxes under whose names FAILED rows are recorded: those named, or
// all, and of an outbox with routes the leg of each route, or of the named one.
func chosenLegs(cfg *config.Config, outbox, route string) (legs []store.Outbox, err error) {
	names, err := outboxNames(cfg, outbox)
	if err != nil {
		return nil, err
	}
	var routes []string
	for _, o := range cfg.Outboxes() {
		switch {
		case !slices.Contains(names, o.Name):
			continue
		case len(o.Routes) == 0 && route == "":
			legs = append(legs, o)
		}
		for i, leg := range o.Legs() {
			if routes = append(routes, leg.Name); route == "" || route == o.Routes[i].Name {
				legs = append(legs, leg)
			}
		}
	}
	switch {
	case len(legs) > 0:
		return legs, nil
	case len(routes) == 0:
		return nil, usageError("no outbox chosen has routes", "omit --route")
	}
	return nil, usageError(fmt.Sprintf("unknown route %q", route), "the routes are "+strings.Join(routes, ", "))
}

// openDeadLetters loads the configuration and opens the FAILED rows of the chosen
// outboxes.
func (p *program) openDeadLetters(from *configFlag, outbox, route string) (letters store.DeadLetters, outboxes []store.Outbox, closed func(), err error) {
	cfg, err := from.load(p)
	if err != nil {
		return nil, nil, nil, err
	}
	if outboxes, err = chosenLegs(cfg, outbox, route); err != nil {
		return nil, nil, nil, err
	}
	letters, closed, err = p.relay.deadLetters(cfg)
	return letters, outboxes, closed, err
}

// deadLetterListCommand is `sluicebox deadletters list`.
type deadLetterListCommand struct {
	configFlag
	deadLetterFlags
	Limit int  `default:"100" placeholder:"N" help:"The most rows to list. Default: ${default}."`
	JSON  bool `name:"json" help:"Print JSON."`
}

// Validate is called before Run.
func (c *deadLetterListCommand) Validate() error {
	return errors.Join(checkLimit(c.Limit), c.deadLetterFlags.Validate())
}

// Run reads FAILED rows from the database.
func (c *deadLetterListCommand) Run(ctx context.Context, p *program) error {
	letters, outboxes, closed, err := p.openDeadLetters(&c.configFlag, c.Outbox, c.Route)
	if err != nil {
		return err
	}
	defer closed()
	found := []admin.DeadLetter{}
	more := 0
	counted := map[string]bool{} // by outbox
	for i := range outboxes {
		counted[outboxes[i].Name] = countsRetries(&outboxes[i].Layout)
		f := c.filter(outboxes[i].Name, nil)
		rows, err := readDeadLetters(ctx, letters, f, c.Limit-len(found))
		if err != nil {
			return err
		}
		found = append(found, rows...)
		if len(found) < c.Limit {
			continue
		}
		n, err := letters.CountFailed(ctx, f)
		if err != nil {
			return err
		}
		more += max(0, n-len(rows))
	}

	err = p.printList(c.JSON, admin.DeadLetterList{DeadLetters: found}, "no FAILED row matches",
		[]string{"OUTBOX", "KIND", "GROUP", "ID", "AGE", "RETRIES", "BYTES", "ERROR"},
		tableRows(found, func(d *admin.DeadLetter) []string { return deadLetterRow(d, counted[d.Outbox]) }))
	if err == nil && more > 0 {
		p.note("%d more; --limit shows them", more)
	}
	return err
}

// readDeadLetters reads at most limit rows, without payload.
func readDeadLetters(ctx context.Context, letters store.DeadLetters, f store.DeadLetterFilter, limit int) ([]admin.DeadLetter, error) {
	if limit == 0 {
		return nil, nil
	}
	rows, err := letters.Failed(ctx, f, limit, false)
	if err != nil {
		return nil, fmt.Errorf("read the FAILED rows of %s: %w", f.Outbox, err)
	}
	shown := make([]admin.DeadLetter, len(rows))
	for i := range rows {
		shown[i] = admin.DeadLetterOf(&rows[i])
	}
	return shown, nil
}

// countsRetries reports whether the retries of a FAILED row are known: its table counts them, or
// the relay's record of the row does.
func countsRetries(l *store.Layout) bool {
	return l.Columns.RetryCount != "" || !l.Stores(store.Failed)
}

// deadLetterRow describes a FAILED row. counted means that its retries are known.
func deadLetterRow(d *admin.DeadLetter, counted bool) []string {
	return []string{
		quoteCell(d.Outbox), quoteCell(d.Kind), groupCell(d.Group), quoteCell(d.ID), ageText(d.FailedAt, time.Now()),
		retryCell(d, counted), strconv.Itoa(d.PayloadSize), oneLine(d.Error),
	}
}

// retryCell returns the retry count of a row, "-" if it is not known.
func retryCell(d *admin.DeadLetter, counted bool) string {
	if !counted {
		return "-"
	}
	return strconv.Itoa(d.RetryCount)
}

// deadLetterShowCommand is `sluicebox deadletters show`.
type deadLetterShowCommand struct {
	configFlag
	Outbox string   `placeholder:"NAME" help:"Outbox of the rows. Default: all are searched."`
	Route  string   `placeholder:"NAME" help:"Route on which the rows FAILED. Default: all are searched."`
	IDs    []string `arg:"" name:"id" help:"Ids of the rows."`
	JSON   bool     `name:"json" help:"Print JSON."`
}

// maxPayloadsInMemory limits the payloads read at once.
const maxPayloadsInMemory = 25

// Run shows FAILED rows in full. An unknown id is an error.
func (c *deadLetterShowCommand) Run(ctx context.Context, p *program) error {
	letters, outboxes, closed, err := p.openDeadLetters(&c.configFlag, c.Outbox, c.Route)
	if err != nil {
		return err
	}
	defer closed()
	shown := []admin.DeadLetter{} // for --json
	missing := c.IDs
	names := make([]string, len(outboxes))
	for i := range outboxes {
		outbox, counted := outboxes[i].Name, countsRetries(&outboxes[i].Layout)
		names[i] = outbox
		for ids := range slices.Chunk(c.IDs, maxPayloadsInMemory) {
			rows, err := letters.Failed(ctx, store.DeadLetterFilter{Outbox: outbox, IDs: ids}, len(ids), true)
			if err != nil {
				return fmt.Errorf("read FAILED rows of %s: %w", outbox, err)
			}
			for i := range rows {
				d := admin.DeadLetterOf(&rows[i])
				missing = slices.DeleteFunc(slices.Clone(missing), func(id string) bool { return id == d.ID })
				if c.JSON {
					shown = append(shown, d)
				} else if err := showDeadLetter(p, &d, counted); err != nil {
					return err
				}
			}
		}
	}

	if c.JSON {
		if err := p.json(admin.DeadLetterList{DeadLetters: shown}); err != nil {
			return err
		}
	}

	if len(missing) > 0 {
		return &commandError{code: exitFailed, problem: fmt.Sprintf("no FAILED row has the id %s in %s", strings.Join(missing, ", "), strings.Join(names, ", "))}
	}
	return nil
}

// showDeadLetter prints a row with its payload. Control characters are escaped; --json
// prints the exact bytes.
func showDeadLetter(p *program, d *admin.DeadLetter, counted bool) error {
	failed := "unknown"
	if !d.FailedAt.IsZero() {
		failed = fmt.Sprintf("%s (%s ago)", d.FailedAt.UTC().Format(time.RFC3339), ageText(d.FailedAt, time.Now()))
	}

	payload := "(not text; --json has it in base64)"
	if d.Bytes == nil {
		text := ""
		if d.Text != nil {
			text = *d.Text
		}
		payload = printableLines(text)
	}

	_, err := fmt.Fprintf(p.stdout, "outbox   %s\nid       %s\nkind     %s\ngroup    %s\nfailed   %s\nretries  %s\nerror    %s\npayload  %d bytes\n%s\n\n",
		quoteCell(d.Outbox), quoteCell(d.ID), quoteCell(d.Kind), groupCell(d.Group), failed, retryCell(d, counted), oneLine(d.Error), d.PayloadSize, payload)
	return err
}

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

// outboxes returns the names of the chosen legs. An action that changes rows must name their
// outbox.
func (f *deadLetterActionFlags) outboxes(cfg *config.Config) ([]string, error) {
	if cfg == nil {
		if f.Outbox == "" {
			return nil, usageError("no outbox named and no configuration found", "name it with --outbox, or the configuration with -c FILE")
		}
		return []string{store.LegName(f.Outbox, f.Route)}, nil
	}
	names, err := outboxNames(cfg, f.Outbox)
	if err == nil && len(names) > 1 && !f.AllOutboxes {
		return nil, usageError("several outboxes: "+strings.Join(names, ", "), "name one with --outbox, or use --all-outboxes")
	}
	if err != nil {
		return nil, err
	}
	legs, err := chosenLegs(cfg, f.Outbox, f.Route)
	names = names[:0]
	for i := range legs {
		names = append(names, legs[i].Name)
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

	return confirmed(ctx, p, f.Yes, ", or --dry-run to count only")
}

// confirmed asks for confirmation, unless yes is set. It returns an error if there is none.
func confirmed(ctx context.Context, p *program, yes bool, other ...string) error {
	if yes {
		return nil
	}
	if !isTerminal(p.stdin) {
		return usageError("stdin is not a terminal; nothing was changed", "use --yes to skip the confirmation"+strings.Join(other, ""))
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
