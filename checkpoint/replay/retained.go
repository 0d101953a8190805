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
	// retainedInterval is how often the desk looks how much log is kept for checkpoints,
	// while it is for any.
	retainedInterval = 10 * time.Second
	// retainedStepBytes is by how many bytes the log of a checkpoint changes before that is
	// written down, which makes some log by itself.
	retainedStepBytes = 1 << 20
	// orphanSweepInterval is how often the desk looks for log that is kept for nothing, while it
	// knows of none that is kept: a leader may have ended between the two.
	orphanSweepInterval = 10 * time.Minute
	// retentionInterval is how often the desk asks whether the log of checkpoints is still there
	// that the server keeps as it is set up to, while there are any.
	retentionInterval = 10 * time.Minute
)

// lazyRetainer is a Keeper that is opened when it is first needed.
type lazyRetainer struct {
	mu sync.Mutex
	SlotRetainer
	sweptAt   time.Time // while nothing was kept
	checkedAt time.Time // at what the server keeps
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

// checkRetainedLogs looks at the log that is kept for checkpoints, which it returns, and gives up
// what is lost or more than may be.
func (d *Controller) checkRetainedLogs(ctx context.Context, named []store.Savepoint) ([]capture.RetainedSlot, error) {
	if len(named) == 0 || d.OpenRetainer == nil {
		d.Observer.LogsRetained(nil)
		return nil, d.checkServerRetention(ctx, named)
	}
	keeper, err := d.retainer.open(d.OpenRetainer)
	if err != nil {
		return nil, err
	}
	list, err := keeper.RetainedSlots(ctx)
	if err != nil {
		return nil, err
	}
	d.Observer.LogsRetained(list)
	logs := make([]capture.RetainedSlot, len(named))
	for i := range named {
		at := slices.IndexFunc(list, func(l capture.RetainedSlot) bool { return l.Name == named[i].Name })
		if logs[i].Lost = "what kept it is gone: somebody dropped it"; at >= 0 {
			logs[i] = list[at]
		}
	}
	return list, d.updateRetainedLogs(ctx, named, logs)
}

// checkServerRetention looks now and then whether the server still has the log of checkpoints,
// where nothing is kept for them.
func (d *Controller) checkServerRetention(ctx context.Context, named []store.Savepoint) error {
	if !d.needsServerCheck(named) || time.Since(d.retainer.checkedAt) < cmp.Or(d.retentionInterval, retentionInterval) {
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
		return fmt.Errorf("look whether the server still has the log of the checkpoints: %w", err)
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

// nextServerCheck is in how long checkServerRetention looks again, 0 for never.
func (d *Controller) nextServerCheck(named []store.Savepoint) time.Duration {
	if !d.needsServerCheck(named) {
		return 0
	}
	return max(time.Second, cmp.Or(d.retentionInterval, retentionInterval)-time.Since(d.retainer.checkedAt))
}

// updateRetainedLogs looks at the log of each checkpoint, by position.
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

// updateRetainedLog gives up the log of a checkpoint if it is lost or more than may be, and else
// writes down how much it is.
func (d *Controller) updateRetainedLog(ctx context.Context, n store.Savepoint, log capture.RetainedSlot) error {
	if log.Lost == "" && d.MaxRetainedBytes > 0 && log.Bytes > d.MaxRetainedBytes {
		log.Lost = fmt.Sprintf("%d bytes were kept for it, more than the %d of checkpoint.max-kept", log.Bytes, d.MaxRetainedBytes)
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

// sweepOrphans gives up log that is kept for no checkpoint: who had it kept may have ended, or
// was no leader any more, before that was written down. logs is what was kept at some
// time before; next is when to look again.
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
	keeper, err := d.OpenRetainer() // for now: nobody else needs its session
	if err == nil {
		defer keeper.Close()
		logs, err = keeper.RetainedSlots(ctx)
	}
	if err != nil {
		logs = nil // a relay for which nothing is kept need not be able to look
	}
	return orphanSweepInterval, d.dropOrphanedLogs(ctx, keeper, nil, logs)
}

// dropOrphanedLogs gives up what of the logs is kept for no checkpoint. Which checkpoints there
// are is asked behind the logs: what is kept for one that is just made has its row.
func (d *Controller) dropOrphanedLogs(ctx context.Context, keeper capture.SlotRetainer, kept []store.Savepoint, logs []capture.RetainedSlot) error {
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
	var errs []error
	for _, l := range logs {
		if hasSavepoint(named, l.Name) {
			continue
		}
		if err := keeper.ReleaseLog(ctx, l.Name); err != nil {
			errs = append(errs, fmt.Errorf("give up the log that is kept for %s, which is no checkpoint: %w", l.Name, err))
		}
	}
	return errors.Join(errs...)
}

// markLogLost gives up the log that is kept for a checkpoint, or notes that the server has it no
// more.
func (d *Controller) markLogLost(ctx context.Context, n store.Savepoint, log capture.RetainedSlot) error {
	d.activeReader.interrupt(n.Name, fmt.Errorf("the log that was kept for checkpoint %s is lost: %s", n.Name, log.Lost))
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
	keeper, err := d.retainer.open(d.OpenRetainer)
	if err == nil {
		err = keeper.ReleaseLog(ctx, name)
	}
	if err != nil {
		return fmt.Errorf("give up the log that is kept for checkpoint %s: %w", name, err)
	}
	return nil
}

// logReader is the job that reads a kept log now, if any does. The log stays for as long
// as it is read, whoever gives it up; so the reading has to end, too.
type logReader struct {
	mu   sync.Mutex
	name string
	stop func(why error)
}

// setReading notes who reads the log that is kept under a name; "" for nobody.
func (r *logReader) setReading(name string, stop func(why error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.name, r.stop = name, stop
}

// interrupt stops who reads the log that is kept under a name.
func (r *logReader) interrupt(name string, why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if name != "" && r.name == name {
		r.stop(why)
	}
}
