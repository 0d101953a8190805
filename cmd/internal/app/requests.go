package app

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/checkpoint/replay"
	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
)

// OpenDeadLetters returns the FAILED rows of the configured outboxes for use without a
// running relay. It connects on first use. Call closed when done.
func OpenDeadLetters(cfg *config.Config) (letters store.DeadLetters, closed func(), err error) {
	for _, o := range cfg.Outboxes() {
		if cfg.Settings.Scale != nil && !o.Layout.Stores(store.Failed) {
			return nil, nil, &store.SetupError{
				Problem: fmt.Sprintf("with scale, the FAILED rows of %s are in the records of its shards", o.Name),
				Remedy:  "read /sources/N/api/v1/deadletters of the process that has shard N, for each shard",
			}
		}
	}
	db, err := openDatabase(cfg)
	if err != nil {
		return nil, nil, err
	}
	return db.store, db.store.Close, nil
}

// ExplainRow explains a row of an outbox from the database alone, without a relay.
func ExplainRow(ctx context.Context, cfg *config.Config, outbox, id string) (*sluicebox.RowReport, error) {
	db, err := openDatabase(cfg)
	if err != nil {
		return nil, err
	}
	defer db.store.Close()
	outboxes := cfg.Outboxes()
	at := slices.IndexFunc(outboxes, func(o store.Outbox) bool { return o.Name == outbox })
	if at < 0 {
		return nil, &sluicebox.RequestError{Problem: fmt.Sprintf("unknown outbox %q", outbox)}
	}
	rep, err := sluicebox.ExplainStored(ctx, db.store, &outboxes[at], id, nil)
	if err != nil {
		return nil, err
	}
	rep.Leader = "no relay answers"
	if leader, err := db.store.Leader(ctx); err == nil {
		rep.Leader = fmt.Sprintf("no relay answers; the last leader was %s", leader.Holder)
	}
	return rep, nil
}

// OpenRequests returns the named checkpoints and replays of a relay, which may run elsewhere: the configured one if relay is
// "", or a shard of it. It connects on first use. Call closed when done.
func OpenRequests(cfg *config.Config, relay string) (r admin.Requests, closed func(), err error) {
	db, err := openDatabaseOf(cfg, relay)
	if err != nil {
		return nil, nil, err
	}
	return requests{cfg, func() (sluicebox.RequestStore, error) { return db.store, nil }}, db.store.Close, nil
}

// requests reads named checkpoints and replays, and writes requests for them. It implements
// admin.Requests.
type requests struct {
	cfg  *config.Config
	open func() (sluicebox.RequestStore, error)
}

