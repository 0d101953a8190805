package dispatch

import (
	"maps"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/store"
)

// finish repairs the receivers and expects every row to be done.
func (w *coreModel) finish(t *rapid.T) {
	w.down, w.frozen = false, false
	w.core.freeze(false)
	w.unlockAll()
	if w.ended {
		w.drain(t)
		w.start()
	}
	for range 3000 {
		if w.core.heldRows() == 0 && w.replaysDone() {
			break
		}
		w.releaseAllHolds()
		w.await(t)
		w.replay(t)
		w.claim(t)
		w.answerClaims(t)
		for len(w.sending) > 0 {
			w.answer(t)
		}
		w.answerPing(t)
		w.takeOutcomes(t)
		w.write(t)
		w.recordFinished(t)
		w.sleep(20 * time.Second)
	}
	w.releaseAllHolds()
	w.finishReplays()
	c := w.core
	if c.heldRows() != 0 || c.heldBytes() != 0 || len(c.live()) != 0 || !c.drained() || len(c.timedLanes())+len(c.queuedLanes())+c.deferredCount() > 0 {
		t.Fatalf("left over: %d rows, %d bytes, %d lanes", c.heldRows(), c.heldBytes(), len(c.live()))
	}
	for _, id := range slices.Sorted(maps.Keys(w.table)) {
		r := w.table[id]
		if !r.settled() {
			t.Fatalf("row %s is %s", id, r.status)
		}
		if r.poison && !r.changed && r.status != store.Failed {
			t.Fatalf("poisoned row %s is %s", id, r.status)
		}
	}
}

// drain runs an ended core until nothing is in flight. No claimed row may stay PROCESSING,
// unless its table refuses the change.
func (w *coreModel) drain(t *rapid.T) {
	w.answerClaims(t)
	for len(w.sending) > 0 {
		w.answer(t)
	}
	for !w.core.drained() {
		w.takeOutcomes(t)
		w.write(t)
		w.recordFinished(t)
		w.sleep(maxVisibilityWait) // an outcome may wait for its row
	}
	for id, r := range w.table {
		if !w.unclaimed && r.status == store.Processing && r.claimEpoch == w.epoch && !r.gone && r.refusals == 0 && !w.rowLocked(r) {
			t.Fatalf("row %s is left PROCESSING by a clean end", id)
		}
	}
}
