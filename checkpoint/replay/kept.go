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
	// keptEvery is how often the desk looks how much log is kept for checkpoints,
	// while it is for any.
	keptEvery = 10 * time.Second
	// keptStep is by how many bytes the log of a checkpoint changes before that is
	// written down, which makes some log by itself.
	keptStep = 1 << 20
	// sweepEvery is how often the desk looks for log that is kept for nothing, while it
	// knows of none that is kept: a leader may have ended between the two.
	sweepEvery = 10 * time.Minute
	// askEvery is how often the desk asks whether the log of checkpoints is still there
	// that the server keeps as it is set up to, while there are any.
	askEvery = 10 * time.Minute
)

// keeping is a Keeper that is opened when it is first needed.
type keeping struct {
	mu sync.Mutex
	Keeper
	swept  time.Time // while nothing was kept
	looked time.Time // at what the server keeps
}

func (k *keeping) open(with func() (Keeper, error)) (Keeper, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.Keeper != nil {
		return k.Keeper, nil
	}
	opened, err := with()
	if err == nil {
		k.Keeper = opened
	}
	return opened, err
}

func (k *keeping) close() {
	if k.Keeper != nil {
		k.Close()
	}
}

// watchKept looks at the log that is kept for checkpoints, which it returns, and gives up
// what is lost or more than may be.
func (d *Desk) watchKept(ctx context.Context, named []store.Named) ([]capture.KeptLog, error) {
	if len(named) == 0 || d.Keeper == nil {
		d.Observer.Kept(nil)
		return nil, d.watchServer(ctx, named)
	}
	keeper, err := d.keeper.open(d.Keeper)
	if err != nil {
		return nil, err
	}
	list, err := keeper.KeptLogs(ctx)
	if err != nil {
		return nil, err
	}
	d.Observer.Kept(list)
	logs := make([]capture.KeptLog, len(named))
	for i := range named {
		at := slices.IndexFunc(list, func(l capture.KeptLog) bool { return l.Name == named[i].Name })
		if logs[i].Lost = "what kept it is gone: somebody dropped it"; at >= 0 {
			logs[i] = list[at]
		}
	}
	return list, d.lookAll(ctx, named, logs)
}

// watchServer looks now and then whether the server still has the log of checkpoints,
// where nothing is kept for them.
func (d *Desk) watchServer(ctx context.Context, named []store.Named) error {
	if !d.looksAtServer(named) || time.Since(d.keeper.looked) < cmp.Or(d.askEvery, askEvery) {
		return nil
	}
	d.keeper.looked = time.Now()
	server, err := d.Log.Look()
	if err != nil {
		return err
	}
	defer server.Close()
	places := make([]store.Checkpoint, len(named))
	for i := range named {
		places[i] = named[i].Checkpoint
	}
	lost, err := server.Lost(ctx, places)
	if err != nil {
		return fmt.Errorf("look whether the server still has the log of the checkpoints: %w", err)
	}
	logs := make([]capture.KeptLog, len(named))
	for i := range lost {
		logs[i].Lost = lost[i]
	}
	return d.lookAll(ctx, named, logs)
}

func (d *Desk) looksAtServer(named []store.Named) bool {
	return len(named) > 0 && d.Keeper == nil && d.Log != nil && d.Log.Look != nil
}

// nextLook is in how long watchServer looks again, 0 for never.
func (d *Desk) nextLook(named []store.Named) time.Duration {
	if !d.looksAtServer(named) {
		return 0
	}
	return max(time.Second, cmp.Or(d.askEvery, askEvery)-time.Since(d.keeper.looked))
}

