package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/store"
)

// configTestCommand is `sluicebox config test`.
type configTestCommand struct {
	configFlag
	Row    string `required:"" placeholder:"JSON" help:"The row: a JSON object of its columns, or of id, kind, type, group, attributes and tags. - reads it from standard input."`
	Outbox string `placeholder:"NAME" help:"The outbox of the row, if there are several."`
	JSON   bool   `name:"json" help:"Print JSON."`
}

// Help is shown under `sluicebox config test --help`.
func (*configTestCommand) Help() string {
	return `It connects to nothing. For example:

  sluicebox config test --row '{"type": "OrderPaid", "tags": ["order_id=5"]}'

Exit codes: 0 the row has a destination, or completes without one (unmatched: complete); 1 no route
matches it; 64 the row is invalid; 78 the configuration is invalid.`
}

// Run prints where a row would go.
func (c *configTestCommand) Run(p *program) error {
	cfg, err := c.load(p)
	if err != nil {
		return err
	}
	i, err := c.index(cfg)
	if err != nil {
		return err
	}
	row := []byte(c.Row)
	if c.Row == "-" {
		if row, err = io.ReadAll(p.stdin); err != nil {
			return fmt.Errorf("read the row from standard input: %w", err)
		}
	}
	test, err := cfg.TestRow(i, row)
	if err != nil {
		return usageError("--row: "+err.Error(), "see sluicebox config test --help")
	}
	if err := c.print(p, test); err != nil {
		return err
	}
	if test.Unmatched != "" && test.Unmatched != "complete" {
		return &commandError{code: exitFailed, problem: "no route of " + test.Item.Outbox + " matches the row: " + unmatchedText(test.Unmatched),
			remedy: "change the conditions of a route, add a route without conditions at the end, or set unmatched: complete"}
	}
	return nil
}

// index returns the position of the outbox.
func (c *configTestCommand) index(cfg *config.Config) (int, error) {
	names, err := outboxNames(cfg, c.Outbox)
	if err == nil && len(names) > 1 {
		err = usageError("several outboxes: "+strings.Join(names, ", "), "name one with --outbox")
	}
	if err != nil {
		return 0, err
	}
	return slices.IndexFunc(cfg.Settings.Outboxes, func(o config.Outbox) bool { return o.Name == names[0] }), nil
}

// unmatchedText says what becomes of a row that no route matches.
func unmatchedText(unmatched string) string {
	switch unmatched {
	case "complete":
		return "it is COMPLETED without a delivery (unmatched: complete)"
	case "hold":
		return "it waits (unmatched: hold)"
	}
	return "it is FAILED (unmatched: fail)"
}

func (c *configTestCommand) print(p *program, test *config.RowTest) error {
	it := test.Item
	if c.JSON {
		return p.json(struct {
			Outbox       string                   `json:"outbox"`
			Kind         string                   `json:"kind"`
			Group        store.Group              `json:"group"`
			Attributes   store.Attributes         `json:"attributes"`
			Destinations []config.DestinationTest `json:"destinations"`
			Unmatched    string                   `json:"unmatched,omitempty"`
		}{it.Outbox, it.OwnKind(), it.Group, append(store.Attributes{}, it.Attributes...), test.Destinations, test.Unmatched})
	}
	text := fmt.Sprintf("outbox %s, kind %s, group %s", quoteCell(it.Outbox), quoteCell(it.OwnKind()), groupCell(it.Group))
	for _, a := range it.Attributes {
		text += fmt.Sprintf("\n  %s: %s", oneLine(a.Name), oneLine(a.Value))
	}
	if _, err := fmt.Fprintf(p.stdout, "%s\n\n", text); err != nil {
		return err
	}
	err := printTable(p.stdout, []string{"ROUTE", "SINK", "NEED", "MATCHES", "ENDPOINT", "REASON"}, tableRows(test.Destinations, func(d *config.DestinationTest) []string {
		route, need, matches, endpoint := "-", "required", "no", "-"
		if d.Route != "" {
			route = d.Route
		}
		if d.Optional {
			need = "optional"
		}
		if d.Matched {
			matches = "yes"
		}
		if d.Endpoint != "" {
			endpoint = oneLine(d.Endpoint)
		}
		return []string{route, d.Sink, need, matches, endpoint, oneLine(d.Reason)}
	}))
	if err == nil && test.Unmatched == "complete" {
		_, err = fmt.Fprintf(p.stdout, "\nNo route matches the row: %s.\n", unmatchedText(test.Unmatched))
	}
	return err
}
