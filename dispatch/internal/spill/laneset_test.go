package spill

import (
	"maps"
	"runtime"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/dispatch/internal/lane"
	"github.com/sluicebox/sluicebox/store"
)

// A laneSet holds the same as a map, and next visits its lanes in order.
func TestLaneSetAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s laneSet
		model := map[groupHash]int{}
		hash := func(n int) (h groupHash) {
			h[0], h[9], h[15] = byte(n>>8), 1, byte(n)
			return h
		}
		some := rapid.IntRange(0, 4*maxPage)
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			from, n := some.Draw(t, "from"), some.Draw(t, "n")
			remove, stride := rapid.IntRange(0, 2).Draw(t, "what") == 0, rapid.SampledFrom([]int{1, -1, 7}).Draw(t, "stride")
			for i := range n {
				h := hash((from + i*stride + 100*maxPage) % (4 * maxPage))
				before, there := model[h]
				if remove {
					if rows, was := s.remove(h); was != there || rows != before {
						t.Fatalf("lane %x: got %d rows, %v, want %d, %v", h, rows, was, before, there)
					}
					delete(model, h)
					continue
				}
				if got := s.put(h, i); got != before {
					t.Fatalf("lane %x: got %d rows, want %d", h, got, before)
				}
				model[h] = i
			}
			if s.n != len(model) {
				t.Fatalf("lanes: got %d, want %d", s.n, len(model))
			}
		}
		if len(model) == 0 {
			return
		}
		want := slices.SortedFunc(maps.Keys(model), func(a, b groupHash) int { return slices.Compare(a[:], b[:]) })
		at := groupHash{}
		for i := range 2 * len(want) { // twice around
			if at = s.next(at); at != want[i%len(want)] {
				t.Fatalf("lane %d: got %x, want %x", i, at, want[i%len(want)])
			}
		}
		for i := range s.pages {
			if len(s.pages[i]) == 0 || i > 0 && len(s.pages[i])+len(s.pages[i-1]) < maxPage/4 {
				t.Fatalf("page %d of %d has %d lanes", i, len(s.pages), len(s.pages[i]))
			}
		}
	})
}

// A million spilled groups must fit into 64 MB. Each takes at most 40 bytes, in whatever
// order the groups are spilled, and after a restart.
func TestSpilledLaneMemory(t *testing.T) {
	const lanes, most = 200_000, 40
	hashes := make([]store.LaneHash, lanes)
	for i := range hashes {
		key := store.LaneKey{Outbox: "events", Kind: "EVENT", Group: store.GroupOf(string(rune(i)) + "g" + string(rune(i/7)))}
		hashes[i] = key.Hash()
	}
	live := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for _, order := range []string{"random", "sorted"} {
		sp := New(Config{}, lane.NewSet(lane.Config{}), nil)
		before := live()
		for i := range hashes {
			sp.AddLanes([]store.SpilledLane{{Outbox: "events", Kind: "EVENT", Hash: hashes[i], Rows: 1}})
		}
		each := float64(live()-before) / float64(lanes)
		t.Logf("%s: %.1f bytes a lane", order, each)
		if each > most {
			t.Errorf("%s: bytes of a spilled lane: got %.1f, want at most %d", order, each, most)
		}
		slices.SortFunc(hashes, func(a, b store.LaneHash) int { return slices.Compare(a[:], b[:]) })
		runtime.KeepAlive(sp)
	}
}
