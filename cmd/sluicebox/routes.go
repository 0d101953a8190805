package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/checkpoint/replay"
	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/dispatch/route"
)

// routeCommands is `sluicebox routes …`.
type routeCommands struct {
	List   routeListCommand   `cmd:"" help:"List the routes of the outboxes, with their state and their waiting rows."`
	Lag    routeLagCommand    `cmd:"" help:"Show how far each route is behind: rows, time and retained log."`
	Pause  routePauseCommand  `cmd:"" help:"Stop a whole route, or an outbox without routes, until it is resumed, also across restarts."`
	Resume routeResumeCommand `cmd:"" help:"Resume a paused route."`
	Reset  routeResetCommand  `cmd:"" help:"Send delivered rows to a route again, from a checkpoint or a time, or skip what waits for it."`
	Rename routeRenameCommand `cmd:"" help:"Move what waits for a route that was renamed in the configuration. No relay may run."`
	Drop   routeDropCommand   `cmd:"" help:"Give up what waits for a route that was removed from the configuration. No relay may run."`
}

// routeListFlags choose the routes to list.
type routeListFlags struct {
	relayFlags
	Outbox string `placeholder:"NAME" help:"Routes of one outbox."`
	JSON   bool   `name:"json" help:"Print JSON."`
}

// print lists the routes of the relay.
func (f *routeListFlags) print(ctx context.Context, p *program, header []string, row func(*admin.Route) []string) error {
	client, _, err := f.dial(p)
	if err != nil {
		return err
	}
	defer client.Close()
	list, err := client.Routes(ctx, f.Outbox)
	if err != nil {
		return relayFailure(err)
	}
	return p.printList(f.JSON, list, "no route", header, tableRows(list.Routes, row))
}

// routeListCommand is `sluicebox routes list`.
type routeListCommand struct{ routeListFlags }

// Run lists the routes.
func (c *routeListCommand) Run(ctx context.Context, p *program) error {
	header := []string{"OUTBOX", "ROUTE", "SINK", "NEED", "STATE", "ROWS", "SPILLED", "FAILED", "LANES HELD", "DELIVERED", "SINCE", "REASON"}
	return c.print(ctx, p, header, func(r *admin.Route) []string {
		delivered := "-"
		if r.DeliveredAt != nil {
			delivered = ageText(*r.DeliveredAt, time.Now()) + " ago"
		}
		return []string{
			quoteCell(r.Outbox), routeCell(r.Route), sinkCell(r.Sink), r.Need, r.State, strconv.Itoa(r.Rows), strconv.Itoa(r.Spilled),
			failedCell(r), strconv.Itoa(r.BlockedLanes + r.PausedLanes), delivered, ageText(r.Since, time.Now()), oneLine(r.Reason),
		}
	})
}

// failedCell returns the number of FAILED rows of a route, "-" if it is not known.
func failedCell(r *admin.Route) string {
	if r.Failed == nil {
		return "-"
	}
	return strconv.Itoa(*r.Failed)
}

// sinkCell returns the name of a sink. Rows that no route matches have none, and the cell says what
// becomes of them.
func sinkCell(name string) string {
	action, unmatched := strings.CutPrefix(name, route.Unmatched+":")
	if !unmatched {
		return quoteCell(name)
	}
	switch sluicebox.Unmatched(action) {
	case sluicebox.UnmatchedComplete:
		return "none (COMPLETED)"
	case sluicebox.UnmatchedHold:
		return "none (wait)"
	}
	return "none (FAILED)"
}

// routeCell returns the name of a route, "-" for an outbox without routes.
func routeCell(route string) string {
	if route == "" {
		return "-"
	}
	return quoteCell(route)
}

// routeLagCommand is `sluicebox routes lag`.
type routeLagCommand struct{ routeListFlags }

// Run shows the lag of the routes.
func (c *routeLagCommand) Run(ctx context.Context, p *program) error {
	return c.print(ctx, p, []string{"OUTBOX", "ROUTE", "ROWS", "TIME", "LOG"}, func(r *admin.Route) []string {
		age, log := "-", "-"
		if r.Lag.Seconds != nil {
			age = lagDurationText(*r.Lag.Seconds)
		}
		if r.Lag.LogBytes != nil {
			log = sizeText(*r.Lag.LogBytes)
		}
		return []string{quoteCell(r.Outbox), routeCell(r.Route), strconv.Itoa(r.Lag.Rows), age, log}
	})
}

// routeFlags name one route.
type routeFlags struct {
	relayFlags
	Outbox string `placeholder:"NAME" help:"The outbox of the route. Optional if only one route matches."`
	Route  string `placeholder:"NAME" help:"The route. Omit it for an outbox without routes."`
	JSON   bool   `name:"json" help:"Print the resulting route as JSON."`
}

// find returns the route that the flags name.
func (f *routeFlags) find(ctx context.Context, p *program, client *admin.Client) (name sluicebox.RouteName, err error) {
	if f.Outbox != "" {
		return sluicebox.RouteName{Outbox: f.Outbox, Route: f.Route}, nil // the relay checks it
	}
	list, err := client.Routes(ctx, "")
	if err != nil {
		return name, relayFailure(err)
	}
	var fit, all []string
	for _, r := range list.Routes {
		all = append(all, r.String())
		if f.Route == "" || r.Route == f.Route {
			fit, name = append(fit, r.String()), r.RouteName
		}
	}
	switch len(fit) {
	case 1:
		return name, nil
	case 0:
		return name, usageError(fmt.Sprintf("no outbox has a route %q; nothing was done", f.Route), "the routes are "+strings.Join(all, ", "))
	}
	return name, usageError(fmt.Sprintf("%d routes match; nothing was done", len(fit)), "choose one with --outbox and --route: "+strings.Join(fit, ", "))
}

