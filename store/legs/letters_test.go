package legs

import (
	"errors"
	"slices"
	"testing"

	"github.com/sluicebox/sluicebox/store"
)

// discard discards the FAILED row of a leg.
func (r *rig) discard(leg string) {
	r.t.Helper()
	refs, err := r.Discard(r.t.Context(), r.epoch, store.DeadLetterFilter{Outbox: "orders/" + leg}, 10)
	if err != nil || len(refs) != 1 {
		r.t.Fatal(refs, err)
	}
}

// TestDiscardBesideAnOpenLeg: the record of a row outlives the discard of a leg's FAILED row while another
// leg has not ended. So the leg does not get the row again, and the other one completes it.
func TestDiscardBesideAnOpenLeg(t *testing.T) {
	for _, c := range []struct {
		routes, end string
		status      store.Status
		record      string
	}{
		{"bus hooks", "bus", store.Completed, ""},
		{"bus hooks", "bus!", store.Failed, "/bus/"},
		{"any: bus hooks", "bus!", store.Failed, "/bus/"},
		{"bus? hooks?", "bus", store.Completed, ""},
	} {
		t.Run(c.routes+": "+c.end, func(t *testing.T) {
			r := newRig(t, c.routes)
			r.begin("1", Row{})
			r.end("hooks!", "1")
			r.discard("hooks")
			r.restart()
			r.wantBegin(r.begin("1", Row{Known: r.known("1")}), "bus")
			if a := r.claim("hooks", "1"); a.Result != store.AlreadySettled {
				t.Errorf("claim of a discarded row: %+v", a)
			}
			r.end(c.end, "1")
			r.want("1", c.status, c.record)
		})
	}
}

// TestDiscardBetweenLookUpAndBegin: a leg that has not ended gets the row also if the FAILED row of another
// is discarded between the look-up of the record and Begin.
func TestDiscardBetweenLookUpAndBegin(t *testing.T) {
	r := newRig(t, "bus hooks")
	r.begin("1", Row{})
	r.end("hooks!", "1")
	r.restart()
	known := r.known("1")
	r.discard("hooks")
	r.wantBegin(r.begin("1", Row{Passed: r.set("hooks"), Known: known}), "bus")
	r.end("bus", "1")
	r.want("1", store.Completed, "")
}

// TestDiscardIsNoMissingLeg: a start that gives missing legs copies gives none to a leg whose FAILED row was
// discarded.
func TestDiscardIsNoMissingLeg(t *testing.T) {
	r := newRig(t, "bus hooks")
	r.begin("1", Row{})
	r.spill("bus", "1")
	r.end("hooks!", "1")
	r.discard("hooks")
	r.restart()
	if err := r.AdoptMissing(t.Context(), r.epoch); err != nil {
		t.Fatal(err)
	}
	r.want("1", store.Pending, "//bus")
	r.end("bus*", "1")
	r.want("1", store.Completed, "")
}

// TestRequeueCutShortOpensItsLegAlone: a requeue that is cut short, before or behind the change of the row, opens no
// leg but its own at the next start. The FAILED row of the other one stays.
func TestRequeueCutShortOpensItsLegAlone(t *testing.T) {
	for later, want := range []string{"", "", "b"} {
		for _, swept := range []bool{false, true} {
			r := newRig(t, "a b c")
			r.begin("1", Row{})
			for _, end := range []string{"a", "b!", "c!"} {
				r.end(end, "1")
			}
			r.tables.fault, r.tables.later = unwritten, later
			if _, err := r.Requeue(t.Context(), r.epoch, store.DeadLetterFilter{Outbox: "orders/b"}, 1); !errors.Is(err, errFault) {
				t.Fatal(err)
			}
			r.restart()
			r.wantBegin(r.begin("1", Row{Unmarked: swept, Known: r.known("1")}), want)
			if want == "" {
				r.want("1", store.Failed, "a/b c/")
				continue
			}
			r.claim("b", "1")
			r.end("b", "1")
			r.want("1", store.Failed, "a b/c/")
			letters, err := r.Failed(t.Context(), store.DeadLetterFilter{Outbox: "orders/c"}, 10, true)
			if err != nil || len(letters) != 1 || string(letters[0].Payload) != "x1" {
				t.Errorf("FAILED rows of c: %+v, %v", letters, err)
			}
		}
	}
}

// failSwept fails rows without a seq, which a sweep found, in one call.
func (r *rig) failSwept(leg string, ids ...string) []store.SettleResult {
	r.t.Helper()
	var outcomes []store.Outcome
	for _, id := range ids {
		r.begin(id, Row{Unmarked: true})
		it := r.item(leg, id)
		it.Seq = 0
		outcomes = append(outcomes, store.Outcome{Ref: it.Ref, Status: store.Failed, Error: "broken", Row: &it})
	}
	results, err := r.Settle(r.t.Context(), r.epoch, outcomes)
	if err != nil {
		r.t.Fatal(err)
	}
	return results
}

// TestFailedRowsOfASweepKeepTheirOrder: rows without a seq are kept as FAILED rows, and requeued in the order in which
// each leg failed them, across restarts.
func TestFailedRowsOfASweepKeepTheirOrder(t *testing.T) {
	r := newRig(t, "a b")
	r.failSwept("a", "4", "9")
	r.failSwept("b", "9", "2", "4")
	r.restart()
	r.failSwept("a", "2", "7", "1")
	for leg, want := range map[string][]string{"a": {"4", "9", "2", "7", "1"}, "b": {"9", "2", "4"}} {
		items, err := r.Requeue(t.Context(), r.epoch, store.DeadLetterFilter{Outbox: "orders/" + leg}, 10)
		var got []string
		for i := range items {
			got = append(got, items[i].ID)
			if string(items[i].Payload) != "x"+items[i].ID || i > 0 && items[i].Seq <= items[i-1].Seq || items[i].Seq.Epoch() != 0 {
				t.Errorf("requeued %+v", items[i])
			}
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s got the rows %q, %v; want %q", leg, got, err, want)
		}
	}
}

// TestNumberOfARowThatWaits: a FAILED row whose outcome is too early keeps its place before the next one, and a
// repeated call keeps the row once.
func TestNumberOfARowThatWaits(t *testing.T) {
	r := newRig(t, "a b")
	r.begin("1", Row{Unmarked: true})
	r.rows[store.Ref{Outbox: "orders", ID: "1"}].busy = true
	if results := r.failSwept("a", "1", "2"); results[0] != store.TooEarly || results[1] != store.Written {
		t.Fatal(results)
	}
	r.rows[store.Ref{Outbox: "orders", ID: "1"}].busy = false
	r.failSwept("a", "1")
	r.failSwept("a", "1")
	items, err := r.Requeue(t.Context(), r.epoch, store.DeadLetterFilter{Outbox: "orders/a"}, 10)
	if err != nil || len(items) != 2 || items[0].ID != "1" || items[1].ID != "2" {
		t.Errorf("requeued %+v, %v", items, err)
	}
}
