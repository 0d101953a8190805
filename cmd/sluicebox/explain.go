package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/store"
)

// explainCommand is `sluicebox explain`.
type explainCommand struct {
	relayFlags
	Outbox string `placeholder:"NAME" help:"The row's outbox. Optional if only one is configured."`
	ID     string `arg:"" name:"id" help:"Id of the row."`
	JSON   bool   `name:"json" help:"Print JSON."`
}

// Run asks the relay for a row. Without a relay it reads the database.
func (c *explainCommand) Run(ctx context.Context, p *program) error {
	client, cfg, err := c.dial(p)
	if err != nil {
		return err
	}
	defer client.Close()
	outbox, err := c.outbox(ctx, client, cfg)
	if err != nil {
		return err
	}
	row, err := client.Row(ctx, outbox, c.ID)
	if err != nil && cfg != nil && noRelay(err) {
		row, err = explainStored(ctx, p, cfg, outbox, c.ID)
	}
	if err != nil {
		return relayFailure(err)
	}

	if c.SourceName != "" { // the commands need it too
		for i := range row.Legs {
			for j := range row.Legs[i].Commands {
				row.Legs[i].Commands[j] += " --source-name " + c.SourceName
			}
		}
	}
	if c.JSON {
		err = p.json(row)
	} else {
		_, err = fmt.Fprint(p.stdout, rowText(&row, time.Now()))
	}
	if err == nil && row.Cause == admin.CauseUnknown {
		return &commandError{code: exitFailed, problem: fmt.Sprintf("no row %s in outbox %s", quoteCell(row.ID), quoteCell(row.Outbox))}
	}
	return err
}

// outbox returns the named outbox, or the only one.
func (c *explainCommand) outbox(ctx context.Context, client *admin.Client, cfg *config.Config) (string, error) {
	var names []string
	switch {
	case cfg != nil:
		var err error
		if names, err = outboxNames(cfg, c.Outbox); err != nil {
			return "", err
		}
	case c.Outbox != "":
		return c.Outbox, nil
	default:
		var err error
		if names, err = client.Outboxes(ctx); err != nil {
			return "", relayFailure(err)
		}
	}
	if len(names) != 1 {
		return "", usageError("several outboxes are configured", "name one with --outbox: "+strings.Join(names, ", "))
	}
	return names[0], nil
}

// noRelay reports whether no relay answers, or one whose database is not open yet.
func noRelay(err error) bool {
	var unreachable *admin.UnreachableError
	var refused *admin.APIError
	return errors.As(err, &unreachable) || errors.As(err, &refused) && refused.Status == http.StatusServiceUnavailable
}

// explainStored reads what the database says of a row.
func explainStored(ctx context.Context, p *program, cfg *config.Config, outbox, id string) (admin.Row, error) {
	rep, err := p.relay.explain(ctx, cfg, outbox, id)
	if err != nil {
		return admin.Row{}, err
	}
	return admin.RowOf(rep, time.Now()), nil
}

// rowText describes a row.
func rowText(row *admin.Row, now time.Time) string {
	t := rowWriter{now: now}
	t.line("row", "%s of %s", quoteCell(row.ID), quoteCell(row.Outbox))
	t.line("table", "%s", row.Table)
	if row.Relay != "" {
		t.line("relay", "%s", row.Relay)
	}
	for i := range row.Legs {
		t.text.WriteString("\n")
		t.leg(&row.Legs[i])
	}
	return t.text.String()
}

// rowWriter writes the text about a row, a line for each fact.
type rowWriter struct {
	text strings.Builder
	now  time.Time
}

func (t *rowWriter) line(name, format string, args ...any) {
	fmt.Fprintf(&t.text, "%-10s %s\n", name, oneLine(fmt.Sprintf(format, args...)))
}

// moment writes a time and how far away it is, and nothing for the zero time.
func (t *rowWriter) moment(name string, at time.Time) {
	switch {
	case at.IsZero():
	case at.After(t.now):
		t.line(name, "%s (in %s)", at.UTC().Format(rowTime), durationText(at.Sub(t.now)))
	default:
		t.line(name, "%s (%s ago)", at.UTC().Format(rowTime), ageText(at, t.now))
	}
}

func (t *rowWriter) leg(leg *admin.RowLeg) {
	if leg.Route != "" {
		t.line("route", "%s, %s", leg.Route, leg.Need)
	}
	if leg.Sink != "" {
		t.line("sink", "%s", sinkCell(leg.Sink))
	}
	t.line("why", "%s: %s", leg.Cause, leg.Text)
	if leg.Error != "" {
		t.line("failure", "%s", leg.Error)
	}
	if leg.Reason != "" {
		t.line("reason", "%s", leg.Reason)
	}
	if leg.Remedy != "" {
		t.line("do", "%s", leg.Remedy)
	}
	for _, command := range leg.Commands {
		t.line("", "%s", command)
	}
	if leg.Kind != "" || leg.Group != (store.Group{}) {
		t.line("group", "%s, kind %s", groupCell(leg.Group), quoteCell(leg.Kind))
	}
	t.moment("committed", leg.CommittedAt)
	t.moment("captured", leg.CapturedAt)
	t.moment("since", leg.Since)
	t.moment("until", leg.Until)
	switch {
	case leg.Requests > len(leg.Attempts):
		t.line("attempts", "%d, the latest %d", leg.Requests, len(leg.Attempts))
	case leg.Requests > 0:
		t.line("attempts", "%d", leg.Requests)
	}
	for _, a := range leg.Attempts {
		t.line("attempt", "%s %.3fs %s %s", a.StartedAt.Format(rowTime), a.Seconds, a.Class, a.Error)
	}
	if leg.Settled != nil {
		t.line("settled", "%s", leg.Settled.Status)
		t.moment("at", leg.Settled.At)
	}
}

// rowTime has a fixed number of digits, so that lines stay aligned.
const rowTime = "2006-01-02T15:04:05.000Z"
