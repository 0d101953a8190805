package config

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// LoadDraft is Load for a configuration that is not complete yet, for example without outboxes
// and sinks. Only the section source is checked.
func LoadDraft(path string, environ []string) (*Settings, error) {
	return loadPart(path, environ, func(c checker, s *Settings) { c.checkSource(&s.Source) },
		func(key string) bool { return key == "source" || strings.HasPrefix(key, "source.") })
}

// LoadPart is Load for some keys of a configuration, which may lack all others. It reports
// problems of keys for which needed is true: unknown keys and values of another type, no values
// out of range.
func LoadPart(path string, environ []string, needed func(key string) bool) (*Settings, error) {
	return loadPart(path, environ, func(checker, *Settings) {}, needed)
}

// loadPart decodes a configuration and reports the problems of some keys.
func loadPart(path string, environ []string, check func(checker, *Settings), needed func(key string) bool) (*Settings, error) {
	name, data, err := read(path)
	if err != nil {
		return nil, &Error{Problems: []Problem{{Where: name, Text: fmt.Sprintf("cannot read the configuration file: %s", fileErrorCause(err))}}}
	}
	root, err := document(name, data)
	if err != nil {
		return nil, err
	}
	d := newDecoder(name, environ, readSecretFile)
	settings := d.decodeSettings(root)
	check(checker{d.report}, &settings)
	d.problems = slices.DeleteFunc(d.problems, func(p Problem) bool { return !needed(p.Key) })
	return &settings, d.problems.err()
}

// describeTimeout bounds the description of a table.
const describeTimeout = 30 * time.Second

// Describe describes a table, [schema.]table, of the database; see the stores' Describe. The
// error is a *store.SetupError if the table's name is invalid.
func (u URL) Describe(ctx context.Context, application, table string, wanted func(*store.TableInfo) []string) (*store.TableInfo, error) {
	t, found := u.databaseType()
	if !found {
		return nil, &store.SetupError{Problem: "the source is not a URL of a supported database", Remedy: "write " + DatabaseURLForms}
	}
	k := checker{newReport("")}
	k.checkTable("table", table, u)
	for _, p := range k.problems {
		return nil, &store.SetupError{Problem: "the table " + p.Text}
	}
	o := store.Outbox{Name: table, Table: table}
	if !t.documents { // a collection name may contain dots
		o.Schema, o.Table = splitTable(table)
	}
	if t.file {
		o.Schema = ""
	}
	ctx, cancel := context.WithTimeoutCause(ctx, describeTimeout, fmt.Errorf("no answer within %s", describeTimeout))
	defer cancel()
	info, err := t.describe(ctx, u.Reveal(), application, &o, wanted)
	if setup, ok := errors.AsType[*store.SetupError](err); ok {
		plain := *setup
		plain.Problem = strings.TrimPrefix(plain.Problem, "outbox "+table+": ")
		return nil, &plain
	}
	return info, err
}

// ValidColumn reports whether the configuration can name a column, or a field of documents.
func ValidColumn(name string, documents bool) bool {
	if documents {
		return !badField(name) && !strings.Contains(name, ".")
	}
	return !badIdentifier(name)
}
