package replay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

const (
	// retainedInterval is how often the Controller checks the size of the log that is
	// retained for checkpoints, while there is any.
	retainedInterval = 10 * time.Second

	// retainedStepBytes is the change of a retained log in bytes that is saved.
	// Smaller changes are not, because each save itself writes to the log.
	retainedStepBytes = 1 << 20

	// orphanSweepInterval is how often the Controller searches for orphaned logs
	// while no checkpoint retains any. A leader may have crashed between retaining a
	// log and recording it.
	orphanSweepInterval = 10 * time.Minute

	// retentionInterval is how often the Controller checks that a server with its own
	// retention still has the log of the checkpoints.
	retentionInterval = 10 * time.Minute
)

// lazyRetainer is a SlotRetainer that is opened when it is first needed.
type lazyRetainer struct {
	mu sync.Mutex
	SlotRetainer
	sweptAt   time.Time // while no log was retained
	checkedAt time.Time // last check of the server's retention
}

func (k *lazyRetainer) open(with func() (SlotRetainer, error)) (SlotRetainer, error) {
	k.mu.Lock()
	defer k.mu.Unlock()

	if k.SlotRetainer != nil {
		return k.SlotRetainer, nil
	}

	opened, err := with()
	if err == nil {
		k.SlotRetainer = opened
	}
	return opened, err
}

func (k *lazyRetainer) close() {
	if k.SlotRetainer != nil {
		k.Close()
	}
}

// checkRetainedLogs checks and returns the logs that are retained for checkpoints. It
// releases each log that is lost or above the limit.
func (d *Controller) checkRetainedLogs(ctx context.Context, named []store.Savepoint) ([]capture.RetainedSlot, error) {
	if len(named) == 0 || d.OpenRetainer == nil {
		d.Observer.LogsRetained(nil)
		return nil, d.checkServerRetention(ctx, named)
	}

	retainer, err := d.retainer.open(d.OpenRetainer)
	if err != nil {
		return nil, err
	}

	list, err := retainer.RetainedSlots(ctx)
	if err != nil {
		return nil, err
	}
	nameRetained(retainer, list, named)
	d.Observer.LogsRetained(list)
	logs := make([]capture.RetainedSlot, len(named))
	for i := range named {
		at := slices.IndexFunc(list, func(l capture.RetainedSlot) bool { return l.Name == named[i].Name })
		if logs[i].Lost = "replication slot dropped externally"; at >= 0 {
			logs[i] = list[at]
		}
	}

	return list, d.updateRetainedLogs(ctx, named, logs)
}

// nameRetained sets the name of each slot to that of its checkpoint.
func nameRetained(retainer capture.SlotRetainer, logs []capture.RetainedSlot, named []store.Savepoint) {
	names := make(map[string]string, len(named))
	for i := range named {
		names[retainer.SlotFor(named[i].Name)] = named[i].Name
	}
	for i := range logs {
		logs[i].Name = cmp.Or(names[retainer.SlotFor(logs[i].Name)], logs[i].Name)
	}
}

// checkServerRetention checks at intervals whether the server still has the log of
// checkpoints, if no log is retained for them.
func (d *Controller) checkServerRetention(ctx context.Context, named []store.Savepoint) error {
	if !d.needsServerCheck(named) || time.Since(d.retainer.checkedAt) < d.limits.retentionInterval {
		return nil
	}

	d.retainer.checkedAt = time.Now()
	server, err := d.Log.OpenRetention()
	if err != nil {
		return err
	}
	defer server.Close()
	places := make([]store.Checkpoint, len(named))
	for i := range named {
		places[i] = named[i].Checkpoint
	}

	lost, err := server.LostReasons(ctx, places)
	if err != nil {
		return fmt.Errorf("check log retention for checkpoints: %w", err)
	}

	logs := make([]capture.RetainedSlot, len(named))
	for i := range lost {
		logs[i].Lost = lost[i]
	}

	return d.updateRetainedLogs(ctx, named, logs)
}

func (d *Controller) needsServerCheck(named []store.Savepoint) bool {
	return len(named) > 0 && d.OpenRetainer == nil && d.Log != nil && d.Log.OpenRetention != nil
}

// nextServerCheck returns the time until the next checkServerRetention, 0 for never.
func (d *Controller) nextServerCheck(named []store.Savepoint) time.Duration {
	if !d.needsServerCheck(named) {
		return 0
	}
	return max(time.Second, d.limits.retentionInterval-time.Since(d.retainer.checkedAt))
}

