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
		list, err := client.Routes(ctx, "")
		if err != nil {
			return "", relayFailure(err)
		}
		for _, r := range list.Routes {
			if len(names) == 0 || names[len(names)-1] != r.Outbox {
				names = append(names, r.Outbox)
			}
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
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-10s %s\n", name, oneLine(fmt.Sprintf(format, args...)))
	}
	line("row", "%s of %s", quoteCell(row.ID), quoteCell(row.Outbox))
	line("table", "%s", row.Table)
	if row.Relay != "" {
		line("relay", "%s", row.Relay)
	}
	for i := range row.Legs {
		leg := &row.Legs[i]
		b.WriteString("\n")
		if leg.Route != "" {
			line("route", "%s, %s", leg.Route, leg.Need)
		}
		if leg.Sink != "" {
			line("sink", "%s", sinkCell(leg.Sink))
		}
		line("why", "%s: %s", leg.Cause, leg.Text)
		if leg.Remedy != "" {
			line("do", "%s", leg.Remedy)
		}
		if leg.Kind != "" || leg.Group != (store.Group{}) {
			line("group", "%s, kind %s", groupCell(leg.Group), quoteCell(leg.Kind))
		}
		moment := func(name string, at time.Time) {
			switch {
			case at.IsZero():
			case at.After(now):
				line(name, "%s (in %s)", at.UTC().Format(rowTime), durationText(at.Sub(now)))
			default:
				line(name, "%s (%s ago)", at.UTC().Format(rowTime), ageText(at, now))
			}
		}
		moment("committed", leg.CommittedAt)
		moment("captured", leg.CapturedAt)
		moment("since", leg.Since)
		moment("until", leg.Until)
		switch {
		case leg.Requests > len(leg.Attempts):
			line("attempts", "%d, the latest %d", leg.Requests, len(leg.Attempts))
		case leg.Requests > 0:
			line("attempts", "%d", leg.Requests)
		}
		for _, a := range leg.Attempts {
			line("attempt", "%s %.3fs %s %s", a.StartedAt.Format(rowTime), a.Seconds, a.Class, a.Error)
		}
		if leg.Settled != nil {
			line("settled", "%s", leg.Settled.Status)
			moment("at", leg.Settled.At)
		}
	}
	return b.String()
}

// rowTime has a fixed number of digits, so that lines stay aligned.
const rowTime = "2006-01-02T15:04:05.000Z"
