package app

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
)

// StrayLegs returns the legs in the relay's tables that the configuration does not name.
func StrayLegs(ctx context.Context, cfg *config.Config) ([]store.StrayLeg, error) {
	db, err := openDatabase(cfg)
	if err != nil {
		return nil, err
	}
	defer db.store.Close()
	return db.store.StrayLegs(ctx)
}

// RenameLeg gives a leg in the relay's tables another name; see ledger.Store.
func RenameLeg(ctx context.Context, cfg *config.Config, outbox, from, to string) error {
	return asLeader(ctx, cfg, func(st *ledger.Store, epoch store.Epoch) error {
		return st.RenameLeg(ctx, epoch, outbox, from, to)
	})
}

// DropLeg deletes a leg in the relay's tables, and returns the number of rows that it settled;
// see ledger.Store.
func DropLeg(ctx context.Context, cfg *config.Config, outbox, route string) (settled int, err error) {
	err = asLeader(ctx, cfg, func(st *ledger.Store, epoch store.Epoch) (err error) {
		settled, err = st.DropLeg(ctx, epoch, outbox, route)
		return err
	})
	return settled, err
}

// asLeader changes the relay's tables while no relay of its name leads.
func asLeader(ctx context.Context, cfg *config.Config, change func(*ledger.Store, store.Epoch) error) error {
	db, err := openDatabase(cfg)
	if err != nil {
		return err
	}
	defer db.store.Close()
	lock, err := db.store.Lock(ctx)
	var held *store.LockedError
	if errors.As(err, &held) {
		return &store.SetupError{
			Problem: fmt.Sprintf("a relay named %s runs: %s", cfg.Settings.Name, err),
			Remedy:  "stop every relay of this name, and repeat the command",
		}
	}
	if err != nil {
		return err
	}
	defer lock.Release()
	if err := lock.Ping(ctx); err != nil {
		return err
	}
	epoch, err := db.store.AcquireLeadership(ctx)
	if err != nil {
		return err
	}
	return change(&db.store, epoch)
}
