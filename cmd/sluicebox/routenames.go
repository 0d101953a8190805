package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/store"
)

// strayFlags name a route in the relay's tables that the configuration does not name.
type strayFlags struct {
	configFlag
	Outbox   string `required:"" placeholder:"NAME" help:"The outbox of the route."`
	Unrouted bool   `help:"What waits from the time when the outbox had no routes."`
}

// names returns the n names of the command, after "" for --unrouted.
func (f *strayFlags) names(names []string, n int) ([]string, error) {
	if f.Unrouted {
		names = append([]string{""}, names...)
	}
	if len(names) != n || slices.Contains(names[n-1:], "") && !f.Unrouted {
		return nil, usageError(fmt.Sprintf("want %d names of routes, got %d", n, len(names)), "--unrouted stands for the first one")
	}
	return names, nil
}

// open loads the configuration, and returns it with the n names of the command and the leg of the first.
func (f *strayFlags) open(ctx context.Context, p *program, given []string, n int) (cfg *config.Config, names []string, stray *store.StrayLeg, err error) {
	if names, err = f.names(given, n); err != nil {
		return nil, nil, nil, err
	}
	if cfg, err = f.load(p); err != nil {
		return nil, nil, nil, err
	}
	stray, err = f.find(ctx, p, cfg, names[0])
	return cfg, names, stray, err
}

// find returns the leg, or an error that names those that there are.
func (f *strayFlags) find(ctx context.Context, p *program, cfg *config.Config, route string) (*store.StrayLeg, error) {
	strays, err := p.relay.strayLegs(ctx, cfg)
	if err != nil {
		return nil, err
	}
	var all []string
	for i := range strays {
		if all = append(all, strays[i].Leg()); strays[i].Outbox == f.Outbox && strays[i].Route == route {
			return &strays[i], nil
		}
	}
	remedy := "every leg in the relay's tables is configured"
	if len(all) > 0 {
		remedy = "not configured are " + strings.Join(all, ", ")
	}
	return nil, &commandError{code: exitFailed, problem: fmt.Sprintf("no rows and no position of %s, or the configuration names it; nothing was done", store.LegName(f.Outbox, route)), remedy: remedy}
}

// routeRenameCommand is `sluicebox routes rename`.
type routeRenameCommand struct {
	strayFlags
	Names []string `arg:"" name:"name" help:"The old and the new name of the route; with --unrouted only the new one."`
}

// Help is shown under `sluicebox routes rename --help`.
func (*routeRenameCommand) Help() string {
	return "Rename the route in the configuration first, and stop the relay: it refuses to start until this command has moved what waits for the old name."
}

// Run renames a route in the relay's tables.
func (c *routeRenameCommand) Run(ctx context.Context, p *program) error {
	cfg, names, stray, err := c.open(ctx, p, c.Names, 2)
	if err != nil {
		return err
	}
	if err := p.relay.renameLeg(ctx, cfg, c.Outbox, names[0], names[1]); err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.stdout, "route %s is now %s: moved %s, %d FAILED, %d groups on hold\n",
		stray.Leg(), store.LegName(c.Outbox, names[1]), rowsText(stray.Spilled), stray.Failed, stray.Holds)
	return err
}

// routeDropCommand is `sluicebox routes drop`.
type routeDropCommand struct {
	strayFlags
	Yes   bool     `short:"y" help:"Do not ask for confirmation."`
	Names []string `arg:"" optional:"" name:"name" help:"The name of the route; none with --unrouted."`
}

// Help is shown under `sluicebox routes drop --help`.
func (*routeDropCommand) Help() string {
	return "Remove the route from the configuration first, and stop the relay. What waits for the route is not delivered to it."
}

// Run drops a route from the relay's tables.
func (c *routeDropCommand) Run(ctx context.Context, p *program) error {
	cfg, names, stray, err := c.open(ctx, p, c.Names, 1)
	if err != nil {
		return err
	}
	p.note("%s: %s and %s will NOT be delivered to it.", stray.Leg(), rowsText(stray.Spilled), failedRowsText(stray.Failed))
	if err := confirmed(ctx, p, c.Yes); err != nil {
		return err
	}
	settled, err := p.relay.dropLeg(ctx, cfg, c.Outbox, names[0])
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.stdout, "route %s dropped; %s settled that only it held\n", stray.Leg(), rowsText(settled))
	return err
}
