package dispatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	lanes "github.com/sluicebox/sluicebox/dispatch/internal/lane"
	"github.com/sluicebox/sluicebox/store"
)

// LaneName identifies a lane: its outbox, kind and group, and
//
//   - RowID, the lane of a single row, if ungrouped rows have a lane each
//   - Job, the replay that owns the lane; "" for a live lane
type LaneName = lanes.Name

// LaneInfo is a snapshot of a lane.
type LaneInfo struct {
	store.LaneKey

	// RowID is set if ungrouped rows have a lane each.
	RowID string `json:"row_id,omitempty"`

	// Job is set for a replay lane. While it exists, the group's live lane is replaying.
	Job string `json:"replay,omitempty"`

	// State is ready, claiming, sending, writing, waiting, stalled, spilled, blocked,
	// paused or replaying. A stalled lane is retried like a waiting one, but its head goes
	// unanswered while the receiver accepts other rows.
	State string `json:"state"`

	// Rows is the number of rows in memory, Spilled the number of further rows in the
	// store. Unwritten is the number of other rows that were delivered and whose COMPLETED
	// the table refuses. A lane with unwritten rows only is writing.
	Rows      int `json:"rows"`
	Spilled   int `json:"spilled"`
	Unwritten int `json:"unwritten"`

	// Head is the id of the first row, or of the FAILED row that blocks the lane. If there
	// is neither, it is the first unwritten row.
	Head string `json:"head"`

	// Attempts is the number of requests under this leader that carried the head.
	// RetryCount is how many of its failures counted.
	Attempts   int `json:"attempts"`
	RetryCount int `json:"retry_count"`

	// NextAttempt is the next try of a waiting lane. If the lane waits for a circuit
	// breaker, it is the next probe of any lane.
	NextAttempt time.Time `json:"next_attempt,omitzero"`

	// Error is the head's latest failure, or the table's error for a row's outcome. Reason
	// explains a paused or replaying lane.
	Error  string `json:"error,omitempty"`
	Reason string `json:"reason,omitempty"`

	// Since is when a lane was blocked or paused, when the table first refused its head, or
	// when the head of a stalled lane first failed.
	Since time.Time `json:"since,omitzero"`
}

// LaneFilter selects lanes. A zero field selects all.
type LaneFilter struct {
	Outbox, Kind string
	Group        *store.Group
	State        string

	// Troubled selects lanes on hold and lanes whose head has failed.
	Troubled bool
}

var (
	// ErrNoLane is returned if the lane has no row in memory and no hold.
	ErrNoLane = errors.New("lane not found")

	// ErrLaneState is returned if the lane's state does not allow the action.
	ErrLaneState = errors.New("action not allowed in this lane state")

	// ErrStopped is returned once the dispatcher has stopped.
	ErrStopped = errors.New("dispatcher stopped")

	errDelivered  = fmt.Errorf("%w: head row already settled", ErrLaneState)
	errWriting    = fmt.Errorf("%w: head row outcome is being written; retry", ErrLaneState)
	errSpilled    = fmt.Errorf("%w: rows are spilled and being reloaded; retry", ErrLaneState)
	errOnHold     = fmt.Errorf("%w: lane is blocked, paused or being replayed; skip or requeue the row, resume the lane, or pause the replay", ErrLaneState)
	errReplayLane = fmt.Errorf("%w: rows are sent by a replay; pause or cancel the replay", ErrLaneState)
	errRowLane    = fmt.Errorf("%w: cannot pause a single-row lane; skip the row", ErrLaneState)
)

