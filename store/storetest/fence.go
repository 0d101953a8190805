package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluicebox/sluicebox/store"
)

func (s *suite) testLead(t *testing.T) {
	b := s.start(t, 0)
	if b.epoch != 1 {
		t.Fatalf("first leader: got epoch %d, want 1", b.epoch)
	}

	rival := b.open(t, 0)
	if e := b.lead(t, rival); e != 2 {
		t.Fatalf("second leader: got epoch %d, want 2", e)
	}

	// The epoch survives the stores.
	b.store.Close()
	rival.Close()
	if e := b.lead(t, b.open(t, 0)); e != 3 {
		t.Fatalf("third leader: got epoch %d, want 3", e)
	}
}

func (s *suite) testOldEpoch(t *testing.T) {
	b := s.start(t, 0)
	b.insert(t, "a", row("1"), row("2"))
	b.take(t, "a", "2")
	if err := b.store.SaveCheckpoint(b.ctx(t), b.epoch, store.Checkpoint{Position: "old", Seq: 1}); err != nil {
		t.Fatal(err)
	}

	before1, before2 := b.read(t, "a", "1"), b.read(t, "a", "2")

	b.lead(t, b.open(t, 0))
	for _, epoch := range []store.Epoch{0, b.epoch, b.epoch + 1, b.epoch + 2} {
		claims := []store.ClaimRow{{Ref: ref("a", "1")}, {Ref: ref("b", "none")}}
		if _, err := b.store.Claim(b.ctx(t), epoch, now(), claims); !errors.Is(err, store.ErrNotLeader) {
			t.Errorf("claim with epoch %d: %v", epoch, err)
		}
		for _, status := range []store.Status{store.Pending, store.Completed, store.Failed} {
			o := store.Outcome{Ref: ref("a", "2"), Status: status, RetryCount: 7, Error: "x", At: now()}
			if _, err := b.store.Settle(b.ctx(t), epoch, []store.Outcome{o}); !errors.Is(err, store.ErrNotLeader) {
				t.Errorf("%s with epoch %d: %v", status, epoch, err)
			}
		}
		err := b.store.SaveCheckpoint(b.ctx(t), epoch, store.Checkpoint{Position: "new", Seq: 2})
		if !errors.Is(err, store.ErrNotLeader) {
			t.Errorf("checkpoint with epoch %d: %v", epoch, err)
		}
	}

	if after := b.read(t, "a", "1"); after != before1 {
		t.Errorf("the claim changed %+v into %+v", before1, after)
	}
	if after := b.read(t, "a", "2"); after != before2 {
		t.Errorf("an outcome changed %+v into %+v", before2, after)
	}
	if cp, err := b.store.LoadCheckpoint(b.ctx(t)); err != nil || cp.Position != "old" {
		t.Errorf("the checkpoint is %+v, %v", cp, err)
	}

	// The session is still usable.
	b.epoch = b.lead(t, b.store)
	b.take(t, "a", "1")
}

