package legs

import (
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store"
)

// TestLegThatBecameOptional: a row that the ended legs decide, because a route is optional by now, gets its
// outcome with the end of a further leg.
func TestLegThatBecameOptional(t *testing.T) {
	r := newRig(t, "a b")
	r.begin("1", Row{})
	r.begin("2", Row{})
	for _, id := range []string{"1", "2"} {
		r.claim("a", id)
		r.end("a", id)
	}
	r.spill("b", "1")
	r.tables.box.Routes[1].Optional = true
	r.reopen(r.tables.box)
	r.wantBegin(r.begin("1", Row{Known: r.known("1")}), "")
	r.wantBegin(r.begin("2", Row{Passed: r.set("a")}), "b")
	r.end("b*", "1")
	r.end("b", "2")
	r.want("1", store.Completed, "")
	r.want("2", store.Completed, "")
	if len(r.rows) > 0 {
		t.Error("a join is left in memory")
	}
}

// TestRowSetBack: a COMPLETED row that somebody sets back to PENDING is delivered again once a sweep finds
// it, also if a start reads it before, or an optional leg's failure keeps its record.
func TestRowSetBack(t *testing.T) {
	for _, last := range []string{"b", "b!"} {
		r := newRig(t, "a b?")
		r.begin("1", Row{})
		r.end(last, "1")
		r.end("a", "1")
		r.tables.set("1", store.Pending)
		r.restart()
		r.wantBegin(r.begin("1", Row{Passed: r.set("a b"), Known: r.known("1")}), "")
		r.wantBegin(r.begin("1", Row{Unmarked: true, Known: r.known("1")}), map[string]string{"b": "a b", "b!": "a"}[last])
		r.claim("a", "1")
		r.end("a", "1")
		if last == "b" {
			r.end("b", "1")
		}
		r.want("1", store.Completed, map[string]string{"b": "", "b!": "a/b/"}[last])
	}
}

// TestRecordGoneBeforeBegin: the copy of a leg ends between the look-up of a row and Begin. A leg whose
// route is new gets the row nevertheless.
func TestRecordGoneBeforeBegin(t *testing.T) {
	r := newRig(t, "a b c")
	three := r.tables.box
	two := three
	two.Routes = three.Routes[:2]
	r.reopen(two)
	r.begin("1", Row{Matched: store.AllLegs(2)})
	r.end("a", "1")
	r.spill("b", "1")
	r.reopen(three)
	known := r.known("1")
	r.end("b*", "1")
	r.want("1", store.Completed, "")
	r.wantBegin(r.begin("1", Row{Passed: r.set("a b"), Known: known}), "c")
}

// TestFailedRowHasTheCountOfItsLeg: a FAILED row has the error and the count of the leg that failed,
// whichever leg ends last.
func TestFailedRowHasTheCountOfItsLeg(t *testing.T) {
	r := newRig(t, "a b")
	p := r.plans["orders"]
	for _, order := range []string{"a b", "b a"} {
		j := join{matched: r.set("a b"), live: r.set("a b")}
		var row store.Outcome
		for _, name := range strings.Fields(order) {
			leg := r.legs["orders/"+name]
			o := store.Outcome{Ref: r.ref(name, "1"), Status: store.Completed}
			if name == "b" {
				o.Status, o.RetryCount, o.Error = store.Failed, 3, "no such customer"
			}
			_, after := j.next(p, leg.index, &o)
			row = j.rowOutcome(leg, &o, &after)
			j = after
		}
		if row.Status != store.Failed || row.RetryCount != 3 || row.Error != "route b: no such customer" {
			t.Errorf("%s: the row is %v with %d retries: %s", order, row.Status, row.RetryCount, row.Error)
		}
	}
}

// TestMarkBeyondTheRecord: what only a mark says of a row with a record is recorded, because the mark
// of the least leg may pass the row before its copy ends. So the copy completes the row.
func TestMarkBeyondTheRecord(t *testing.T) {
	r := newRig(t, "a b")
	r.begin("1", Row{})
	r.spill("b", "1")
	r.restart()
	r.wantBegin(r.begin("1", Row{Passed: r.set("a"), Known: r.known("1")}), "")
	r.want("1", store.Pending, "a//b")
	r.restart() // behind the row
	r.end("b*", "1")
	r.want("1", store.Completed, "")
}
