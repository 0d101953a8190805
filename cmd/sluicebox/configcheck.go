package main

import "github.com/sluicebox/sluicebox/cmd/internal/config"

// configCommands is `sluicebox config …`.
type configCommands struct {
	Check  checkCommand  `cmd:"" help:"Check the configuration and print it in full, without its secrets."`
	Schema schemaCommand `cmd:"" help:"Print the JSON Schema of the configuration."`
	Docs   docsCommand   `cmd:"" help:"Print the reference of all keys and layouts, in Markdown."`
}

// checkCommand is `sluicebox config check`.
type checkCommand struct {
	configFlag
	JSON bool `name:"json" help:"Print JSON instead of YAML."`
}

// Run loads the configuration and prints it in full.
func (c *checkCommand) Run(p *program) error {
	cfg, err := c.load(p)
	if err != nil {
		return err
	}

	if err := cfg.ReferenceErrors(); err != nil {
		return err
	}
	print := cfg.YAML
	if c.JSON {
		print = cfg.JSON
	}

	text, err := print()
	if err != nil {
		return err
	}

	_, err = p.stdout.Write(text)
	return err
}

// schemaCommand is `sluicebox config schema`.
type schemaCommand struct{}

// Run prints the schema.
func (c *schemaCommand) Run(p *program) error {
	_, err := p.stdout.Write(config.Schema())
	return err
}

// docsCommand is `sluicebox config docs`.
type docsCommand struct{}

// Run prints the reference.
func (c *docsCommand) Run(p *program) error {
	_, err := p.stdout.Write(config.Page())
	return err
}
