package legs

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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

// TestLegThatBecameRequired: a row that is COMPLETED without a leg, because its route was optional, is delivered
// by the leg nevertheless. A row that somebody else settles is not.
func TestLegThatBecameRequired(t *testing.T) {
	for _, c := range []struct {
		routes, first string
		settled       bool
		want          store.ClaimResult
	}{
		{"a b?", "end", true, store.Claimed},
		{"a b?", "spill", true, store.Claimed},
		{"a b", "spill", false, store.AlreadySettled},
	} {
		r := newRig(t, c.routes)
		r.begin("1", Row{})
		steps := []func(){func() { r.end("a", "1") }, func() { r.spill("b", "1") }}
		if c.first == "spill" {
			slices.Reverse(steps)
		}
		for _, do := range steps {
			do()
		}
		if got := r.tables.status("1").Settled(); got != c.settled {
			t.Fatalf("%s: settled %t", c.routes, got)
		}
		r.tables.set("1", store.Completed)
		r.tables.box.Routes[1].Optional = false
		r.reopen(r.tables.box)
		if got := r.claim("b", "1").Result; got != c.want {
			t.Errorf("%s, %s first: the claim is answered with %v, want %v", c.routes, c.first, got, c.want)
		}
		if c.want == store.Claimed {
			r.end("b*", "1")
			r.want("1", store.Completed, "")
		}
	}
}

// TestSoleLegThatBecameOptional: no outcome tells which legs a row has, so a leg whose route becomes optional
// gets the rows behind its mark again. It misses none, and each becomes COMPLETED once.
func TestSoleLegThatBecameOptional(t *testing.T) {
	r := newRig(t, "a")
	r.begin("1", Row{})
	r.begin("2", Row{})
	r.claim("a", "2")
	r.end("a", "2")
	r.tables.box.Routes[0].Optional = true
	r.reopen(r.tables.box)
	r.wantBegin(r.begin("1", Row{}), "a")
	r.wantBegin(r.begin("2", Row{Settled: true}), "a")
	for _, id := range []string{"1", "2"} {
		if got := r.claim("a", id).Result; got != store.Claimed {
			t.Errorf("row %s: the claim is answered with %v", id, got)
		}
		r.end("a", id)
		r.want(id, store.Completed, "")
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

// gatedTables hold claims of a row back until its gate is opened.
type gatedTables struct {
	store.Tables
	gates map[string]chan struct{} // by id
}

// Claim implements store.Claimer.
func (g gatedTables) Claim(ctx context.Context, epoch store.Epoch, at time.Time, rows []store.ClaimRow) ([]store.ClaimAnswer, error) {
	for i := range rows {
		<-g.gates[rows[i].ID]
	}
	return g.Tables.Claim(ctx, epoch, at, rows)
}

// TestBeginWaitsForEachRowAlone: rows whose copies are claimed in turns, so that one of them is always busy,
// are begun nevertheless.
func TestBeginWaitsForEachRowAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "bus hooks")
		var rows []Row
		for _, id := range []string{"1", "22"} {
			r.begin(id, Row{})
			r.spill("hooks", id)
		}
		r.restart()
		for _, id := range []string{"1", "22"} {
			rows = append(rows, Row{Ref: store.Ref{Outbox: "orders", ID: id}, Matched: store.AllLegs(2), Known: r.known(id)})
		}
		gates := map[string]chan struct{}{"1": make(chan struct{}), "22": make(chan struct{})}
		r.Tables = gatedTables{r.Tables, gates}
		claim := func(id string) {
			go func() {
				_, err := r.Claim(t.Context(), r.epoch, time.Now(), []store.ClaimRow{{Ref: r.ref("hooks", id), WantPayload: true}})
				if err != nil {
					t.Error(err)
				}
			}()
			synctest.Wait()
		}
		claim("1")
		claim("22")
		begun := false
		go func() {
			to, err := r.Begin(t.Context(), r.epoch, rows)
			if begun = true; err != nil || to[0] != r.set("bus") || to[1] != r.set("bus") {
				t.Errorf("the rows go to the legs %b, %v", to, err)
			}
		}()
		synctest.Wait()
		gates["1"] <- struct{}{}
		synctest.Wait()
		claim("1")
		gates["22"] <- struct{}{}
		if synctest.Wait(); !begun {
			t.Error("Begin waits until none of its rows is busy")
		}
		close(gates["1"])
		close(gates["22"])
		synctest.Wait()
	})
}

// TestRefusedRecordStaysKnown: what only a mark says of a row is known in memory after the database has refused
// to record it, and the next end records it. The other rows of the call are recorded.
func TestRefusedRecordStaysKnown(t *testing.T) {
	r := newRig(t, "a b c")
	ids := []string{"1", "22"}
	for _, id := range ids {
		r.begin(id, Row{})
		r.spill("b", id)
		r.spill("c", id)
	}
	r.restart()
	var rows []Row
	for _, id := range ids {
		rows = append(rows, Row{Ref: store.Ref{Outbox: "orders", ID: id}, Matched: r.set("a b c"), Passed: r.set("a"), Known: r.known(id)})
	}
	r.tables.refuses = 2 // both at once, and the first of them alone
	to, err := r.Begin(t.Context(), r.epoch, rows)
	if err != nil || to[0]|to[1] != 0 {
		t.Fatal(to, err)
	}
	r.want("1", store.Pending, "//b c")
	r.want("22", store.Pending, "a//b c")
	r.end("b*", "1")
	r.want("1", store.Pending, "a b//c")
	r.restart()
	r.end("c*", "1")
	r.want("1", store.Completed, "")
}
