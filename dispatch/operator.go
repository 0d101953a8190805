package dispatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// LaneName names a lane.
type LaneName struct {
	store.LaneKey
	// RowID names the lane of one row, where rows without a group have a lane
	// each.
	RowID string
	// Job names the replay that sends the lane's rows again; "" is the live lane.
	Job string
}

// LaneInfo is what a lane does at a moment.
type LaneInfo struct {
	store.LaneKey
	// RowID is set where rows without a group have a lane each.
	RowID string
	// Job is set for the rows that a replay sends again. While it does, the group's
	// live lane is replaying.
	Job string
	// State is ready, claiming, sending, writing, waiting, stalled, parked, blocked,
	// paused or replaying. A stalled lane is tried again like a waiting one, but the
	// receiver leaves its head unanswered while it takes other rows.
	State string
	// Rows is how many rows are in memory, Spilled how many more are not. Unwritten is
	// how many other rows were delivered and their COMPLETED is refused by the table; a
	// lane that has no rows left is writing then.
	Rows, Spilled, Unwritten int
	// Head is the id of the first row, or of the FAILED one that blocks the lane. Where
	// there is none, it is that of the first unwritten row.
	Head string
	// Attempts is how many requests under this leader carried the head, and
	// RetryCount how many of its failures were counted.
	Attempts, RetryCount int
	// NextAttempt is when a waiting lane is tried again; for one that waits for a
	// suspect sink, when the next lane is.
	NextAttempt time.Time
	// Error is the head's latest failure, or what the table has against the outcome of a
	// row. Reason is why a lane is paused or replaying.
	Error, Reason string
	// Since is when a blocked or paused lane came to stand still, the table first refused
	// its head, or the head of a stalled one first failed.
	Since time.Time
}

// LaneFilter chooses lanes. A zero field chooses all.
type LaneFilter struct {
	Outbox, Kind string
	Group        *store.Group
	State        string
	// Troubled chooses lanes that stand still or whose first row has failed.
	Troubled bool
}

var (
	// ErrNoLane says that no row of the lane is in memory and nothing holds it.
	ErrNoLane = errors.New("there is no such lane")
	// ErrLaneState says that the action does not fit what the lane does.
	ErrLaneState = errors.New("the lane's state does not allow it")
	// ErrStopped says that the dispatcher runs no more.
	ErrStopped = errors.New("the relay stops or has lost its leadership")

	errDelivered  = fmt.Errorf("%w: its first row was settled or delivered meanwhile", ErrLaneState)
	errWriting    = fmt.Errorf("%w: an outcome of its first row is being written; ask again", ErrLaneState)
	errSpilled    = fmt.Errorf("%w: its rows are parked, and none is in memory; ask again", ErrLaneState)
	errOnHold     = fmt.Errorf("%w: it is blocked, paused or being replayed; skip or requeue the row, resume the lane, or pause the replay", ErrLaneState)
	errReplayLane = fmt.Errorf("%w: its rows are sent by a replay; pause or cancel that", ErrLaneState)
	errRowLane    = fmt.Errorf("%w: a row's own lane cannot be paused; skip the row", ErrLaneState)
)

// Lanes returns at most limit of the chosen lanes, in the order of CompareLanes,
// and how many there are. The time is linear in the lanes.
func (d *Dispatcher) Lanes(f LaneFilter, limit int) (lanes []LaneInfo, total int) {
	d.mu.Lock()
	unwritten := d.core.unwrittenLanes()
	for l := range d.core.allLanes() {
		more := unwritten[l.name]
		delete(unwritten, l.name)
		if !f.matches(l.name) || f.State != "" && f.State != l.stateName() ||
			f.Troubled && !l.onHold() && l.lastError == "" && l.refusal == "" && more == nil {
			continue
		}
		in := d.core.laneInfo(l)
		if more != nil {
			in.Unwritten, in.Error = more.Unwritten, cmp.Or(in.Error, "row "+more.Head+": "+more.Error)
		}
		lanes = append(lanes, in)
	}
	d.mu.Unlock()
	for name, in := range unwritten {
		if f.matches(name) && (f.State == "" || f.State == in.State) {
			lanes = append(lanes, *in)
		}
	}
	slices.SortFunc(lanes, CompareLanes)
	return lanes[:min(limit, len(lanes))], len(lanes)
}