// lookAll looks at the log of each checkpoint, by position.
func (d *Desk) lookAll(ctx context.Context, named []store.Named, logs []capture.KeptLog) error {
	var errs []error
	for i := range named {
		err := d.look(ctx, named[i], logs[i])
		if errors.Is(err, store.ErrNotLeader) {
			return err
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// look gives up the log of a checkpoint if it is lost or more than may be, and else
// writes down how much it is.
func (d *Desk) look(ctx context.Context, n store.Named, log capture.KeptLog) error {
	if log.Lost == "" && d.MaxKept > 0 && log.Bytes > d.MaxKept {
		log.Lost = fmt.Sprintf("%d bytes were kept for it, more than the %d of checkpoint.max-kept", log.Bytes, d.MaxKept)
	}
	switch {
	case log.Lost != "":
		return d.lose(ctx, n, log)
	case max(log.Bytes-n.Bytes, n.Bytes-log.Bytes) >= keptStep:
		n.Bytes = log.Bytes
		return d.Store.SaveNamed(ctx, d.Epoch, n)
	}
	return nil
}

// sweep gives up log that is kept for no checkpoint: who had it kept may have ended, or
// was no leader any more, before that was written down. logs is what was kept at some
// time before; next is when to look again.
func (d *Desk) sweep(ctx context.Context, kept []store.Named, logs []capture.KeptLog) (next time.Duration, err error) {
	switch since := time.Since(d.keeper.swept); {
	case d.Keeper == nil:
		return d.nextLook(kept), nil
	case len(kept) > 0 && len(logs) == 0:
		return keptEvery, nil
	case len(kept) > 0:
		return keptEvery, d.dropStrays(ctx, &d.keeper, kept, logs)
	case since < sweepEvery:
		return sweepEvery - since, nil
	}
	d.keeper.swept = time.Now()
	keeper, err := d.Keeper() // for now: nobody else needs its session
	if err == nil {
		defer keeper.Close()
		logs, err = keeper.KeptLogs(ctx)
	}
	if err != nil {
		logs = nil // a relay for which nothing is kept need not be able to look
	}
	return sweepEvery, d.dropStrays(ctx, keeper, nil, logs)
}

// dropStrays gives up what of the logs is kept for no checkpoint. Which checkpoints there
// are is asked behind the logs: what is kept for one that is just made has its row.
func (d *Desk) dropStrays(ctx context.Context, keeper capture.LogKeeper, kept []store.Named, logs []capture.KeptLog) error {
	logs = slices.DeleteFunc(slices.Clone(logs), func(l capture.KeptLog) bool { return hasNamed(kept, l.Name) })
	if len(logs) == 0 {
		return nil
	}
	named, err := d.Store.Named(ctx)
	if err != nil {
		return err
	}
	named = slices.DeleteFunc(named, func(n store.Named) bool {
		return !n.Drop && n.State != store.NamedKept && (n.State != store.NamedWanted || !n.Keep)
	})
	var errs []error
	for _, l := range logs {
		if hasNamed(named, l.Name) {
			continue
		}
		if err := keeper.DropLog(ctx, l.Name); err != nil {
			errs = append(errs, fmt.Errorf("give up the log that is kept for %s, which is no checkpoint: %w", l.Name, err))
		}
	}
	return errors.Join(errs...)
}

// lose gives up the log that is kept for a checkpoint, or notes that the server has it no
// more.
func (d *Desk) lose(ctx context.Context, n store.Named, log capture.KeptLog) error {
	d.reader.end(n.Name, fmt.Errorf("the log that was kept for checkpoint %s is lost: %s", n.Name, log.Lost))
	if err := d.dropLog(ctx, n.Name); err != nil {
		return err
	}
	n.State, n.Why, n.Bytes = store.NamedDropped, log.Lost, log.Bytes
	return d.saveNamed(ctx, &n)
}

func (d *Desk) dropLog(ctx context.Context, name string) error {
	if d.Keeper == nil {
		return nil
	}
	keeper, err := d.keeper.open(d.Keeper)
	if err == nil {
		err = keeper.DropLog(ctx, name)
	}
	if err != nil {
		return fmt.Errorf("give up the log that is kept for checkpoint %s: %w", name, err)
	}
	return nil
}

// reader is the job that reads a kept log now, if any does. The log stays for as long
// as it is read, whoever gives it up; so the reading has to end, too.
type reader struct {
	mu   sync.Mutex
	name string
	stop func(why error)
}

// reads notes who reads the log that is kept under a name; "" for nobody.
func (r *reader) reads(name string, stop func(why error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.name, r.stop = name, stop
}

// end stops who reads the log that is kept under a name.
func (r *reader) end(name string, why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if name != "" && r.name == name {
		r.stop(why)
	}
}