// Lanes returns at most limit of the selected lanes, in the order of CompareLanes, and the
// total number. The time is linear in the lanes.
func (d *Dispatcher) Lanes(f LaneFilter, limit int) (lanes []LaneInfo, total int) {
	d.mu.Lock()
	unwritten := d.core.unwrittenLanes()
	for l := range d.core.lanes.All() {
		more := unwritten[l.Name]
		delete(unwritten, l.Name)
		if !f.matches(l.Name) || f.State != "" && f.State != l.StateName() ||
			f.Troubled && !l.OnHold() && l.LastError == "" && l.Refusal == "" && more == nil {
			continue
		}
		in := laneInfo(l)
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

// CompareLanes orders lanes for an operator: lanes that do not move, then failing lanes,
// then the rest, each with the longest lanes first.
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

// matches reports whether the filter selects a lane by name.
func (f *LaneFilter) matches(name LaneName) bool {
	return (f.Outbox == "" || f.Outbox == name.Outbox) &&
		(f.Kind == "" || f.Kind == name.Kind) &&
		(f.Group == nil || *f.Group == name.Group)
}

// RetryNow retries a waiting lane at once, even if the circuit breaker is open.
func (d *Dispatcher) RetryNow(lane LaneName) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.core.operator.retryNow(d.core.lanes.Get(lane))
	notify(d.toClaim)
	return err
}

// Skip passes over the first row of a lane.
//
//   - A row that blocks the lane stays FAILED.
//   - Any other row becomes FAILED, with the reason as its error.
//   - A row in flight is skipped only if its request fails.
//
// Skip returns once the result is durable, or ErrLaneState if the row was delivered after
// all. A replayed row cannot be skipped.
func (d *Dispatcher) Skip(ctx context.Context, lane LaneName, reason string) error {
	if lane.Job != "" {
		return errReplayLane
	}
	d.mu.Lock()
	l := d.core.lanes.Get(lane)
	if l != nil && l.Blocked != nil {
		d.mu.Unlock()
		return d.skipBlocked(ctx, lane)
	}
	done, err := d.core.operator.skip(l, reason, time.Now())
	d.mu.Unlock()
	if err != nil {
		notify(d.toSpill) // its first row may have to be reloaded
		return err
	}
	d.wakeWorkers()

	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("skip pending until the request in flight ends: %w", context.Cause(ctx))
	case <-d.stopped:
		return ErrStopped
	}
}

// skipBlocked releases a blocked lane, unless it is no longer blocked.
func (d *Dispatcher) skipBlocked(ctx context.Context, lane LaneName) error {
	d.operatorMu.Lock()
	defer d.operatorMu.Unlock()
	return d.release(ctx, lane.LaneKey, store.Blocked, func(c *core) {
		if l := c.lanes.Get(lane); l != nil && l.Blocked != nil {
			c.operator.unblock(l, time.Now())
		}
	})
}

// Pause keeps a lane from moving until Resume, across restarts. The pause is durable when
// Pause returns. A request in flight ends first. The lane need not have rows. Replay lanes
// of the group are paused too.
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
	if err := d.opt.Store.Hold(ctx, d.opt.Epoch, h); err != nil {
		return err
	}
	d.change(func(c *core) { c.operator.pause(lane, h) })
	return nil
}

// Resume ends a pause durably.
func (d *Dispatcher) Resume(ctx context.Context, lane LaneName) error {
	if lane.Job != "" {
		return errReplayLane
	}
	d.operatorMu.Lock()
	defer d.operatorMu.Unlock()
	d.mu.Lock()
	l := d.core.lanes.Get(lane)
	paused := l != nil && l.Paused != nil
	d.mu.Unlock()

	switch {
	case l == nil:
		return ErrNoLane
	case !paused:
		return fmt.Errorf("%w: lane is not paused", ErrLaneState)
	}

	return d.release(ctx, lane.LaneKey, store.Paused, func(c *core) {
		if l := c.lanes.Get(lane); l != nil {
			c.operator.resume(l, time.Now())
		}
	})
}

// release deletes a hold and releases the lane.
func (d *Dispatcher) release(ctx context.Context, lane store.LaneKey, kind store.HoldKind, resume func(*core)) error {
	err := d.opt.Store.Release(ctx, d.opt.Epoch, lane, kind)
	if err == nil {
		d.change(resume)
	}
	return err
}

