package app

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/checkpoint/replay"
	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/store"
)

// OpenReplays returns the replays of the configured relay, which may run elsewhere. They
// connect on first use. Call closed when done.
func OpenReplays(cfg *config.Config) (list admin.Replays, closed func(), err error) {
	open, closed, err := newRequestStore(cfg)
	if err != nil {
		return nil, nil, err
	}
	return replayController{cfg, open}, closed, nil
}

// replayController lists replays and writes requests for them.
type replayController struct {
	cfg  *config.Config
	open func() (sluicebox.RequestStore, error)
}

// List implements admin.Replays.
func (d replayController) List(ctx context.Context) ([]admin.Replay, error) {
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

// Start implements admin.Replays.
func (d replayController) Start(ctx context.Context, spec *replay.Spec) (id string, err error) {
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
func (d replayController) validateSpec(spec *replay.Spec) error {
	if err := spec.Validate(); err != nil {
		return &sluicebox.RequestError{Problem: err.Error()}
	}
	var known []string
	for _, o := range d.cfg.Outboxes() {
		known = append(known, o.Name)
	}

	for _, outbox := range spec.Outboxes {
		if !slices.Contains(known, outbox) {
			return &sluicebox.RequestError{Problem: fmt.Sprintf("unknown outbox %q; the outboxes are %s", outbox, strings.Join(known, ", "))}
		}
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

// Errors implements admin.Replays.
func (d replayController) Errors(ctx context.Context, id string, limit int) ([]admin.ReplayError, error) {
	if _, err := d.findJob(ctx, id); err != nil {
		return nil, err
	}
	st, err := d.open()
	if err != nil {
		return nil, err
	}
	refused, err := st.JobErrors(ctx, id, limit)
	list := make([]admin.ReplayError, len(refused))
	for i := range refused {
		list[i] = admin.ReplayErrorOf(&refused[i])
	}
	return list, err
}

// Act implements admin.Replays.
func (d replayController) Act(ctx context.Context, id string, desired store.DesiredState) error {
	job, err := d.findJob(ctx, id)
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

// findJob returns a job, or store.ErrNoJob.
func (d replayController) findJob(ctx context.Context, id string) (*admin.Replay, error) {
	list, err := d.List(ctx)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(list, func(r admin.Replay) bool { return r.ID == id })
	if at < 0 {
		return nil, fmt.Errorf("replay %s: %w", id, store.ErrNoJob)
	}
	return &list[at], nil
}
