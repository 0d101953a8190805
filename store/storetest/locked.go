package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Locking is a Database in which a session can lock rows against other writers.
type Locking interface {
	Database
	// LockRows locks rows of an outbox until unlock is called.
	LockRows(t *testing.T, outbox string, ids ...string) (unlock func())
	// LockTable locks the table of an outbox until unlock is called. unlock is nil if the
	// database has no table locks.
	LockTable(t *testing.T, outbox string) (unlock func())
}

const (
	// maxLockWait limits the first call that meets a lock. A server may round its lock
	// timeout to whole seconds, and may need a second wait to distinguish row locks from
	// table locks. A wait for each locked row would take longer: there are 80, with 1 s each.
	maxLockWait = 40 * time.Second
	// maxTableWait limits a later call for a locked table, and maxRowWait one for any
	// number of locked rows. On an idle machine they take 1 s and 0.1 s.
	maxTableWait, maxRowWait = 10 * time.Second, 8 * time.Second
)

func lockTests() []test {
	return []test{
		{"a locked table", (*suite).testLockedTable, isWords},
		{"outcomes of locked rows", (*suite).testLockedOutcomes, all(keepsState, changesState)},
		{"claims of locked rows", (*suite).testLockedClaims, func(l *store.Layout) bool { return isWords(l) || skipsClaims(l) }},
	}
}

// requireLocking skips the test if the database has no such locks.
func (b *bench) requireLocking(t *testing.T) Locking {
	db, ok := b.db.(Locking)
	if !ok {
		t.Skip("this database has no row or table locks")
	}
	return db
}

// within fails the test if a call exceeds its limit.
func within(t *testing.T, what string, limit time.Duration, call func()) {
	t.Helper()
	began := time.Now()
	call()
	if took := time.Since(began); took > limit {
		t.Errorf("%s took %s, want at most %s", what, took, limit)
	}
}

// testLockedTable: a locked table delays only the rows of its outbox, for claims and
// outcomes, and each call by at most maxTableWait.
func (s *suite) testLockedTable(t *testing.T) {
	b := s.start(t, 0)
	db := b.requireLocking(t)
	var inFlight, waiting, all []Row
	for i := range 20 {
		inFlight, waiting = append(inFlight, row(fmt.Sprint("in flight ", i))), append(waiting, row(fmt.Sprint("waiting ", i)))
	}

	all = append(append(all, inFlight...), waiting...)
	b.insert(t, "a", all...)
	b.insert(t, "b", all...)
	for _, outbox := range []string{"a", "b"} {
		for i := range inFlight {
			b.take(t, outbox, inFlight[i].ID)
		}
	}

	unlock := db.LockTable(t, "a")
	if unlock == nil {
		t.Skip("this database has no table locks")
	}
	defer unlock()

	var claim []store.ClaimRow
	for i := range waiting {
		claim = append(claim, store.ClaimRow{Ref: ref("a", waiting[i].ID)}, store.ClaimRow{Ref: ref("b", waiting[i].ID), WantPayload: i%2 == 0})
	}
	outcomes := append(outcomesFor("a", inFlight), outcomesFor("b", inFlight)...)
	for turn, limit := range []time.Duration{maxLockWait, maxTableWait} {
		within(t, fmt.Sprint("claim ", turn), limit, func() { b.wantTableLocked(t, claim) })
		within(t, fmt.Sprint("settle ", turn), limit, func() {
			for i, got := range b.settle(t, outcomes...) {
				want := store.TableWasLocked
				switch {
				case outcomes[i].Outbox == "a":
				case turn == 0:
					want = store.Written
				default:
					continue
				}
				if got != want {
					t.Errorf("settle %d: outcome %d of %s: %d, want %d", turn, i, outcomes[i].Outbox, got, want)
				}
			}
		})
		outcomes[0], outcomes[len(inFlight)] = outcomes[len(inFlight)], outcomes[0] // any order
	}

	b.wantAwaited(t, unlock)

	for i, a := range b.claim(t, claim...) {
		if a.Result != store.Claimed {
			t.Errorf("with nothing locked: row %d is %s", i, a.Result)
		}
	}

	for i, got := range b.settle(t, outcomesFor("a", inFlight)...) {
		if got != store.Written {
			t.Errorf("with nothing locked: outcome %d: %d", i, got)
		}
	}
}

// wantTableLocked claims rows of a locked table a and of an unlocked table b.
func (b *bench) wantTableLocked(t *testing.T, claim []store.ClaimRow) {
	t.Helper()
	for i, a := range b.claim(t, claim...) {
		want := store.TableLocked
		if claim[i].Outbox == "b" {
			want = store.Claimed
		}
		if a.Result != want {
			t.Errorf("claim of row %s of %s: %s, want %s", claim[i].ID, claim[i].Outbox, a.Result, want)
		}
	}
}

// outcomesFor returns outcomes of all statuses for rows.
func outcomesFor(outbox string, rows []Row) (list []store.Outcome) {
	for i := range rows {
		o := store.Outcome{Ref: ref(outbox, rows[i].ID), Status: store.Completed, At: now()}
		switch i % 5 {
		case 1:
			o.Status, o.RetryCount, o.Error = store.Failed, 3, "no"
		case 2:
			o.Status, o.RetryCount, o.Error = store.Pending, 1, "later"
		}
		list = append(list, o)
	}
	return list
}