// Restore restores the holds from the last run of the relay. Call it before Run.
func (d *Dispatcher) Restore(holds []store.Hold) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.core.operator.restore(holds)
}

// requeueTimeout limits a requeue of rows that only the log has.
const requeueTimeout = 30 * time.Second

// Requeue resets at most limit FAILED rows to PENDING and returns how many. It waits for
// room in the buffer. Lanes blocked by one of the rows go on. With place the rows go in
// front of their lanes; without it the source must find them in the table, unless only the log
// had them.
//
// If the answer of the store is lost, rows that only the log had may be spilled in lanes that do
// not know of them, so Run ends with the error and a new session reads the lanes.
func (d *Dispatcher) Requeue(ctx context.Context, f store.DeadLetterFilter, limit int, place bool) (int, error) {
	if err := d.waitForRoom(ctx); err != nil {
		return 0, err
	}
	d.operatorMu.Lock()
	defer d.operatorMu.Unlock()
	if d.ended() {
		return 0, ErrStopped
	}
	if d.opt.LogOnly[f.Outbox] { // a caller that leaves must not cancel a write under way
		detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), requeueTimeout)
		defer cancel()
		ctx = detached
	}
	items, err := d.opt.Store.Requeue(ctx, d.opt.Epoch, f, limit)
	if errors.Is(err, store.ErrUnsure) {
		select {
		case d.unsure <- err:
		default:
		}
	}
	if err != nil {
		return 0, err
	}

	refs := make([]store.Ref, len(items))
	for i := range items {
		refs[i] = items[i].Ref
	}
	d.change(func(c *core) {
		if place || c.lanes.Memory.LogOnly[f.Outbox] {
			c.operator.requeue(items)
		}
		c.operator.releaseFixed(refs, time.Now())
	})
	if d.ended() {
		return len(refs), fmt.Errorf("%w: rows are PENDING; the next leader delivers them", ErrStopped)
	}
	return len(refs), nil
}

// ended reports whether the dispatcher no longer sends.
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

// TrackSettled starts or stops recording settled rows for InsertFound.
func (d *Dispatcher) TrackSettled(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.core.operator.trackSettled(on)
}

// InsertFound puts rows of one outbox that returned to PENDING without an insert in front
// of their lanes, and returns how many. It leaves out rows that are in lanes, or settled
// since TrackSettled. Lanes blocked by one of the rows go on.
func (d *Dispatcher) InsertFound(items []store.Item) int {
	placed := 0
	d.change(func(c *core) { placed = c.operator.insertFound(items, time.Now()) })
	return placed
}

// Unknown returns the rows that InsertFound would insert into lanes of an outbox. It changes items.
func (d *Dispatcher) Unknown(outbox string, items []store.Item) []store.Item {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.core.operator.unknown(outbox, items)
}

// Discard deletes at most limit FAILED rows and returns how many. Lanes blocked by one of
// the rows go on.
func (d *Dispatcher) Discard(ctx context.Context, f store.DeadLetterFilter, limit int) (int, error) {
	d.operatorMu.Lock()
	defer d.operatorMu.Unlock()
	refs, err := d.opt.Store.Discard(ctx, d.opt.Epoch, f, limit)
	if err != nil {
		return 0, err
	}
	d.change(func(c *core) { c.operator.releaseFixed(refs, time.Now()) })
	return len(refs), nil
}

func (d *Dispatcher) waitForRoom(ctx context.Context) error {
	for d.Room() <= 0 {
		d.SpillExcess(false)
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for buffer room: buffer full: %w", context.Cause(ctx))
		case <-d.stopped:
			return ErrStopped
		case <-d.roomFreed:
		}
	}
	notify(d.roomFreed) // another caller may wait too
	return nil
}
