package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/sluicebox/sluicebox/cmd/internal/app"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
)

// runCommand is `sluicebox run`.
type runCommand struct {
	configFlag
}

// Run relays until the context ends.
func (c *runCommand) Run(ctx context.Context, p *program) error {
	path, found, err := c.file(p)
	if err != nil {
		return err
	}
	load := func() (*config.Config, error) {
		cfg, err := config.Load(path, p.environ)
		if err != nil {
			return nil, err
		}
		return c.choose(cfg)
	}
	cfg, err := load()
	if err != nil {
		return err
	}
	log, level := p.leveledLogger(cfg.Settings.Log)
	if found {
		log.Info("configuration file found", "file", path)
	}
	if cfg.Settings.Mode == shadowMode {
		return p.runShadow(ctx, app.Options{Config: cfg, Log: log, Version: currentVersion().Version}, false)
	}
	reload := app.Reload{Level: level, Signals: p.reloads}
	if path != "-" {
		reload.Load = load
	}
	if p.onReload != nil {
		p.onReload()
	}
	return p.relay.run(ctx, app.Options{
		Config:  cfg,
		Log:     log,
		Version: currentVersion().Version,
		Reload:  reload,
	})
}

// initCommand is `sluicebox init`.
type initCommand struct {
	configFlag
	outboxFlags
	Print bool `help:"Print the SQL without connecting."`
}

// Help is shown under `sluicebox init --help`.
func (*initCommand) Help() string {
	return `Without --outbox and --from-table it creates the relay's own tables and the publication, which
needs a role that may do so. Running it again is harmless.

--outbox LAYOUT prints the statements for an outbox table, and --apply runs them.

--from-table TABLE prints the sections outboxes and sinks for a table that exists. Each key has a
comment: sure (the catalog says so), likely (the names say so), or DECIDE (your answer is needed).
It changes nothing. For example:

  sluicebox init --from-table shop.orders_outbox --source postgres://relay@db/shop`
}

// Run creates the relay's tables and publication, or prints the statements. With --outbox it
// does so for an outbox table, and with --from-table it prints the configuration for one.
func (c *initCommand) Run(ctx context.Context, p *program) error {
	switch {
	case c.Outbox != "":
		return c.runOutbox(ctx, p, c.configFlag)
	case c.FromTable != "":
		return c.runFromTable(ctx, p, c.configFlag, c.Source)
	}
	cfg, err := c.loadAll(p)
	if err != nil {
		return err
	}
	var failed []error
	for _, one := range cfg.Sources() {
		if err := c.runOne(ctx, p, one); err != nil {
			failed = append(failed, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	if len(failed) == 1 {
		return failed[0]
	}
	return errors.Join(failed...)
}

// runOne creates the tables and the publication of one source.
func (c *initCommand) runOne(ctx context.Context, p *program, cfg *config.Config) error {
	name := cfg.SourceName()
	if !c.Print {
		log := p.logger(cfg.Settings.Log)
		if name == "" {
			return p.relay.init(ctx, cfg, log)
		}
		if err := p.relay.init(ctx, cfg, log.With("source", name)); err != nil {
			return fmt.Errorf("source %s: %w", name, err)
		}
		return nil
	}
	script, err := p.relay.script(cfg)
	if err != nil {
		return err
	}
	if name != "" {
		script = "-- source " + name + "\n" + script
	}
	_, err = fmt.Fprintln(p.stdout, strings.TrimRight(script, "\n"))
	return err
}

// configCommands is `sluicebox config …`.
type configCommands struct {
	Check  checkCommand      `cmd:"" help:"Check the configuration and print it in full, without its secrets."`
	Test   configTestCommand `cmd:"" help:"Show to which routes and sinks a row would go, and why."`
	Schema schemaCommand     `cmd:"" help:"Print the JSON Schema of the configuration."`
	Docs   docsCommand       `cmd:"" help:"Print the reference of all keys and layouts, in Markdown."`
}

// checkCommand is `sluicebox config check`.
type checkCommand struct {
	configFlag
	JSON bool `name:"json" help:"Print JSON instead of YAML."`
}

// Run loads the configuration and prints it in full.
func (c *checkCommand) Run(p *program) error {
	cfg, err := c.loadAll(p)
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

// versionCommand is `sluicebox version`.
type versionCommand struct {
	JSON bool `name:"json" help:"Print JSON."`
}

// Run prints the version.
func (c *versionCommand) Run(p *program) error {
	v := currentVersion()
	if c.JSON {
		return json.NewEncoder(p.stdout).Encode(v)
	}
	_, err := fmt.Fprintf(p.stdout, "sluicebox %s (commit %s, %s)\n", v.Version, v.Commit, v.Go)
	return err
}

// versionInfo describes the program.
type versionInfo struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Go      string `json:"go"`
}

// currentVersion returns the version set by the linker, else the version recorded by the
// build.
func currentVersion() versionInfo {
	info, _ := debug.ReadBuildInfo()
	return describe(version, info)
}

func describe(linked string, info *debug.BuildInfo) versionInfo {
	v := versionInfo{Version: linked, Commit: "unknown", Go: runtime.Version()}
	if info == nil {
		info = &debug.BuildInfo{}
	}

	if v.Version == "" {
		v.Version = info.Main.Version
	}
	if v.Version == "" {
		v.Version = "(devel)"
	}

	changed := false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Commit = s.Value
		case "vcs.modified":
			changed = s.Value == "true"
		}
	}

	if changed {
		v.Commit += " with changes"
	}
	return v
}

// shadowMode is the value of the key mode that makes run a shadow.
const shadowMode = "shadow"

// shadowCommand is `sluicebox shadow`.
type shadowCommand struct {
	configFlag
	JSON bool `name:"json" help:"Print the report as JSON."`
}

// Help is shown under `sluicebox shadow --help`.
func (*shadowCommand) Help() string {
	return `It follows the outbox tables through the log, and finds rows that their polling processor delivers
out of order, leaves unfinished, never reaches or delivers twice. It sends nothing, writes nothing and
leaves nothing in the database. Ctrl-C prints the report; until then sluicebox status shows it.
run does the same with mode: shadow.`
}

// Run watches until the context ends, and prints the report.
func (c *shadowCommand) Run(ctx context.Context, p *program) error {
	cfg, err := c.load(p)
	if err != nil {
		return err
	}
	return p.runShadow(ctx, app.Options{Config: cfg, Log: p.logger(cfg.Settings.Log), Version: currentVersion().Version}, c.JSON)
}

// runShadow watches until the context ends, and prints the report.
func (p *program) runShadow(ctx context.Context, o app.Options, asJSON bool) error {
	report, err := p.relay.shadow(ctx, o)
	if report == nil || err != nil {
		return err
	}
	if asJSON {
		return p.json(report)
	}
	_, err = io.WriteString(p.stdout, report.Text())
	return err
}
