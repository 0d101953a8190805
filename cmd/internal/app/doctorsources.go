package app

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/store"
)

// parallelDiagnoses is the number of sources that Doctor checks at a time. Each takes a few sessions, and
// a server that does not answer takes doctorTimeout.
const parallelDiagnoses = 16

// checkSources checks sinks and addresses once, because the sources of a process share them, and the
// database of each source. The findings of a source have its name, and are in the order of the configuration.
func (d *doctor) checkSources(ctx context.Context) {
	all := d.cfg.Sources()
	d.cfg = withAllOutboxes(all)
	d.addOK(PartConfiguration, "sources", strconv.Itoa(len(all)))
	d.reportOutboxes()
	d.adviseSameDatabase(all)
	d.checkSinks(ctx)
	d.checkAdminAddress(ctx)

	servers := shareServers(all)
	found := make([][]Finding, len(servers)+len(all))
	var checks errgroup.Group
	checks.SetLimit(parallelDiagnoses)
	for i, cfg := range all {
		checks.Go(func() error {
			of := &doctor{cfg: cfg, version: d.version}
			of.checkDatabase(ctx)
			for j := range of.findings {
				of.findings[j].Source = cfg.SourceName()
			}
			found[len(servers)+i] = of.findings
			return nil
		})
	}
	for i, sources := range servers {
		checks.Go(func() error {
			of := &doctor{cfg: d.cfg, version: d.version}
			of.checkCapacity(ctx, sources)
			found[i] = of.findings
			return nil
		})
	}
	_ = checks.Wait() // they return no error
	d.findings = append(d.findings, slices.Concat(found...)...)
}

// withAllOutboxes returns the configuration of the first source with the outboxes of all sources, for the
// checks of shared parts. Only the configurations of the sources have the defaults of outboxes.
func withAllOutboxes(all []*config.Config) *config.Config {
	union := *all[0]
	union.Settings.Outboxes = slices.Clone(union.Settings.Outboxes)
	for _, cfg := range all[1:] {
		for _, o := range cfg.Settings.Outboxes {
			if !slices.ContainsFunc(union.Settings.Outboxes, func(known config.Outbox) bool { return known.Name == o.Name }) {
				union.Settings.Outboxes = append(union.Settings.Outboxes, o)
			}
		}
	}
	return &union
}

// adviseSameDatabase reports sources that read the same outbox of the same database: each of them would
// deliver its rows.
func (d *doctor) adviseSameDatabase(all []*config.Config) {
	first := map[string]string{}
	for _, cfg := range all {
		at, name := databaseOf(cfg), cfg.SourceName()
		for i := range cfg.Settings.Outboxes {
			key := at + "\x00" + cfg.Settings.Outboxes[i].Name
			other, known := first[key]
			if !known {
				first[key] = name
				continue
			}
			d.add(PartConfiguration, store.Finding{
				Grade: store.GradeAdvice, Subject: "sources",
				Text:   fmt.Sprintf("%s and %s read outbox %s of the same database: both send its rows", other, name, cfg.Settings.Outboxes[i].Name),
				Remedy: "remove one of them, or give each its own outboxes",
			}, false)
		}
	}
}

// capacityChecker is a store whose server limits its relays together.
type capacityChecker interface {
	DiagnoseCapacity(ctx context.Context, relays []string) ([]store.Finding, error)
}

// shareServers returns the sources of each server that several of them read, in the order of the servers.
func shareServers(all []*config.Config) (servers [][]*config.Config) {
	byServer := map[string][]*config.Config{}
	for _, cfg := range all {
		if server := serverOf(cfg); server != "" {
			byServer[server] = append(byServer[server], cfg)
		}
	}
	for _, server := range slices.Sorted(maps.Keys(byServer)) {
		if len(byServer[server]) > 1 {
			servers = append(servers, byServer[server])
		}
	}
	return servers
}

// checkCapacity checks whether a server has room for all sources that read it: the check of one source
// compares only what that source needs. A server that cannot be asked is a finding of its sources.
func (d *doctor) checkCapacity(ctx context.Context, sources []*config.Config) {
	var names []string
	for _, cfg := range sources {
		if o, err := cfg.Relay(""); err == nil {
			names = append(names, o.Name)
		}
	}
	for _, f := range capacity(ctx, sources[0], names) {
		f.Subject = serverOf(sources[0])
		d.add(PartDatabase, f, false)
	}
}

// capacity asks the server of a source.
func capacity(ctx context.Context, cfg *config.Config, relays []string) []store.Finding {
	db, err := openDatabase(cfg)
	if err != nil {
		return nil
	}
	defer db.store.Close()
	by, limits := db.store.Tables.(capacityChecker)
	if !limits {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, doctorTimeout, errDoctorTimeout)
	defer cancel()
	found, err := by.DiagnoseCapacity(ctx, relays)
	if err != nil {
		return nil
	}
	return found
}

// databaseOf identifies the database of a source by its URL, without user and parameters.
func databaseOf(cfg *config.Config) string {
	raw := cfg.Settings.Source.URL.Reveal()
	u, err := url.Parse(raw)
	if err != nil {
		return raw // of several hosts
	}
	return strings.ToLower(u.Scheme) + "://" + u.Host + u.Path
}

// serverOf identifies the server of a source by its URL. A URL with several hosts, or with a socket, has "".
func serverOf(cfg *config.Config) string {
	u, err := url.Parse(cfg.Settings.Source.URL.Reveal())
	if err != nil || u.Host == "" {
		return ""
	}
	return strings.ToLower(u.Scheme) + "://" + u.Host
}
