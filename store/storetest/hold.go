package storetest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

func lane(outbox, kind string, g store.Group) store.LaneKey {
	return store.LaneKey{Outbox: outbox, Kind: kind, Group: g}
}

// oddLanes returns lanes that a careless key would confuse.
func oddLanes(outbox string) []store.LaneKey {
	long := strings.Repeat("gröup/", 1500)
	var list []store.LaneKey
	for _, g := range []store.Group{
		{}, store.GroupOf(""), store.GroupOf("a/b"), store.GroupOf("a"), store.GroupOf("A"), store.GroupOf("a "),
		store.GroupOf(" a"), store.GroupOf("(none)"), store.GroupOf("NULL"), store.GroupOf(`'"\`), store.GroupOf("ünï ☃"),
		store.GroupOf(long), store.GroupOf(long + "x"), store.GroupOf("kunde-€ 😀"), store.GroupOf("a\x00"), store.GroupOf("a\xff"), store.GroupOf("a\xfe"),
	} {
		list = append(list, lane(outbox, "EVENT", g))
	}
	return append(list, lane(outbox, "EVENT/a", store.GroupOf("b")), lane(outbox, "EVENTa", store.Group{}), lane(outbox, "", store.Group{}),
		lane(outbox, "EVEN", store.GroupOf("Ta")), lane(outbox, "event", store.GroupOf("a")), lane(outbox, long, store.GroupOf("a")),
		lane(outbox, "a\x00\xff€", store.GroupOf("a")))
}

func (b *bench) loadHolds(t *testing.T, st Store) []store.Hold {
	t.Helper()
	holds, err := st.LoadHolds(b.ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	return holds
}

// wantHolds compares the loaded holds with the expected ones, in any order.
func (b *bench) wantHolds(t *testing.T, what string, st Store, want ...store.Hold) {
	t.Helper()
	type key struct {
		store.LaneKey
		store.HoldKind
	}

	left := map[key]store.Hold{}
	for _, h := range want {
		left[key{h.Lane, h.Kind}] = h
	}

	for _, h := range b.loadHolds(t, st) {
		k := key{h.Lane, h.Kind}
		w, ok := left[k]
		delete(left, k)
		same := h.Since.Equal(w.Since)
		h.Since = w.Since
		if !ok || !same || h != w {
			t.Errorf("%s: loaded %s, want %s", what, short(h), short(w))
		}
	}

	for _, w := range left {
		t.Errorf("%s: %s is missing", what, short(w))
	}
}

func short(h store.Hold) string { return fmt.Sprintf("%.300s", fmt.Sprintf("%+v", h)) }

func (b *bench) hold(t *testing.T, holds ...store.Hold) {
	t.Helper()
	for _, h := range holds {
		if err := b.store.Hold(b.ctx(t), b.epoch, h); err != nil {
			t.Fatal(err)
		}
	}
}

// testPauses pauses every odd lane of two outboxes, replaces and releases the holds one by
// one, and loads them from another store each time.
func (s *suite) testPauses(t *testing.T) {
	b := s.start(t, 0)
	b.wantHolds(t, "at first", b.store)
	var want []store.Hold
	for i, key := range append(oddLanes("a"), oddLanes("b")...) {
		h := store.Hold{Lane: key, Kind: store.Paused, Reason: "since noon", Since: now().Add(time.Duration(i) * time.Second)}
		b.hold(t, h)
		want = append(want, h)
	}

	other := b.open(t, 0)
	b.wantHolds(t, "all paused", other, want...)
	want[3].Reason, want[3].Since = "another 'reason' \"\\ ☃", now().Add(-time.Hour)
	b.hold(t, want[3], want[3])
	b.wantHolds(t, "one replaced", other, want...)
	for len(want) > 0 {
		if err := b.store.Release(b.ctx(t), b.epoch, want[0].Lane, store.Blocked); err != nil {
			t.Fatalf("release of a missing hold: %v", err)
		}
		for range 2 {
			if err := b.store.Release(b.ctx(t), b.epoch, want[0].Lane, want[0].Kind); err != nil {
				t.Fatal(err)
			}
		}
		want = want[1:]
		if len(want)%7 == 0 {
			b.wantHolds(t, "some released", other, want...)
		}
	}

	for what, h := range map[string]store.Hold{
		"no kind": {Lane: lane("a", "EVENT", store.Group{})}, "a kind too many": {Lane: lane("a", "EVENT", store.Group{}), Kind: store.OutboxPaused + 1},
		"no outbox":                   {Lane: lane("c", "EVENT", store.Group{}), Kind: store.Paused},
		"an outbox's pause of a lane": {Lane: lane("a", "EVENT", store.Group{}), Kind: store.OutboxPaused},
	} {
		if err := b.store.Hold(b.ctx(t), b.epoch, h); err == nil {
			t.Errorf("%s: hold recorded, want an error", what)
		}
	}

	if err := b.store.Release(b.ctx(t), b.epoch, lane("c", "", store.Group{}), store.Paused); err == nil {
		t.Error("release in an unknown outbox succeeded")
	}

	h := store.Hold{Lane: lane("a", "EVENT", store.Group{}), Kind: store.Paused, Reason: "a\x00b \xff " + strings.Repeat("long ", 1000), Since: now()}
	b.hold(t, h)
	if got := b.loadHolds(t, b.store); len(got) != 1 || !strings.HasPrefix(got[0].Reason, "ab ") || len(got[0].Reason) < 100 {
		t.Errorf("hostile reason: %d holds", len(got))
	}
}

// testPauseSurvives: another relay on the same tables sees only the holds of its outboxes,
// and a hold survives the store and the leader.
func (s *suite) testPauseSurvives(t *testing.T) {
	b := s.start(t, 0)
	inA := store.Hold{Lane: lane("a", "EVENT", store.GroupOf("g")), Kind: store.Paused, Since: now()}
	inB := store.Hold{Lane: lane("b", "EVENT", store.GroupOf("g")), Kind: store.Paused, Since: now()}
	b.hold(t, inA, inB)
	b.store.Close()
	b.store = b.open(t, 0)
	b.wantHolds(t, "after a restart", b.store, inA, inB)
	b.epoch = b.lead(t, b.store)
	b.wantHolds(t, "under a new leader", b.store, inA, inB)
	one := b.db.Store(t, Config{Outboxes: b.boxes[1:]})
	defer one.Close()
	b.wantHolds(t, "with one outbox", one, inB)
}

// testHoldFence: an old leader changes nothing.
func (s *suite) testHoldFence(t *testing.T) {
	b := s.start(t, 0)
	b.insert(t, "a", row("1"), row("2"))
	b.take(t, "a", "1", "2")
	paused := store.Hold{Lane: lane("a", "EVENT", store.GroupOf("g")), Kind: store.Paused, Since: now()}
	b.hold(t, paused)
	want := []store.Hold{paused}
	if s.stateful() {
		o := failedRow("a", "1", "x", nil)
		want = append(want, blockLane(&o, lane("a", "EVENT", store.GroupOf("h"))))
		b.settle(t, o)
	}

	before1, before2 := b.read(t, "a", "1"), b.read(t, "a", "2")
	b.lead(t, b.open(t, 0))
	for _, epoch := range []store.Epoch{0, b.epoch, b.epoch + 1, b.epoch + 2} {
		other := paused
		other.Reason = "of an old leader"
		errs := map[string]error{
			"hold":            b.store.Hold(b.ctx(t), epoch, other),
			"release":         b.store.Release(b.ctx(t), epoch, paused.Lane, store.Paused),
			"release nothing": b.store.Release(b.ctx(t), epoch, lane("b", "", store.Group{}), store.Paused),
		}
		if s.stateful() {
			f := store.DeadLetterFilter{Outbox: "a"}
			none := store.DeadLetterFilter{Outbox: "b"}
			o := failedRow("a", "2", "x", nil)
			blockLane(&o, lane("a", "EVENT", store.GroupOf("i")))
			errs["block"] = second(b.store.Settle(b.ctx(t), epoch, []store.Outcome{o}))
			errs["requeue"] = second(b.store.Requeue(b.ctx(t), epoch, f, 5))
			errs["discard"] = second(b.store.Discard(b.ctx(t), epoch, f, 5))
			errs["requeue nothing"] = second(b.store.Requeue(b.ctx(t), epoch, none, 5))
			errs["discard nothing"] = second(b.store.Discard(b.ctx(t), epoch, none, 5))
		}

		for what, err := range errs {
			if !errors.Is(err, store.ErrNotLeader) {
				t.Errorf("%s with epoch %d: %v", what, epoch, err)
			}
		}
	}

	b.wantHolds(t, "after the old leader", b.store, want...)
	if b.read(t, "a", "1") != before1 || b.read(t, "a", "2") != before2 {
		t.Errorf("the rows have changed: %+v, %+v", b.read(t, "a", "1"), b.read(t, "a", "2"))
	}

	b.epoch = b.lead(t, b.store)
	if err := b.store.Release(b.ctx(t), b.epoch, paused.Lane, store.Paused); err != nil {
		t.Errorf("session unusable: %v", err)
	}
}
