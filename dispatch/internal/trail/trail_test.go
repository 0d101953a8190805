package trail

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/store"
)

func row(id string) store.Ref { return store.Ref{Outbox: "events", ID: id} }

// A row keeps its latest attempts, counts all, and limits their texts to whole characters.
func TestFailuresAreBounded(t *testing.T) {
	var f *Failures
	if f.Latest() != nil || f.Total() != 0 {
		t.Errorf("no failures are %v, %d", f.Latest(), f.Total())
	}
	const more = 3
	long := "é"
	for len(long) <= 2*maxError {
		long += "é"
	}
	for i := range maxAttempts + more {
		f = f.Add(store.Attempt{Took: time.Duration(i), Error: "e" + long})
	}
	all := f.Latest()
	if len(all) != maxAttempts || f.Total() != maxAttempts+more || all[0].Took != more {
		t.Errorf("%d attempts from number %d on, %d in all; want %d from number %d on, %d in all",
			len(all), all[0].Took, f.Total(), maxAttempts, more, maxAttempts+more)
	}
	if n := len(all[0].Error); n > maxError+len("…") || []rune(all[0].Error)[maxError/2] != '…' {
		t.Errorf("the text has %d bytes and ends with %q", n, all[0].Error[n-6:])
	}
}

// The ring finds the latest record of each of its rows, and no other; it allocates nothing once it is full.
func TestRingKeepsTheLatestRows(t *testing.T) {
	r := NewRing(3)
	if r.Find(row("1")) != nil {
		t.Error("an empty ring has a row")
	}
	r.Settle(1, &store.Ref{}, time.Unix(1, 0)) // does nothing
	numbers := map[string]uint32{}
	for i, id := range []string{"1", "2", "3", "2", "4"} {
		numbers[id] = r.Add(&Record{Ref: row(id), Attempts: i})
	}
	for id, want := range map[string]int{"1": -1, "2": 3, "3": 2, "4": 4} {
		switch got := r.Find(row(id)); {
		case want < 0 && got != nil, want >= 0 && (got == nil || got.Attempts != want):
			t.Errorf("row %s is %+v, want that of attempt %d", id, got, want)
		}
	}
	first := row("1")
	r.Settle(numbers["1"], &first, time.Unix(5, 0))
	second := row("2")
	r.Settle(numbers["2"], &second, time.Unix(6, 0))
	if got := r.Find(row("4")); got.Settled != 0 {
		t.Errorf("the row in the place of a replaced one is settled at %d", got.Settled)
	}
	if got := r.Find(row("2")); !Time(got.Settled).Equal(time.Unix(6, 0)) {
		t.Errorf("the row is settled at %d", got.Settled)
	}
	rec := &Record{Ref: row("5")}
	if n := testing.AllocsPerRun(100, func() { r.Settle(r.Add(rec), &rec.Ref, time.Unix(7, 0)) }); n > 0 {
		t.Errorf("a row costs %.0f allocations, want 0", n)
	}
}

// Kept has at most its limit of rows. What its caller has written by Take is what it keeps, whatever
// happens to the rows, and a row that fails is kept if there is room.
func TestKeptMatchesTheStore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 4).Draw(t, "limit")
		k, saved := NewKept(limit), map[store.Ref]int{} // attempts
		failures := map[store.Ref]*Failures{}
		ids := rapid.SampledFrom([]string{"1", "2", "3", "4", "5", "6"})
		t.Repeat(map[string]func(*rapid.T){
			"fails": func(t *rapid.T) {
				ref := row(ids.Draw(t, "id"))
				if failures[ref] == nil {
					failures[ref] = k.Of(&ref)
				}
				failures[ref] = failures[ref].Add(store.Attempt{Error: "503"})
				full := len(k.rows) == limit && !slices.ContainsFunc(slices.Collect(maps.Values(k.rows)), func(r *keptRow) bool { return r.failed })
				known := k.Of(&ref) != nil
				k.Failing(ref, failures[ref])
				if got := k.Of(&ref); got != failures[ref] && (known || !full) {
					t.Fatalf("row %s has %v", ref.ID, got)
				}
			},
			"FAILED": func(t *rapid.T) { k.Failed(row(ids.Draw(t, "id"))) },
			"ends": func(t *rapid.T) {
				ref := row(ids.Draw(t, "id"))
				delete(failures, ref)
				k.Ended(&ref)
			},
			"is saved": func(t *rapid.T) {
				save, drop := k.Take(rapid.IntRange(1, 3).Draw(t, "rows"))
				for _, ref := range drop {
					delete(saved, ref)
				}
				for _, f := range save {
					saved[f.Ref] = f.Total
				}
			},
			"restarts": func(*rapid.T) {
				k = NewKept(limit)
				for ref, n := range saved {
					if len(k.rows) < limit {
						k.Load(&store.FailedAttempts{Ref: ref, Latest: []store.Attempt{{Error: "503"}}, Total: n})
					}
				}
				clear(failures)
			},
			"": func(t *rapid.T) {
				if len(k.rows) > limit || len(k.failed) > 2*limit {
					t.Fatalf("%d rows and %d FAILED, want at most %d", len(k.rows), len(k.failed), limit)
				}
			},
		})
		for len(k.changed) > 0 || len(k.dropped) > 0 {
			save, drop := k.Take(2)
			for _, ref := range drop {
				delete(saved, ref)
			}
			for _, f := range save {
				saved[f.Ref] = f.Total
			}
		}
		want := map[store.Ref]int{}
		for ref, r := range k.rows {
			want[ref] = r.failures.Total()
		}
		if fmt.Sprint(saved) != fmt.Sprint(want) {
			t.Fatalf("the store has %v, want %v", saved, want)
		}
	})
}
