package main

import (
	"context"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// actionsCommand is `sluicebox actions`.
type actionsCommand struct {
	relayFlags
	Limit int  `default:"100" placeholder:"N" help:"The most actions to list. Default: ${default}."`
	JSON  bool `name:"json" help:"Print JSON."`
}

// Validate is called before Run.
func (c *actionsCommand) Validate() error { return checkLimit(c.Limit) }

// Run lists the latest actions of operators.
func (c *actionsCommand) Run(ctx context.Context, p *program) error {
	client, _, err := c.dial(p)
	if err != nil {
		return err
	}
	defer client.Close()
	list, err := client.Actions(ctx, min(c.Limit, store.MaxActions))
	if err != nil {
		return relayFailure(err)
	}
	return p.printList(c.JSON, list, "no operator has acted yet", []string{"AT", "WHO", "FROM", "ACTION", "TARGET", "REASON", "RESULT"},
		tableRows(list, func(a *store.Action) []string {
			return []string{a.At.Format(time.RFC3339), quoteCell(a.Who), quoteCell(a.From), quoteCell(a.What), oneLine(a.Target), oneLine(a.Reason), oneLine(a.Result)}
		}))
}
