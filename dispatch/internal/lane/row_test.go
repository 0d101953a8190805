package lane

import (
	"testing"
	"time"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/store"
)

// TestRowAgainstModel takes a row through the transitions of the package comment.
func TestRowAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, rw := NewSet(Config{}), &Row{Item: store.Item{Txn: 1, Seq: 7}}
		at := time.Unix(1e9, 0)
		seen, claimed, giving, reset := false, false, false, false
		ticket, skip := rapid.Bool().Draw(t, "ticket"), rapid.Bool().Draw(t, "skip")
		if ticket {
			rw.Ticket = &counter{}
		}
		reported := 0
		if skip {
			rw.Skip = &Skip{Done: func(skipped bool) {
				if reported++; skipped {
					t.Fatal("the skip is reported as written")
				}
			}}
		}
		t.Repeat(map[string]func(*rapid.T){
			"claim": func(t *rapid.T) {
				unwritten := rapid.Bool().Draw(t, "unwritten")
				s.RecordClaim(rw, &store.ClaimAnswer{Unwritten: unwritten}, at)
				seen, claimed = true, claimed || !unwritten
			},
			"give back": func(*rapid.T) {
				if claimed && !giving {
					rw.GiveBack()
					rw.Claimed, claimed, giving = time.Time{}, false, true
				}
			},
			"given back": func(t *rapid.T) {
				if got := rw.GivenBack(); got != giving {
					t.Fatalf("given back: got %v, want %v", got, giving)
				}
				giving = false
			},
			"reset in flight": func(*rapid.T) { rw.ResetInFlight(); reset = true },
			"reset": func(t *rapid.T) {
				if !reset {
					return
				}
				rw.ResetFailed()
				reset, claimed = false, false
				if requeued := rw.Origin == Requeued && rw.Seq == 0; requeued == ticket {
					t.Fatalf("a row with a ticket %v: requeued %v, seq %d", ticket, requeued, rw.Seq)
				}
				if skip && (reported != 1 || rw.Skip != nil) {
					t.Fatalf("reports of the skip: got %d, want 1", reported)
				}
			},
			"": func(t *rapid.T) {
				pinned := giving || claimed || rw.Skip != nil || reset
				if rw.Claimed.IsZero() == claimed || rw.Pinned() != pinned || rw.Skippable() != (rw.Skip != nil && seen) {
					t.Fatalf("claimed %v, pinned %v, skippable %v; seen %v, claimed %v, giving back %v", !rw.Claimed.IsZero(), rw.Pinned(), rw.Skippable(), seen, claimed, giving)
				}
			},
		})
	})
}

// counter is a ticket.
type counter struct{ n int }

func (c *counter) Done(n int) { c.n += n }

// TestRowSize: a row fits into the allocator's class of 352 bytes. The next one is 384.
func TestRowSize(t *testing.T) {
	if size := unsafe.Sizeof(Row{}); size > 352 {
		t.Errorf("a row has %d bytes, want at most 352", size)
	}
}