// Checkpoints implements admin.Requests.
func (d requests) Checkpoints(ctx context.Context) ([]admin.Checkpoint, error) {
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

// CreateCheckpoint implements admin.Requests.
func (d requests) CreateCheckpoint(ctx context.Context, name string, keepLog bool) error {
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

// DeleteCheckpoint implements admin.Requests.
func (d requests) DeleteCheckpoint(ctx context.Context, name string) error {
	st, err := d.open()
	if err != nil {
		return err
	}
	return st.RequestSavepointDeletion(ctx, name)
}

// Replays implements admin.Requests.
func (d requests) Replays(ctx context.Context) ([]admin.Replay, error) {
	st, err := d.open()
	if err != nil {
		return nil, err
	}
	jobs, err := st.Jobs(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]admin.Replay, len(jobs))
	for i := range jobs {
		list[i] = admin.ReplayOf(&jobs[i])
	}
	return list, nil
}

// jobIDLength is the number of letters in a job id. At 5 bits each, 13 letters are unique
// in practice and short enough to type.
const jobIDLength = 13

// StartReplay implements admin.Requests.
func (d requests) StartReplay(ctx context.Context, spec *replay.Spec) (id string, err error) {
	if err := d.validateSpec(spec); err != nil {
		return "", err
	}
	st, err := d.open()
	if err != nil {
		return "", err
	}

	if spec.From != "" {
		if err := checkReplayStart(ctx, st, spec.From); err != nil {
			return "", err
		}
	}

	text, err := spec.Text()
	if err != nil {
		return "", err
	}

	id = strings.ToLower(rand.Text()[:jobIDLength])
	return id, st.RequestReplay(ctx, id, text)
}

// validateSpec checks a spec against the configuration.
func (d requests) validateSpec(spec *replay.Spec) error {
	if err := spec.Validate(); err != nil {
		return &sluicebox.RequestError{Problem: err.Error()}
	}
	var known []string
	outboxes := d.cfg.Outboxes()
	for _, o := range store.WithLegs(outboxes) {
		known = append(known, o.Name)
	}

	for _, outbox := range spec.Outboxes {
		if !slices.Contains(known, outbox) {
			return &sluicebox.RequestError{Problem: fmt.Sprintf("unknown outbox %q; the outboxes are %s", outbox, strings.Join(known, ", "))}
		}
	}
	if err := spec.NeedsRoute(outboxes); err != nil {
		return &sluicebox.RequestError{Problem: err.Error()}
	}

	if sinks := d.cfg.Sinks(); spec.Sink != "" && !slices.Contains(sinks, spec.Sink) {
		return &sluicebox.RequestError{Problem: fmt.Sprintf("unknown sink %q; the sinks are %s", spec.Sink, strings.Join(sinks, ", "))}
	}
	if spec.Until.After(time.Now()) {
		return &sluicebox.RequestError{Problem: fmt.Sprintf("until %s is in the future; omit it, new rows are sent anyway", spec.Until.Format(time.RFC3339))}
	}

	return nil
}

// checkReplayStart returns an error if a replay cannot start from a named checkpoint.
func checkReplayStart(ctx context.Context, st sluicebox.RequestStore, name string) error {
	named, err := st.Savepoints(ctx)
	if err != nil {
		return err
	}

	at := slices.IndexFunc(named, func(n store.Savepoint) bool { return n.Name == name && !n.DeleteRequested })
	if at < 0 {
		return fmt.Errorf("replay from %s: %w", name, store.ErrNoSavepoint)
	}

	switch n := &named[at]; n.State {
	case store.SavepointRequested:
		return &sluicebox.RequestError{Problem: fmt.Sprintf("checkpoint %s is pending; the leader creates it", name)}
	case store.SavepointRefused:
		return &sluicebox.RequestError{Problem: fmt.Sprintf("checkpoint %s was refused: %s", name, n.Reason)}
	}

	return nil
}

// ReplayErrors implements admin.Requests.
func (d requests) ReplayErrors(ctx context.Context, id string, limit int) ([]store.ReplayError, error) {
	if _, err := admin.FindReplay(ctx, d, id); err != nil {
		return nil, err
	}
	st, err := d.open()
	if err != nil {
		return nil, err
	}
	return st.JobErrors(ctx, id, limit)
}

// ActOnReplay implements admin.Requests.
func (d requests) ActOnReplay(ctx context.Context, id string, desired store.DesiredState) error {
	job, err := admin.FindReplay(ctx, d, id)
	if err != nil {
		return err
	}
	if job.Ended() {
		return fmt.Errorf("%w: it is %s", admin.ErrReplayEnded, job.State)
	}
	st, err := d.open()
	if err != nil {
		return err
	}
	return st.RequestJobState(ctx, id, desired)
}

// RecordAction implements store.ActionLog.
func (d requests) RecordAction(ctx context.Context, a store.Action) error {
	st, err := d.open()
	if err != nil {
		return err
	}
	return st.RecordAction(ctx, a)
}

// Actions implements store.ActionLog.
func (d requests) Actions(ctx context.Context, limit int) ([]store.Action, error) {
	st, err := d.open()
	if err != nil {
		return nil, err
	}
	return st.Actions(ctx, limit)
}

// userAgent is the User-Agent of requests to sinks without one of their own.
func userAgent(version string) string { return "sluicebox/" + version }

// database is the configured database for a command that runs no relay.
type database struct {
	store     ledger.Store
	newStream func() (capture.Stream, error)
}

// openDatabase returns the database of a configuration, without a connection. Close its
// store when done.
func openDatabase(cfg *config.Config) (*database, error) { return openDatabaseOf(cfg, "") }

// openDatabaseOf is openDatabase for a relay of this name, the configured one if it is "".
func openDatabaseOf(cfg *config.Config, relay string) (*database, error) {
	o, err := cfg.Relay("")
	if err != nil {
		return nil, err
	}
	relay = cmp.Or(relay, o.Name)
	st, err := o.Database.Store(store.Settings{Name: relay, Outboxes: cfg.Outboxes(), TakeoverTimeout: o.TakeoverTimeout})
	if err != nil {
		return nil, err
	}
	return &database{store: st, newStream: func() (capture.Stream, error) {
		return o.Database.Stream(capture.Settings{Name: relay, Outboxes: cfg.Outboxes()})
	}}, nil
}