// CompareLanes orders lanes for an operator: those that stand still first, then
// those that fail, and the longer ones before the shorter.
func CompareLanes(a, b LaneInfo) int {
	rank := func(l *LaneInfo) int {
		switch {
		case !l.Since.IsZero():
			return 0
		case l.Error != "":
			return 1
		}
		return 2
	}
	return cmp.Or(rank(&a)-rank(&b), b.Rows-a.Rows,
		cmp.Compare(a.String(), b.String()), cmp.Compare(a.RowID, b.RowID), cmp.Compare(a.Job, b.Job))
}

// matches reports whether the filter chooses a lane by its name.
func (f *LaneFilter) matches(name LaneName) bool {
	return (f.Outbox == "" || f.Outbox == name.Outbox) &&
		(f.Kind == "" || f.Kind == name.Kind) &&
		(f.Group == nil || *f.Group == name.Group)
}

// RetryNow tries a waiting lane at once, also while the sink is suspect.
func (d *Dispatcher) RetryNow(lane LaneName) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.core.retryNow(d.core.laneOf(lane))
	notify(d.toClaim)
	return err
}

// Skip lets a lane pass its first row: a row that blocks the lane stays FAILED,
// another becomes FAILED with the reason as its error. A row in a request is
// skipped if that fails. Skip returns when it is durable, or when the row was
// delivered after all (ErrLaneState). A replayed row cannot be skipped.
func (d *Dispatcher) Skip(ctx context.Context, lane LaneName, reason string) error {
	if lane.Job != "" {
		return errReplayLane
	}
	d.mu.Lock()
	l := d.core.lanes[lane]
	if l != nil && l.blocked != nil {
		d.mu.Unlock()
		return d.skipBlocked(ctx, lane)
	}
	done, err := d.core.skip(l, reason, time.Now())
	d.mu.Unlock()
	if err != nil {
		notify(d.toSpill) // its first row may have to be read
		return err
	}
	d.wakeWorkers()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("the row is passed over as soon as its request has ended: %w", context.Cause(ctx))
	case <-d.stopped:
		return ErrStopped
	}
}

// skipBlocked lets a lane go on that a row blocks, unless another does by now.
func (d *Dispatcher) skipBlocked(ctx context.Context, lane LaneName) error {
	d.operatorMu.Lock()
	defer d.operatorMu.Unlock()
	return d.release(ctx, lane.LaneKey, store.Blocked, func(now time.Time) {
		if l := d.core.lanes[lane]; l != nil && l.blocked != nil {
			d.core.unblock(l, now)
		}
	})
}

// Pause keeps a lane from moving until Resume, also across restarts. A request
// under way ends first. The lane need not have rows. It is durable when Pause
// returns. What is replayed of the lane is paused with it.
func (d *Dispatcher) Pause(ctx context.Context, lane LaneName, reason string) error {
	if lane.Job != "" {
		return errReplayLane
	}
	if lane.RowID != "" || !lane.Group.Valid && d.cfg.Ungrouped == Parallel {
		return errRowLane
	}
	d.operatorMu.Lock()
	defer d.operatorMu.Unlock()
	h := store.Hold{Lane: lane.LaneKey, Kind: store.Paused, Reason: reason, Since: time.Now()}
	if err := d.store.Hold(ctx, d.epoch, h); err != nil {
		return err
	}
	d.mu.Lock()
	d.core.pause(lane, h)
	d.mu.Unlock()
	d.wakeWorkers()
	return nil
}

