package legs

import (
	"context"
	"testing"

	"github.com/sluicebox/sluicebox/store"
)

// A copy ends between the look-up of its row's record and the row's Begin.
func TestBeginWithARecordThatChanged(t *testing.T) {
	r := newRig(t, "bus hooks")
	r.begin("1", Row{})
	r.claim("bus", "1")
	r.spill("hooks", "1")
	r.restart()           // bus has no mark at the row: the log brings it again
	stale := r.known("1") // fanOut.lookUp
	r.claim("hooks", "1") // meanwhile the spilled lane of hooks delivers its copy
	r.end("hooks*", "1")
	t.Logf("entries %d, record %+v", len(r.rows), r.known("1"))
	if got := r.begin("1", Row{Known: stale}); got != "bus" {
		t.Fatal("legs", got)
	}
	r.claim("bus", "1")
	r.end("bus", "1")
	if s := r.tables.status("1"); s != store.Completed {
		t.Errorf("row is %v, record %+v; want COMPLETED", s, r.known("1"))
	}
}

// The leader dies between the copy of an unmarked row's last open leg and the outcome that it decides.
func TestCrashBetweenCopyAndDecidedOutcome(t *testing.T) {
	r := newRig(t, "bus opt?")
	r.begin("1", Row{Unmarked: true})
	r.claim("bus", "1")
	r.claim("opt", "1")
	r.end("bus", "1")
	rec := *r.known("1")
	rec.Spilled = []string{"opt"}
	if err := r.SpillLegs(t.Context(), r.epoch, []store.Item{r.item("opt", "1")}, []store.LegRow{rec}); err != nil {
		t.Fatal(err)
	}
	r.restart() // settleDecided was not reached
	r.claim("opt", "1")
	res := r.end("opt*", "1")
	t.Logf("result %v, record %+v, unsettled %v", res, r.known("1"), r.tables.unsettled(t.Context()))
	t.Logf("a sweep gives the row to %q", r.begin("1", Row{Unmarked: true, Known: r.known("1")}))
	if s := r.tables.status("1"); s != store.Completed {
		t.Errorf("row is %v; want COMPLETED", s)
	}
}

// A row with a record comes from the log while a spilled lane reads that record: it goes to the legs that
// miss it. It was taken for a row whose record is gone, so that every leg passed it over.
func TestBeginWhileTheRecordIsRead(t *testing.T) {
	r := newRig(t, "bus hooks copy?")
	r.begin("1", Row{})
	r.spill("copy", "1")
	r.restart()
	ref := store.Ref{Outbox: "orders", ID: "1"}
	known := r.known("1")
	reading := []use{{legOf: legOf{plan: r.plans["orders"]}, row: ref, at: &entry{busy: true}}}
	r.mu.Lock()
	r.rows[ref] = reading[0].at // as acquire does
	r.mu.Unlock()

	ended, end := context.WithCancel(t.Context())
	end()
	row := Row{Ref: ref, Matched: r.set("bus hooks copy"), Known: known}
	if to, err := r.Begin(ended, r.epoch, []Row{row}); err == nil {
		t.Errorf("before the record is read, the row goes to the legs %b", to[0])
	}
	if err := r.restore(t.Context(), []*use{&reading[0]}); err != nil {
		t.Fatal(err)
	}
	r.release(reading)
	r.wantBegin(r.begin("1", Row{Known: known}), "bus hooks")
}
