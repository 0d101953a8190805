package dispatch

import (
	"slices"
	"testing"
	"time"

	lanes "github.com/sluicebox/sluicebox/dispatch/internal/lane"
	"github.com/sluicebox/sluicebox/store"
)

// ticket counts what the checkpoint may pass.
type ticket struct{ done int }

func (t *ticket) Done(n int) { t.done += n }

// TestRowsAreSpilledOnceOvertaken checks that a row that only the log has is spilled once a later row
// was delivered overtakenAfter ago, with the rows of its batch, and that no other row is.
func TestRowsAreSpilledOnceOvertaken(t *testing.T) {
	var spilled []string
	o := newFrontiers(&lanes.Memory{LogOnly: map[string]bool{"log": true}}, func(_ *lane, rw *row) { spilled = append(spilled, rw.ID) })
	add := func(outbox, id string, seq, first store.Seq) *row {
		rw := &row{Item: store.Item{Ref: store.Ref{Outbox: outbox, ID: id}, Seq: seq}, Ticket: &ticket{}}
		o.add(nil, rw, first)
		return rw
	}
	expect := func(when string, want ...string) {
		t.Helper()
		if !slices.Equal(spilled, want) {
			t.Errorf("%s: spilled %v, want %v", when, spilled, want)
		}
		spilled = nil
	}
	now := time.Unix(1e9, 0)
	look := func(after time.Duration) { now = now.Add(after); o.look(now) }

	add("log", "1", 1, 1)
	add("log", "2", 2, 1)
	add("table", "3", 3, 3)
	later := add("log", "4", 4, 4)
	add("log", "5", 5, 5)
	look(overtakenAfter)
	expect("nothing is delivered")

	o.done(later)
	later.ReleaseTicket()
	look(overtakenInterval)
	expect("row 4 is delivered just now")
	look(overtakenAfter - time.Millisecond)
	expect("it is not yet long ago")
	look(overtakenInterval)
	expect("it is long ago", "1", "2")

	o.end()
	expect("the core ends", "1", "2", "5") // a spill of the first two may have been taken back
	add("log", "6", 6, 6)
	expect("a row comes after the end", "1", "2", "5", "6")
	if at, due := o.due(); due {
		t.Errorf("another look at %v after the end", at)
	}
}

// TestRowsAreOvertakenByRowsOfTheirFrontierOnly checks that rows of another leg overtake no row,
// that of a shared frontier they do, and that rows without a frontier are never spilled.
func TestRowsAreOvertakenByRowsOfTheirFrontierOnly(t *testing.T) {
	var spilled []string
	o := newFrontiers(&lanes.Memory{LogOnly: map[string]bool{"a": true, "b": true, "c": true, "polled": true}},
		func(_ *lane, rw *row) { spilled = append(spilled, rw.ID) })
	shared := new(Frontier)
	o.set(map[string]*Frontier{"a": new(Frontier), "b": shared, "c": shared})
	add := func(outbox, id string, seq store.Seq) *row {
		rw := &row{Item: store.Item{Ref: store.Ref{Outbox: outbox, ID: id}, Seq: seq}, Ticket: &ticket{}}
		o.add(nil, rw, seq)
		return rw
	}
	add("a", "a1", 1)
	add("b", "b1", 1)
	add("polled", "p1", 1)
	for _, rw := range []*row{add("c", "c2", 2), add("polled", "p2", 2)} {
		o.done(rw)
		rw.ReleaseTicket()
	}
	now := time.Unix(1e9, 0)
	o.look(now)
	o.look(now.Add(overtakenAfter + overtakenInterval))
	if want := []string{"b1"}; !slices.Equal(spilled, want) {
		t.Errorf("spilled %v, want %v", spilled, want)
	}
}
