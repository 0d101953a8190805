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
	o := overtaken{
		memory: &lanes.Memory{LogOnly: map[string]bool{"log": true}}, frontier: new(Frontier),
		spill: func(_ *lane, rw *row) { spilled = append(spilled, rw.ID) },
	}
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
