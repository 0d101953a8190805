package dispatch

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/store"
)

// someLane returns the lane of one of the groups.
func (w *coreModel) someLane(t *rapid.T) LaneName {
	return LaneName{LaneKey: rapid.SampledFrom(w.keys).Draw(t, "lane")}
}

func (w *coreModel) pauseLane(t *rapid.T) {
	name := w.someLane(t)
	if !name.Group.Valid && w.cfg.Ungrouped == Parallel {
		return
	}
	h := store.Hold{Lane: name.LaneKey, Kind: store.Paused, Since: w.now}
	w.hold(h)
	w.core.pause(name, h)
	w.check()
}

// releaseHold resumes a lane and skips the row that blocks it.
func (w *coreModel) releaseHold(t *rapid.T) {
	w.releaseLane(w.someLane(t))
	w.check()
}

func (w *coreModel) releaseAllHolds() {
	for outbox := range w.pauses {
		w.resumeOutbox(outbox)
	}
	for _, key := range w.keys {
		w.releaseLane(LaneName{LaneKey: key})
		for _, id := range w.ids {
			w.release(id, key)
		}
	}
	w.check()
}

func (w *coreModel) releaseLane(name LaneName) {
	holds := w.holds[name.LaneKey]
	delete(w.holds, name.LaneKey)
	if len(holds) > 0 {
		w.holdEnds(name)
	}
	if _, blocked := holds[store.Blocked]; blocked {
		w.core.unblock(w.core.live()[name], w.now)
	}
	if _, paused := holds[store.Paused]; paused {
		w.core.resume(w.core.live()[name], w.now)
	}
}

// laneWithRows returns a lane that has rows, if there is one.
func (w *coreModel) laneWithRows(t *rapid.T) (name LaneName, ok bool) {
	names := slices.DeleteFunc(slices.Collect(maps.Keys(w.queue)), func(n LaneName) bool { return len(w.queue[n]) == 0 })
	if len(names) == 0 {
		return name, false
	}
	slices.SortFunc(names, func(a, b LaneName) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	return rapid.SampledFrom(names).Draw(t, "lane"), true
}

// skip skips the head of a lane.
func (w *coreModel) skip(t *rapid.T) {
	name, ok := w.laneWithRows(t)
	if !ok || w.ended || name.Job != "" {
		return
	}
	if _, blocked := w.holds[name.LaneKey][store.Blocked]; blocked && name.RowID == "" {
		return // the FAILED row is skipped
	}
	head := w.table[w.queue[name][0]]
	writing := w.core.live()[name].State == laneWriting
	done, err := w.core.skip(w.core.live()[name], "passed over", w.now)
	if refused := writing || head.skipped != nil; refused != (err != nil) || err != nil && !errors.Is(err, ErrLaneState) {
		t.Fatalf("passing over row %s, an outcome on its way %v, asked before %v: %v", head.id, writing, head.skipped != nil, err)
	}
	if err == nil {
		head.skipped = done
		delete(w.notBefore, name)
		delete(w.paused, name)
		w.claims[name] = 0
		w.allow()
	}
	w.check()
}

// requeue resets a FAILED row to PENDING.
func (w *coreModel) requeue(t *rapid.T) {
	var failed []string
	for _, id := range slices.Sorted(maps.Keys(w.table)) {
		if r := w.table[id]; r.status == store.Failed && r.over && !r.gone {
			failed = append(failed, id)
		}
	}
	if len(failed) == 0 || w.core.heldRows() >= w.cfg.BufferRows {
		return
	}
	old := w.table[rapid.SampledFrom(failed).Draw(t, "row")]
	r := &record{
		id: old.id, key: old.key, size: old.size, dropped: true, poison: old.poison,
		visible: true, status: store.Pending, arrived: old.arrived, changed: old.changed, requeued: true,
	}
	w.table[r.id] = r
	name := w.lane(r)
	w.truth[name] = slices.DeleteFunc(w.truth[name], func(id string) bool { return id == r.id })
	w.insertFront([]*record{r})
	w.batches = append(w.batches, &batch{rows: []*record{r}, withoutTicket: true})
	w.core.requeue(w.items([]*record{r}))
	w.core.requeue(w.items([]*record{r})) // the log may deliver it again
	if w.holds[r.key][store.Blocked].ID == r.id {
		w.holdEnds(name)
		delete(w.holds[r.key], store.Blocked)
	}
	w.core.releaseFixed([]store.Ref{{Outbox: r.key.Outbox, ID: r.id}}, w.now)
	w.check()
}

// retryNow retries a lane at once.
func (w *coreModel) retryNow(t *rapid.T) {
	name, ok := w.laneWithRows(t)
	if !ok {
		return
	}
	l := w.core.laneOf(name)
	moves := l.State == laneWaiting || l.State == laneReady && w.endpointNamed(l.Receiver.Endpoint).breakerOpen
	if err := w.core.retryNow(l); (err != nil) != (l.State == laneHeld || w.pauses[name.Outbox]) {
		t.Fatalf("lane %s, %s: %v", name, l.State, err)
	}
	if moves && !w.pauses[name.Outbox] {
		delete(w.notBefore, name)
		delete(w.paused, name)
		w.claims[name] = 0
		w.allow()
	}
	w.check()
}