// Resume ends a pause, durably.
func (d *Dispatcher) Resume(ctx context.Context, lane LaneName) error {
	if lane.Job != "" {
		return errReplayLane
	}
	d.operatorMu.Lock()
	defer d.operatorMu.Unlock()
	d.mu.Lock()
	l := d.core.lanes[lane]
	paused := l != nil && l.paused != nil
	d.mu.Unlock()
	switch {
	case l == nil:
		return ErrNoLane
	case !paused:
		return fmt.Errorf("%w: it is not paused", ErrLaneState)
	}
	return d.release(ctx, lane.LaneKey, store.Paused, func(now time.Time) {
		if l := d.core.lanes[lane]; l != nil {
			d.core.resume(l, now)
		}
	})
}

// release forgets a hold and lets the lane go on.
func (d *Dispatcher) release(ctx context.Context, lane store.LaneKey, kind store.HoldKind, letGo func(now time.Time)) error {
	if err := d.store.Release(ctx, d.epoch, lane, kind); err != nil {
		return err
	}
	d.mu.Lock()
	letGo(time.Now())
	d.mu.Unlock()
	d.wakeWorkers()
	return nil
}

// Restore holds the lanes that were held when the relay last ran. Call it before
// Run.
func (d *Dispatcher) Restore(holds []store.Hold) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.core.restore(holds)
}

// Requeue sets FAILED rows back to PENDING; lanes that one of them blocked go
// on. With place they are put in front of their lanes; without, the source has
// to find them in the table. It waits for room in the buffer, takes at most limit
// rows and returns how many.
func (d *Dispatcher) Requeue(ctx context.Context, f store.DeadLetterFilter, limit int, place bool) (int, error) {
	if err := d.waitForRoom(ctx); err != nil {
		return 0, err
	}
	d.operatorMu.Lock()
	defer d.operatorMu.Unlock()
	if d.ended() {
		return 0, ErrStopped
	}
	items, err := d.store.Requeue(ctx, d.epoch, f, limit)
	if err != nil {
		return 0, err
	}
	refs := make([]store.Ref, len(items))
	for i := range items {
		refs[i] = items[i].Ref
	}
	d.mu.Lock()
	if place {
		d.core.requeue(items)
	}
	d.core.releaseFixed(refs, time.Now())
	d.mu.Unlock()
	d.wakeWorkers()
	if d.ended() {
		return len(refs), fmt.Errorf("%w; the rows are PENDING and are found after the next start", ErrStopped)
	}
	return len(refs), nil
}

// ended reports whether nothing is sent any more.
func (d *Dispatcher) ended() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-d.stopped:
		return true
	default:
		return d.core.ended
	}
}

// TrackSettled begins to remember which rows settle, for Found, or forgets them.
func (d *Dispatcher) TrackSettled(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.core.trackSettled(on)
}

// InsertFound places rows of one outbox that came back to PENDING without an insert in
// front of their lanes, but for those that lanes hold or that settled since Watch,
// and returns how many; lanes that one of them blocked go on.
func (d *Dispatcher) InsertFound(items []store.Item) int {
	d.mu.Lock()
	placed := d.core.insertFound(items, time.Now())
	d.mu.Unlock()
	d.wakeWorkers()
	return placed
}

// Discard deletes FAILED rows; lanes that one of them blocked go on. It takes
// at most limit rows and returns how many.
func (d *Dispatcher) Discard(ctx context.Context, f store.DeadLetterFilter, limit int) (int, error) {
	d.operatorMu.Lock()
	defer d.operatorMu.Unlock()
	refs, err := d.store.Discard(ctx, d.epoch, f, limit)
	if err != nil {
		return 0, err
	}
	d.mu.Lock()
	d.core.releaseFixed(refs, time.Now())
	d.mu.Unlock()
	d.wakeWorkers()
	return len(refs), nil
}

func (d *Dispatcher) waitForRoom(ctx context.Context) error {
	for d.Room() <= 0 {
		d.SpillExcess(false)
		select {
		case <-ctx.Done():
			return fmt.Errorf("the buffer is full of rows that wait for the sink: %w", context.Cause(ctx))
		case <-d.stopped:
			return ErrStopped
		case <-d.roomFreed:
		}
	}
	notify(d.roomFreed) // somebody else may wait too
	return nil
}
