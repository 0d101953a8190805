package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/sluicebox/sluicebox/cmd/internal/admin"
)

// reloadCommand is `sluicebox reload`.
type reloadCommand struct {
	relayFlags
	JSON bool `name:"json" help:"Print JSON."`
}

// Help is shown under `sluicebox reload --help`.
func (*reloadCommand) Help() string {
	return `The relay reads the file and the secrets that it was started with, as it does after SIGHUP. All
changes are applied, or none. Keys that need a restart are named.`
}

// Run asks the relay, and prints the keys that changed.
func (c *reloadCommand) Run(ctx context.Context, p *program) error {
	client, _, err := c.dial(p)
	if err != nil {
		return err
	}
	defer client.Close()
	done, err := client.Reload(ctx)
	var refused *admin.APIError
	switch {
	case errors.As(err, &refused) && refused.Status == http.StatusUnprocessableEntity:
		return &commandError{code: exitConfig, problem: "not reloaded: " + refused.Text}
	case err != nil:
		return relayFailure(err)
	case c.JSON:
		return p.json(done)
	}
	text := "unchanged"
	if len(done.Changed) > 0 {
		text = "reloaded: " + strings.Join(done.Changed, ", ")
	}
	if done.Restarted {
		text += fmt.Sprintf("\nnew session after %.1fs", done.Took)
	}
	_, err = fmt.Fprintln(p.stdout, text)
	return err
}