// updateRetainedLogs updates the log of each checkpoint, by index.
func (d *Controller) updateRetainedLogs(ctx context.Context, named []store.Savepoint, logs []capture.RetainedSlot) error {
	var errs []error
	for i := range named {
		err := d.updateRetainedLog(ctx, named[i], logs[i])
		if errors.Is(err, store.ErrNotLeader) {
			return err
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// updateRetainedLog releases the log of a checkpoint if it is lost or above the
// limit, and saves its size otherwise.
func (d *Controller) updateRetainedLog(ctx context.Context, n store.Savepoint, log capture.RetainedSlot) error {
	if log.Lost == "" && d.MaxRetainedBytes > 0 && log.Bytes > d.MaxRetainedBytes {
		log.Lost = fmt.Sprintf("%d bytes retained, more than checkpoint.max-kept (%d)", log.Bytes, d.MaxRetainedBytes)
	}
	switch {
	case log.Lost != "":
		return d.markLogLost(ctx, n, log)
	case max(log.Bytes-n.RetainedBytes, n.RetainedBytes-log.Bytes) >= retainedStepBytes:
		n.RetainedBytes = log.Bytes
		return d.Store.SaveSavepoint(ctx, d.Epoch, n)
	}
	return nil
}

// sweepOrphans releases logs without a checkpoint. Such a log is left if a leader
// crashed or lost its leadership before it recorded the log. logs is an earlier list
// of the retained logs; next is the time until the next call.
func (d *Controller) sweepOrphans(ctx context.Context, kept []store.Savepoint, logs []capture.RetainedSlot) (next time.Duration, err error) {
	switch since := time.Since(d.retainer.sweptAt); {
	case d.OpenRetainer == nil:
		return d.nextServerCheck(kept), nil
	case len(kept) > 0 && len(logs) == 0:
		return retainedInterval, nil
	case len(kept) > 0:
		return retainedInterval, d.dropOrphanedLogs(ctx, &d.retainer, kept, logs)
	case since < orphanSweepInterval:
		return orphanSweepInterval - since, nil
	}

	d.retainer.sweptAt = time.Now()
	retainer, err := d.OpenRetainer() // opened for this call only, because nothing else needs its session
	if err == nil {
		defer retainer.Close()
		logs, err = retainer.RetainedSlots(ctx)
	}
	if err != nil {
		logs = nil // a relay that retains no log may lack the right to list it
	}
	return orphanSweepInterval, d.dropOrphanedLogs(ctx, retainer, nil, logs)
}

// dropOrphanedLogs releases the logs without a checkpoint. It reads the checkpoints
// after the logs, so that the log of a new checkpoint has its row.
func (d *Controller) dropOrphanedLogs(ctx context.Context, retainer capture.SlotRetainer, kept []store.Savepoint, logs []capture.RetainedSlot) error {
	logs = slices.DeleteFunc(slices.Clone(logs), func(l capture.RetainedSlot) bool { return hasSavepoint(kept, l.Name) })
	if len(logs) == 0 {
		return nil
	}

	named, err := d.Store.Savepoints(ctx)
	if err != nil {
		return err
	}

	named = slices.DeleteFunc(named, func(n store.Savepoint) bool {
		return !n.DeleteRequested && n.State != store.SavepointRetained && (n.State != store.SavepointRequested || !n.RetainLog)
	})
	nameRetained(retainer, logs, named)
	var errs []error
	for _, l := range logs {
		if hasSavepoint(named, l.Name) {
			continue
		}
		if err := retainer.ReleaseLog(ctx, l.Name); err != nil {
			errs = append(errs, fmt.Errorf("release orphaned log %s: %w", l.Name, err))
		}
	}

	return errors.Join(errs...)
}

// markLogLost releases the log of a checkpoint, or records that the server no longer
// has it.
func (d *Controller) markLogLost(ctx context.Context, n store.Savepoint, log capture.RetainedSlot) error {
	d.activeReader.interrupt(n.Name, fmt.Errorf("retained log of checkpoint %s lost: %s", n.Name, log.Lost))
	if err := d.dropLog(ctx, n.Name); err != nil {
		return err
	}
	n.State, n.Reason, n.RetainedBytes = store.SavepointLogLost, log.Lost, log.Bytes
	return d.saveSavepoint(ctx, &n)
}

func (d *Controller) dropLog(ctx context.Context, name string) error {
	if d.OpenRetainer == nil {
		return nil
	}

	retainer, err := d.retainer.open(d.OpenRetainer)
	if err == nil {
		err = retainer.ReleaseLog(ctx, name)
	}
	if err != nil {
		return fmt.Errorf("release log of checkpoint %s: %w", name, err)
	}
	return nil
}

// logReader is the job that currently reads a retained log, if any. The database
// keeps a log while it is read, even after its release. The reader therefore has to
// stop too.
type logReader struct {
	mu   sync.Mutex
	name string
	stop func(cause error)
}

// setReading records the reader of the log with a name, "" for none.
func (r *logReader) setReading(name string, stop func(cause error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.name, r.stop = name, stop
}

// interrupt stops the reader of the log with a name.
func (r *logReader) interrupt(name string, cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()

	if name != "" && r.name == name {
		r.stop(cause)
	}
}