// wantAwaited checks that AwaitTable waits for outbox a only, for a bounded time, and
// notices the end of the lock.
func (b *bench) wantAwaited(t *testing.T, unlock func()) {
	t.Helper()
	within(t, "awaiting another table", maxRowWait, func() {
		if err := b.store.AwaitTable(b.ctx(t), "b"); err != nil {
			t.Errorf("awaiting another table: %v", err)
		}
	})
	began := time.Now()
	within(t, "awaiting the table", maxTableWait, func() {
		if err := b.store.AwaitTable(b.ctx(t), "a"); !errors.As(err, new(*store.OutboxLockedError)) {
			t.Errorf("awaiting the table: %v", err)
		}
	})
	if time.Since(began) < 400*time.Millisecond {
		t.Errorf("AwaitTable waited %s, want at least 400ms", time.Since(began))
	}

	ctx, cancel := context.WithCancel(b.ctx(t))
	defer cancel()
	free := make(chan error, 1)
	go func() {
		for {
			err := b.store.AwaitTable(ctx, "a")
			if !errors.As(err, new(*store.OutboxLockedError)) {
				free <- err
				return
			}
		}
	}()

	unlock()
	within(t, "hearing that the table is free", maxRowWait, func() {
		if err := <-free; err != nil {
			t.Error(err)
		}
	})
}

// insertLockable inserts 120 rows into outbox a and claims them. It returns the ids of two thirds
// of them, which the test locks.
func (b *bench) insertLockable(t *testing.T) (list []Row, locked []string) {
	t.Helper()
	var ids []string
	for i := range 120 {
		list = append(list, row(fmt.Sprintf("row %03d", i)))
		ids = append(ids, list[i].ID)
		if i%3 > 0 {
			locked = append(locked, list[i].ID)
		}
	}

	b.insert(t, "a", list...)
	b.insert(t, "b", row("other"))
	b.take(t, "a", ids...)
	return list, locked
}

// testLockedOutcomes: locked rows delay no other outcome of a call. After the first call
// that met them, Settle does not wait for any.
func (s *suite) testLockedOutcomes(t *testing.T) {
	b := s.start(t, 0)
	db := b.requireLocking(t)
	list, locked := b.insertLockable(t)
	key := lane("a", "EVENT", store.GroupOf("g"))
	spilled := capturedRow(key, list[1].ID, 1)
	b.spill(t, spilled)
	unlock := db.LockRows(t, "a", locked...)
	defer unlock()
	outcomes := outcomesFor("a", list)
	outcomes[1].SpilledSeq = spilled.Seq // FAILED and locked
	held := blockLane(&outcomes[1], key)
	for turn, limit := range []time.Duration{maxLockWait, maxRowWait, maxRowWait} {
		within(t, fmt.Sprint("settle ", turn), limit, func() {
			for i, got := range b.settle(t, outcomes...) {
				switch settles := outcomes[i].Status.Settled(); {
				case !settles && b.layout.Columns.RetryCount == "": // nothing of it is stored
				case i%3 > 0 && got != store.WasLocked:
					t.Errorf("settle %d: outcome %d of a locked row: %d", turn, i, got)
				case i%3 == 0 && (turn == 0 || !settles) && got != store.Written:
					t.Errorf("settle %d: outcome %d: %d", turn, i, got)
				}
			}
		})
	}

	within(t, "settle of no locked row", maxRowWait, func() {
		if got := b.settle(t, outcomesFor("b", []Row{row("other")})...); got[0] != store.Written {
			t.Errorf("an outcome of another outbox: %d", got[0])
		}
	})
	b.wantLane(t, "while the row is locked", key, spilled)
	b.wantHolds(t, "while the row is locked", b.store)
	unlock()
	for i, got := range b.settle(t, outcomes...) {
		if i%3 > 0 && got != store.Written {
			t.Errorf("with nothing locked: outcome %d: %d", i, got)
		}
	}

	b.wantLane(t, "with nothing locked", key)
	b.wantHolds(t, "with nothing locked", b.store, held)
}

// testLockedClaims is testLockedOutcomes for claims.
func (s *suite) testLockedClaims(t *testing.T) {
	b := s.start(t, 0)
	db := b.requireLocking(t)
	list, locked := b.insertLockable(t)
	unlock := db.LockRows(t, "a", locked...)
	defer unlock()
	var claim []store.ClaimRow
	for i := range list {
		claim = append(claim, store.ClaimRow{Ref: ref("a", list[i].ID)})
	}

	for turn, limit := range []time.Duration{maxLockWait, maxRowWait, maxRowWait} {
		within(t, fmt.Sprint("claim ", turn), limit, func() {
			for i, a := range b.claim(t, claim...) {
				want := store.Claimed
				if b.claimWrites() && slices.Contains(locked, claim[i].ID) {
					want = store.NotYetVisible
				}
				if a.Result != want && (b.claimWrites() || a.Result != store.NotYetVisible) {
					t.Errorf("claim %d of row %s: %s, want %s", turn, claim[i].ID, a.Result, want)
				}
			}
		})
	}

	unlock()
	for i, a := range b.claim(t, claim...) {
		if a.Result != store.Claimed {
			t.Errorf("with nothing locked: row %s is %s", claim[i].ID, a.Result)
		}
	}
}
