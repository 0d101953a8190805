package dispatch

import (
	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/store"
)

// lockModel is the locks of other sessions in the model's tables, and the pauses, by outbox.
type lockModel struct {
	pauses map[string]bool
	locked map[string]bool
	known  map[string]bool // as reported to the core
}

func newLockModel() lockModel {
	return lockModel{map[string]bool{}, map[string]bool{}, map[string]bool{}}
}

// lockTable locks or unlocks a table.
func (w *coreModel) lockTable(t *rapid.T) {
	key := rapid.SampledFrom(w.keys).Draw(t, "lane")
	w.locked[key.Outbox] = !w.locked[key.Outbox] && rapid.Bool().Draw(t, "locked")
}

// unlockAll unlocks all tables and rows and reports that to the core.
func (w *coreModel) unlockAll() {
	clear(w.locked)
	clear(w.known)
	for _, r := range w.table {
		r.lock = 0
	}
	for _, outbox := range w.core.lockedOutboxes() {
		w.core.unlockTable(outbox, w.now)
	}
	w.check()
}

// await waits for the locked table that is due.
func (w *coreModel) await(*rapid.T) {
	outbox, due, ok := w.core.nextLockedTable()
	if !ok || due.After(w.now) {
		return
	}
	if w.locked[outbox] {
		w.core.deferTable(outbox, w.now.Add(minTableLockInterval))
	} else {
		delete(w.known, outbox)
		w.core.unlockTable(outbox, w.now)
	}
	w.check()
}

// rowLocked reports whether the outcome of a row waits for a lock on it.
func (w *coreModel) rowLocked(r *record) bool {
	for _, o := range w.core.retrying() {
		if o.ID == r.id && rowIsLocked(&o) {
			return true
		}
	}
	return false
}

// pauseOutbox pauses or resumes all lanes of an outbox.
func (w *coreModel) pauseOutbox(t *rapid.T) {
	outbox := rapid.SampledFrom(w.keys).Draw(t, "lane").Outbox
	if w.pauses[outbox] {
		w.resumeOutbox(outbox)
	} else {
		w.pauses[outbox] = true
		w.core.operator.pauseOutbox(w.pauseOf(outbox))
	}
	w.check()
}

func (w *coreModel) pauseOf(outbox string) *store.Hold {
	return &store.Hold{Lane: store.PauseOfOutbox(outbox), Kind: store.OutboxPaused, Since: w.now}
}

func (w *coreModel) resumeOutbox(outbox string) {
	for name := range w.queue {
		if name.Outbox == outbox {
			w.holdEnds(name)
		}
	}
	delete(w.pauses, outbox)
	w.core.operator.resumeOutbox(outbox)
}

// isPaused reports whether the lane may begin no request, because its outbox is paused.
func (w *coreModel) isPaused(name LaneName) bool {
	return w.pauses[name.Outbox] && w.row(w.queue[name][0]).skipped == nil
}

// checkLocks checks that the core knows which tables are locked, and waits for each in
// time.
func (w *coreModel) checkLocks() {
	for _, key := range w.keys {
		due, locked := w.core.tableDue(key.Outbox)
		if locked != w.known[key.Outbox] {
			w.t.Fatalf("the table of %s is locked %v, as the core knows; reported %v", key.Outbox, locked, w.known[key.Outbox])
		}
		if locked && due.After(w.now.Add(max(maxTableLockWait, minTableLockInterval))) {
			w.t.Fatalf("the table of %s is asked for at %v, now it is %v", key.Outbox, due, w.now)
		}
	}
	for l := range w.core.allLanes() {
		if l.IsAside() && l.OutboxPause() == nil && !w.known[l.Name.Outbox] {
			w.t.Fatalf("lane %s waits for a table that is not locked", l.Name)
		}
		if paused := l.OutboxPause() != nil; paused && !w.pauses[l.Name.Outbox] {
			w.t.Fatalf("lane %s waits for an outbox that is not paused", l.Name)
		}
	}
}
