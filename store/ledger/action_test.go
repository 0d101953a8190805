package ledger_test

import (
	"fmt"
	"testing"

	"github.com/sluicebox/sluicebox/store"
)

// TestActionLogIsBounded: the log keeps the latest actions, in the order of time, with any text.
func TestActionLogIsBounded(t *testing.T) {
	r := newRig(t)
	const more = 3
	for i := range store.MaxActions + more {
		a := store.Action{Who: "operator", What: fmt.Sprint(i), Target: "{\"group\": \"\x00ä\"}", Result: "ok"}
		if err := r.RecordAction(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	all, err := r.Actions(t.Context(), store.MaxActions+more)
	if err != nil || len(all) != store.MaxActions || r.count(t, "action") != store.MaxActions {
		t.Fatalf("%d actions, %v; want %d", len(all), err, store.MaxActions)
	}
	first, last := all[0], all[len(all)-1]
	if first.What != fmt.Sprint(store.MaxActions+more-1) || last.What != fmt.Sprint(more) || first.At.IsZero() || first.Target != "{\"group\": \"\x00ä\"}" {
		t.Errorf("the latest is %+v, the oldest %+v", first, last)
	}
	if few, err := r.Actions(t.Context(), 2); err != nil || len(few) != 2 || few[0] != first {
		t.Errorf("two actions: %+v, %v", few, err)
	}
}