// testLeadRace runs a claim and an outcome of the old leader concurrently with
// AcquireLeadership. Whichever commits first, the rows do not change after
// AcquireLeadership has returned.
func (s *suite) testLeadRace(t *testing.T) {
	b := s.start(t, 0)
	rival := b.open(t, 0)
	const rounds = 40
	var list []Row
	for i := range rounds {
		list = append(list, row(fmt.Sprintf("claim%d", i)), row(fmt.Sprintf("settle%d", i)))
	}

	b.insert(t, "a", list...)
	var refused, landed, ended int
	for i := range rounds {
		toClaim, toSettle := fmt.Sprintf("claim%d", i), fmt.Sprintf("settle%d", i)
		b.epoch = b.lead(t, b.store)
		b.take(t, "a", toSettle)
		old := b.epoch
		outcome := store.Outcome{Ref: ref("a", toSettle), Status: store.Failed, Error: "late", At: now()}
		errs := make(chan error, 2)
		ctx := b.ctx(t)
		go func() {
			_, err := b.store.Claim(ctx, old, now(), []store.ClaimRow{{Ref: ref("a", toClaim)}})
			errs <- err
		}()
		go func() {
			_, err := b.store.Settle(ctx, old, []store.Outcome{outcome})
			errs <- err
		}()
		b.lead(t, rival)
		claimed, settled := b.read(t, "a", toClaim), b.read(t, "a", toSettle)
		for range 2 {
			switch err := <-errs; {
			case err == nil:
				landed++
			case errors.Is(err, store.ErrNotLeader), errors.As(err, new(*store.RefusedError)): // lock wait timeout
				refused++
			default: // the new leader ended it
				t.Log(err)
				ended++
			}
		}

		if after := b.read(t, "a", toClaim); after != claimed {
			t.Fatalf("a claim committed after AcquireLeadership: %+v, then %+v", claimed, after)
		}
		if after := b.read(t, "a", toSettle); after != settled {
			t.Fatalf("an outcome committed after AcquireLeadership: %+v, then %+v", settled, after)
		}
	}

	t.Logf("AcquireLeadership: %d writes committed before it, %d were refused after it, %d were ended by it", landed, refused, ended)
	if landed+refused == 0 {
		t.Error("no write was answered")
	}
}

// testSettleAtOnce writes outcomes of neighboring rows in two calls at a time.
func (s *suite) testSettleAtOnce(t *testing.T) {
	b := s.start(t, 0)
	const calls, each = 8, 25
	list, ids, keys := rows(2*calls*each), []string{}, []store.LaneKey{lane("a", "EVENT", store.GroupOf("even")), lane("a", "EVENT", store.GroupOf("odd"))}
	for i := range list {
		ids = append(ids, list[i].ID)
	}
	b.insert(t, "a", list...)
	b.take(t, "a", ids...)
	outcomes := outcomesFor("a", list)
	var parts [2][]store.Outcome
	var spilled []store.Item
	for i := range outcomes {
		o, item := &outcomes[i], capturedRow(keys[i%2], list[i].ID, store.Seq(i+1))
		if i%6 < 2 && o.Status.Settled() {
			spilled, o.SpilledSeq = append(spilled, item), item.Seq
		}
		if o.Status == store.Failed {
			o.Row = &item
			blockLane(o, keys[i%2])
		}
		parts[i%2] = append(parts[i%2], *o)
	}
	b.spill(t, spilled...)

	var wg errgroup.Group
	for _, part := range parts {
		wg.Go(func() error {
			for call := range slices.Chunk(part, each) {
				results, err := b.store.Settle(b.ctx(t), b.epoch, call)
				if err != nil {
					return err
				}
				for i, got := range results {
					if got != store.Written {
						return fmt.Errorf("outcome %s of row %s: %d, want %d", call[i].Status, call[i].ID, got, store.Written)
					}
				}
			}
			return nil
		})
	}
	if err := wg.Wait(); err != nil {
		t.Fatal(err)
	}
	for i := range outcomes {
		got, want := b.read(t, "a", list[i].ID), outcomes[i].Status
		switch deleted := want == store.Completed && s.layout.DeleteDelivered; {
		case got.Exists == deleted:
			t.Errorf("row %s exists %v, want %v", list[i].ID, got.Exists, !deleted)
		case !deleted && got.Status != want:
			t.Errorf("row %s is %s, want %s", list[i].ID, got.Status, want)
		}
	}
	if left := b.spilledLanes(t, b.store); len(left) > 0 {
		t.Errorf("spilled copies of settled rows are left: %v", left)
	}
}

