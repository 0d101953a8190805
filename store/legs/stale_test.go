package legs

import (
	"context"
	"errors"
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

// The answer to a write of hooks is lost behind its commit. The end of bus keeps what was written.
func TestRecordAfterALostAnswer(t *testing.T) {
	hooks := store.DeadLetterFilter{Outbox: "orders/hooks"}
	for _, test := range []struct {
		name   string
		before func(r *rig)
		later  int // writes of the call before the one whose answer is lost
		write  func(r *rig) error
		status store.Status
		record string
	}{
		{"requeue", func(r *rig) { r.end("hooks!", "1") }, 1, func(r *rig) error {
			_, err := r.Requeue(t.Context(), r.epoch, hooks, 1)
			return err
		}, store.Processing, "bus//hooks"},
		{"discard", func(r *rig) { r.end("hooks!", "1") }, 0, func(r *rig) error {
			_, err := r.Discard(t.Context(), r.epoch, hooks, 1)
			return err
		}, store.Completed, ""},
		{"spill", func(*rig) {}, 0, func(r *rig) error {
			return r.Spill(t.Context(), r.epoch, []store.Item{r.item("hooks", "1")})
		}, store.Processing, "bus//hooks"},
		{"end of a copy", func(r *rig) { r.spill("hooks", "1") }, 0, func(r *rig) error {
			it := r.item("hooks", "1")
			_, err := r.Settle(t.Context(), r.epoch, []store.Outcome{{Ref: it.Ref, Status: store.Completed, SpilledSeq: it.Seq}})
			return err
		}, store.Completed, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t, "bus hooks")
			r.begin("1", Row{})
			r.claim("bus", "1")
			test.before(r)
			r.tables.fault, r.tables.later = unread, test.later
			if err := test.write(r); !errors.Is(err, errFault) {
				t.Fatal(err)
			}
			r.end("bus", "1")
			r.want("1", test.status, test.record)
		})
	}
}
