package app

import (
	"context"

	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/store"
)

// wishing is what named checkpoints and replays ask of a store: wishes are written
// there, and the relay that leads finds them.
type wishing interface {
	store.Wishes
	store.Replays
}

// wishes returns the store of a relay that leads, or admin.ErrNotLeading.
func (r *relay) wishes() (wishing, error) {
	if _, err := r.operated(); err != nil {
		return nil, err
	}
	return r.db.store, nil
}

// openWishes returns the store of the configured database, to be asked without a
// running relay. It connects to nothing before it is asked. Call closed when done.
func openWishes(cfg *config.Config) (open func() (wishing, error), closed func(), err error) {
	db, err := openDatabase(cfg)
	if err != nil {
		return nil, nil, err
	}
	return func() (wishing, error) { return db.store, nil }, db.store.Close, nil
}

// Checkpoints returns the named checkpoints of the configured relay, which need not run
// here. They connect to nothing before they are asked. Call closed when done.
func Checkpoints(cfg *config.Config) (list admin.Checkpoints, closed func(), err error) {
	open, closed, err := openWishes(cfg)
	if err != nil {
		return nil, nil, err
	}
	return checkpointDesk{cfg, open}, closed, nil
}

// checkpointDesk shows named checkpoints and writes down what is wanted of them.
type checkpointDesk struct {
	cfg  *config.Config
	open func() (wishing, error)
}

// List implements admin.Checkpoints.
func (d checkpointDesk) List(ctx context.Context) ([]admin.Checkpoint, error) {
	st, err := d.open()
	if err != nil {
		return nil, err
	}
	named, err := st.Named(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]admin.Checkpoint, len(named))
	for i := range named {
		list[i] = admin.CheckpointOf(&named[i], int64(d.cfg.Settings.Checkpoint.MaxKept))
	}
	return list, nil
}

// Create implements admin.Checkpoints.
func (d checkpointDesk) Create(ctx context.Context, name string, keepLog bool) error {
	if err := store.CheckNamed(name); err != nil {
		return &admin.RequestError{Problem: err.Error()}
	}
	switch source := &d.cfg.Settings.Source; {
	case keepLog && source.URL.SQLite():
		return &admin.RequestError{Problem: "an SQLite outbox has no log that could be kept; a replay from a checkpoint without one reads the table"}
	case keepLog && source.Mode == "poll":
		return &admin.RequestError{Problem: "this relay polls (source.mode), so it has no log that could be kept; a replay from a checkpoint without one reads the table"}
	}
	st, err := d.open()
	if err != nil {
		return err
	}
	return st.WishNamed(ctx, name, keepLog)
}

// Delete implements admin.Checkpoints.
func (d checkpointDesk) Delete(ctx context.Context, name string) error {
	st, err := d.open()
	if err != nil {
		return err
	}
	return st.WishDrop(ctx, name)
}
