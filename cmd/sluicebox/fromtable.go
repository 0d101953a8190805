package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/cmd/internal/propose"
	"github.com/sluicebox/sluicebox/store"
)

// fromTableFlags are the flags of `sluicebox init --from-table`.
type fromTableFlags struct {
	FromTable string `placeholder:"[SCHEMA.]TABLE" help:"Print the configuration for a table or collection that exists, with the reason of each guess, instead of the relay's tables. It only reads."`
}

// runFromTable prints the configuration for a table.
func (f *fromTableFlags) runFromTable(ctx context.Context, p *program, file configFlag, source string) error {
	settings, err := file.draft(p, source)
	if err != nil {
		return err
	}
	table, err := p.relay.describe(ctx, settings.Source.URL, f.FromTable)
	if err != nil {
		return err
	}
	proposal, err := propose.Propose(propose.RequestOf(table, settings))
	if err != nil {
		return err
	}
	text, err := proposal.YAML()
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(p.stdout, text)
	return err
}

// draft loads the configuration, which may lack outboxes and sinks. With the URL of a source, no
// configuration is needed.
func (f configFlag) draft(p *program, source string) (*config.Settings, error) {
	environ := p.environ
	if source != "" {
		environ = append(environ[:len(environ):len(environ)], config.SourceVariable+"="+source)
	}
	path, _, err := f.file(p)
	if err != nil && cmp.Or(source, p.variable(config.SourceVariable)) == "" {
		return nil, err
	}
	return config.LoadDraft(path, environ)
}

// describeTable describes a table for a proposal.
func describeTable(ctx context.Context, source config.URL, table string) (*store.TableInfo, error) {
	return source.Describe(ctx, "sluicebox init", table, propose.Columns)
}