// act runs an action on the route and prints its new state.
func (f *routeFlags) act(ctx context.Context, p *program, done string, do func(*admin.Client, sluicebox.RouteName) (admin.Route, error)) error {
	client, _, err := f.dial(p)
	if err != nil {
		return err
	}
	defer client.Close()
	name, err := f.find(ctx, p, client)
	if err != nil {
		return err
	}
	route, err := do(client, name)
	if err != nil {
		return routeFailure(err)
	}
	if f.JSON {
		return p.json(route)
	}
	_, err = fmt.Fprintf(p.stdout, "route %s: %s; %s wait\n", oneLine(name.String()), done, rowsText(route.Lag.Rows))
	return err
}

// routeFailure returns the error of an action on a route.
func routeFailure(err error) error {
	var refused *admin.APIError
	if errors.As(err, &refused) && refused.Status == http.StatusConflict {
		return &commandError{code: exitFailed, problem: refused.Text, remedy: "sluicebox routes list shows the routes and their states"}
	}
	return relayFailure(err)
}

// routePauseCommand is `sluicebox routes pause`.
type routePauseCommand struct {
	routeFlags
	Reason string `required:"" placeholder:"TEXT" help:"Reason, recorded for other operators."`
}

// Run pauses a route.
func (c *routePauseCommand) Run(ctx context.Context, p *program) error {
	return c.act(ctx, p, "paused", func(client *admin.Client, route sluicebox.RouteName) (admin.Route, error) {
		return client.PauseRoute(ctx, route, c.Reason)
	})
}

// routeResumeCommand is `sluicebox routes resume`.
type routeResumeCommand struct{ routeFlags }

// Run ends a pause.
func (c *routeResumeCommand) Run(ctx context.Context, p *program) error {
	return c.act(ctx, p, "resumed", func(client *admin.Client, route sluicebox.RouteName) (admin.Route, error) {
		return client.ResumeRoute(ctx, route)
	})
}

// routeResetCommand is `sluicebox routes reset`.
type routeResetCommand struct {
	relayFlags
	Outbox string `placeholder:"NAME" help:"The outbox of the route. Optional if only one route matches."`
	Route  string `placeholder:"NAME" help:"The route. Omit it for an outbox without routes."`
	To     string `required:"" placeholder:"WHERE" help:"now, beginning, the name of a checkpoint (sluicebox checkpoint list), or a time: 2026-01-31T15:04:05Z, or 2h for two hours ago."`
	Reason string `placeholder:"TEXT" help:"With --to now: reason, recorded as the error of the rows."`
	Yes    bool   `short:"y" help:"Do not ask for confirmation."`
	JSON   bool   `name:"json" help:"Print JSON."`
}

// toNow skips what waits; toBeginning is before every row.
const toNow, toBeginning = "now", "beginning"

// Help is shown under `sluicebox routes reset --help`.
func (*routeResetCommand) Help() string {
	return "To a checkpoint, a time or the beginning: starts a replay to this route alone, and prints its id. To now: every row that waits for the route becomes FAILED; deadletters requeue sends it after all."
}

// Validate is called before Run.
func (c *routeResetCommand) Validate() error {
	if (c.To == toNow) != (c.Reason != "") {
		return errors.New("--to now needs --reason, and nothing else takes one")
	}
	return nil
}

// Run resets a route.
func (c *routeResetCommand) Run(ctx context.Context, p *program) error {
	client, _, err := c.dial(p)
	if err != nil {
		return err
	}
	defer client.Close()
	name, err := (&routeFlags{Outbox: c.Outbox, Route: c.Route}).find(ctx, p, client)
	if err != nil {
		return err
	}
	if c.To == toNow {
		return c.skip(ctx, p, client, name)
	}
	p.note("route %s: delivered rows will be sent to it again.", oneLine(name.String()))
	if err := confirmed(ctx, p, c.Yes); err != nil {
		return err
	}
	id, err := client.StartReplay(ctx, c.spec(name))
	if err != nil {
		return requestFailure(err)
	}
	if c.JSON {
		return p.json(admin.ReplayStarted{ID: id})
	}
	_, err = fmt.Fprintf(p.stdout, "route %s: replay %s started; sluicebox replay list shows it\n", oneLine(name.String()), id)
	return err
}

// spec returns the replay to the route.
func (c *routeResetCommand) spec(name sluicebox.RouteName) *replay.Spec {
	spec := &replay.Spec{Outboxes: []string{name.Leg()}}
	var at timeFlag
	switch {
	case c.To == toBeginning:
		spec.Since = time.Unix(0, 0).UTC()
	case at.UnmarshalText([]byte(c.To)) == nil:
		spec.Since = at.UTC()
	default:
		spec.From = c.To
	}
	return spec
}

// skip passes over what waits for the route.
func (c *routeResetCommand) skip(ctx context.Context, p *program, client *admin.Client, name sluicebox.RouteName) error {
	p.note("route %s: every row that waits for it becomes FAILED.", oneLine(name.String()))
	if err := confirmed(ctx, p, c.Yes); err != nil {
		return err
	}
	n, err := client.SkipRoute(ctx, name, c.Reason)
	if err != nil {
		return routeFailure(err)
	}
	if c.JSON {
		return p.json(admin.SkippedRows{Rows: n})
	}
	_, err = fmt.Fprintf(p.stdout, "route %s: %s skipped in the background; sluicebox routes list shows the rest\n", oneLine(name.String()), rowsText(n))
	return err
}
