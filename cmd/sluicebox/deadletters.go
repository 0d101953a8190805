package main

import (
	"context"
	"errors"
	"fmt"
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

// openDeadLetters loads the configuration and opens the FAILED rows of the chosen
// outboxes.
func (p *program) openDeadLetters(from *configFlag, outbox string) (letters store.DeadLetters, outboxes []store.Outbox, closed func(), err error) {
	cfg, err := from.load(p)
	if err != nil {
		return nil, nil, nil, err
	}
	names, err := outboxNames(cfg, outbox)
	if err != nil {
		return nil, nil, nil, err
	}
	outboxes = slices.DeleteFunc(cfg.Outboxes(), func(o store.Outbox) bool { return !slices.Contains(names, o.Name) })
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
	letters, outboxes, closed, err := p.openDeadLetters(&c.configFlag, c.Outbox)
	if err != nil {
		return err
	}
	defer closed()
	found := []admin.DeadLetter{}
	more := 0
	counted := map[string]bool{} // by outbox
	for i := range outboxes {
		counted[outboxes[i].Name] = outboxes[i].Layout.Columns.RetryCount != ""
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

// deadLetterRow describes a FAILED row. counted means that its layout counts retries.
func deadLetterRow(d *admin.DeadLetter, counted bool) []string {
	return []string{
		quoteCell(d.Outbox), quoteCell(d.Kind), groupCell(d.Group), quoteCell(d.ID), ageText(d.FailedAt, time.Now()),
		retryCell(d, counted), strconv.Itoa(d.PayloadSize), oneLine(d.Error),
	}
}

// retryCell returns the retry count of a row, "-" if its layout has no column for it.
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
	IDs    []string `arg:"" name:"id" help:"Ids of the rows."`
	JSON   bool     `name:"json" help:"Print JSON."`
}

// maxPayloadsInMemory limits the payloads read at once.
const maxPayloadsInMemory = 25

// Run shows FAILED rows in full. An unknown id is an error.
func (c *deadLetterShowCommand) Run(ctx context.Context, p *program) error {
	letters, outboxes, closed, err := p.openDeadLetters(&c.configFlag, c.Outbox)
	if err != nil {
		return err
	}
	defer closed()
	shown := []admin.DeadLetter{} // for --json
	missing := c.IDs
	names := make([]string, len(outboxes))
	for i := range outboxes {
		outbox, counted := outboxes[i].Name, outboxes[i].Layout.Columns.RetryCount != ""
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
		payload = strings.Map(func(r rune) rune {
			if r == '\n' || r == '\t' {
				return r
			}
			return printable(r)
		}, text)
	}

	_, err := fmt.Fprintf(p.stdout, "outbox   %s\nid       %s\nkind     %s\ngroup    %s\nfailed   %s\nretries  %s\nerror    %s\npayload  %d bytes\n%s\n\n",
		quoteCell(d.Outbox), quoteCell(d.ID), quoteCell(d.Kind), groupCell(d.Group), failed, retryCell(d, counted), oneLine(d.Error), d.PayloadSize, payload)
	return err
}
