package legs

import (
	"slices"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// TestRowsAreSpilledInTheirOrder: while another call writes a row, no row behind it in its lane is spilled.
func TestRowsAreSpilledInTheirOrder(t *testing.T) {
	r := newRig(t, "a b")
	var items []store.Item
	for _, id := range []string{"1", "2", "3"} {
		r.begin(id, Row{})
		items = append(items, r.item("b", id))
	}
	for i := range items {
		items[i].Seq = store.Seq(i + 1)
	}
	items[2].Group = store.GroupOf("another")
	busy := r.rows[store.Ref{Outbox: "orders", ID: "1"}]
	r.mu.Lock()
	busy.busy = true
	r.mu.Unlock()
	spilled := make(chan error, 1)
	go func() { spilled <- r.Spill(t.Context(), r.epoch, items) }()
	copies := func() (ids []string) {
		var from []store.SpilledRange
		for i := range items {
			from = append(from, store.SpilledRange{Outbox: items[i].Outbox, Lane: items[i].Lane().Hash()})
		}
		lanes, err := r.ReadSpilled(t.Context(), from[1:], 9)
		if err != nil {
			t.Fatal(err)
		}
		for _, it := range slices.Concat(lanes...) {
			ids = append(ids, it.ID)
		}
		return ids
	}
	for late := time.After(10 * time.Second); len(copies()) == 0; {
		select {
		case <-late:
			t.Fatal("the other lane is not spilled")
		case <-time.After(time.Millisecond):
		}
	}
	if got := copies(); !slices.Equal(got, []string{"3"}) {
		t.Errorf("spilled behind the row: %q", got)
	}
	r.mu.Lock()
	busy.busy = false
	r.wake()
	r.mu.Unlock()
	if err := <-spilled; err != nil {
		t.Fatal(err)
	}
	if got := copies(); !slices.Equal(got, []string{"1", "2", "3"}) {
		t.Errorf("spilled in the end: %q", got)
	}
}