func (s *suite) testCheckpoint(t *testing.T) {
	b := s.start(t, 0)
	if _, err := b.store.LoadCheckpoint(b.ctx(t)); !errors.Is(err, store.ErrNoCheckpoint) {
		t.Fatalf("without a checkpoint: got %v, want ErrNoCheckpoint", err)
	}

	for _, want := range []store.Checkpoint{
		{Origin: "server-1/3", Position: "0/16B3748", Seq: store.NewSeq(b.epoch, 12)},
		{Position: "7", Seq: 7, Legs: map[string]store.LegMark{
			"events/bus": {Position: "9 '\"\\", Seq: store.NewSeq(b.epoch, 9)}, "events/ünï": {Position: "7", Seq: 1 << 62},
		}},
		{Origin: "", Position: "", Seq: 0},
		{Origin: "ünïcode '\"\\", Position: "uuid:1-77,other:1-3", Seq: store.NewSeq(1<<22, 1<<39)},
	} {
		if err := b.store.SaveCheckpoint(b.ctx(t), b.epoch, want); err != nil {
			t.Fatal(err)
		}
		got, err := b.open(t, 0).LoadCheckpoint(b.ctx(t))
		if err != nil || !got.Equal(want) {
			t.Fatalf("saved %+v, loaded %+v, %v", want, got, err)
		}
	}
}

// testCancelAndClose: a canceled call leaves the store usable, and a closed store returns errors.
func (s *suite) testCancelAndClose(t *testing.T) {
	b := s.start(t, 0)
	b.insert(t, "a", row("1"))
	gone, cancel := contextDone(t)
	cancel()
	if _, err := b.store.Claim(gone, b.epoch, now(), []store.ClaimRow{{Ref: ref("a", "1")}}); err == nil {
		t.Error("claim with a canceled context succeeded")
	}

	b.take(t, "a", "1")
	if answers, err := b.store.Claim(b.ctx(t), b.epoch, now(), nil); err != nil || len(answers) != 0 {
		t.Errorf("a claim of nothing: %v, %v", answers, err)
	}
	if results, err := b.store.Settle(b.ctx(t), b.epoch, nil); err != nil || len(results) != 0 {
		t.Errorf("no outcomes: %v, %v", results, err)
	}

	// Whenever a call is canceled, its error says so: a relay that shuts down ends without one.
	for i := range 100 {
		ctx, cancel := context.WithCancel(b.ctx(t))
		time.AfterFunc(time.Duration(i)*20*time.Microsecond, cancel)
		if _, err := b.store.LoadHolds(ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("canceled after %d times 20 µs: %v", i, err)
		}
		cancel()
	}

	view, err := b.store.View(b.ctx(t), "")
	if err != nil {
		t.Fatal(err)
	}

	b.store.Close()
	b.store.Close()
	view.Close()
	view.Close()
	for name, err := range map[string]error{
		"claim":  second(b.store.Claim(b.ctx(t), b.epoch, now(), []store.ClaimRow{{Ref: ref("a", "1")}})),
		"settle": second(b.store.Settle(b.ctx(t), b.epoch, []store.Outcome{{Ref: ref("a", "1"), Status: store.Completed}})),
		"lead":   second(b.store.AcquireLeadership(b.ctx(t))),
		"load":   second(b.store.LoadCheckpoint(b.ctx(t))),
		"save":   b.store.SaveCheckpoint(b.ctx(t), b.epoch, store.Checkpoint{}),
		"view":   second(b.store.View(b.ctx(t), "")),
	} {
		if err == nil || errors.Is(err, store.ErrNotLeader) || errors.Is(err, store.ErrNoCheckpoint) {
			t.Errorf("%s on a closed store: %v", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// near reports whether two times differ by at most the rounding of a database.
func near(a, b time.Time) bool {
	d := a.Sub(b)
	return d.Abs() <= time.Second
}

// sinceThen reports whether a time lies between began and now, but for that rounding.
func sinceThen(at, began time.Time) bool {
	return !at.Before(began.Add(-time.Second)) && !at.After(time.Now().Add(time.Second))
}
