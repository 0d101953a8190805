package app

import (
	"context"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/store"
)

// newRequestStore returns the store of the configured database for use without a running
// relay. It connects on first use. Call closed when done.
func newRequestStore(cfg *config.Config) (open func() (sluicebox.RequestStore, error), closed func(), err error) {
	db, err := openDatabase(cfg)
	if err != nil {
		return nil, nil, err
	}
	return func() (sluicebox.RequestStore, error) { return db.store, nil }, db.store.Close, nil
}

// OpenDeadLetters returns the FAILED rows of the configured outboxes for use without a
// running relay. It connects on first use. Call closed when done.
func OpenDeadLetters(cfg *config.Config) (letters store.DeadLetters, closed func(), err error) {
	db, err := openDatabase(cfg)
	if err != nil {
		return nil, nil, err
	}
	return db.store, db.store.Close, nil
}

// OpenCheckpoints returns the named checkpoints of the configured relay, which may run
// elsewhere. They connect on first use. Call closed when done.
func OpenCheckpoints(cfg *config.Config) (list admin.Checkpoints, closed func(), err error) {
	open, closed, err := newRequestStore(cfg)
	if err != nil {
		return nil, nil, err
	}
	return checkpointController{cfg, open}, closed, nil
}

// checkpointController lists named checkpoints and writes requests for them.
type checkpointController struct {
	cfg  *config.Config
	open func() (sluicebox.RequestStore, error)
}

// List implements admin.Checkpoints.
func (d checkpointController) List(ctx context.Context) ([]admin.Checkpoint, error) {
	st, err := d.open()
	if err != nil {
		return nil, err
	}
	named, err := st.Savepoints(ctx)
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
func (d checkpointController) Create(ctx context.Context, name string, keepLog bool) error {
	if err := store.ValidateSavepointName(name); err != nil {
		return &sluicebox.RequestError{Problem: err.Error()}
	}
	switch source := &d.cfg.Settings.Source; {
	case keepLog && source.URL.SQLite():
		return &sluicebox.RequestError{Problem: "keep_log: SQLite has no log to retain; a replay from a checkpoint without it reads the table"}
	case keepLog && source.Mode == "poll":
		return &sluicebox.RequestError{Problem: "keep_log: this relay polls (source.mode) and has no log to retain; a replay from a checkpoint without it reads the table"}
	}

	st, err := d.open()
	if err != nil {
		return err
	}
	return st.RequestSavepoint(ctx, name, keepLog)
}

// Delete implements admin.Checkpoints.
func (d checkpointController) Delete(ctx context.Context, name string) error {
	st, err := d.open()
	if err != nil {
		return err
	}
	return st.RequestSavepointDeletion(ctx, name)
}
