package app

import (
	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
)

// userAgent is the User-Agent of requests to sinks without one of their own.
func userAgent(version string) string { return "sluicebox/" + version }

// database is the configured database for a command that runs no relay.
type database struct {
	store     ledger.Store
	newStream func() (capture.Stream, error)
}

// openDatabase returns the database of a configuration, without a connection. Close its
// store when done.
func openDatabase(cfg *config.Config) (*database, error) {
	o, err := cfg.Relay("")
	if err != nil {
		return nil, err
	}
	st, err := o.Database.Store(store.Settings{Name: o.Name, Outboxes: cfg.Outboxes(), TakeoverTimeout: o.TakeoverTimeout})
	if err != nil {
		return nil, err
	}
	return &database{store: st, newStream: func() (capture.Stream, error) {
		return o.Database.Stream(capture.Settings{Name: o.Name, Outboxes: cfg.Outboxes()})
	}}, nil
}
