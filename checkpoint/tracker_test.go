package checkpoint

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/store"
)

// modelBatch is a batch of the reference model, which keeps all batches in order.
type modelBatch struct {
	ticket *Ticket
	open   int
	place  watermarkTarget
}

// TestTrackerAgainstModel compares the tracker with the definition: the watermark is
// the last position before the first batch with open rows.
func TestTrackerAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tr := NewTracker(store.Checkpoint{Origin: "o", Position: "start"})
		var batches []*modelBatch
		var entries, settled int
		t.Repeat(map[string]func(*rapid.T){
			"begin": func(t *rapid.T) {
				n := rapid.IntRange(0, 3).Draw(t, "rows")
				b := &modelBatch{open: n, place: watermarkTarget{seq: store.Seq(len(batches) + 1)}}
				if n == 0 || rapid.IntRange(0, 3).Draw(t, "whole") > 0 {
					b.place.position = store.Position(fmt.Sprint("p", len(batches)))
				}
				b.ticket = tr.Begin(b.place.position, b.place.seq, n)
				batches = append(batches, b)
			},
			"done": func(t *rapid.T) {
				if len(batches) == 0 {
					t.Skip("no batch")
				}
				b := batches[rapid.IntRange(0, len(batches)-1).Draw(t, "batch")]
				if b.open == 0 {
					t.Skip("done")
				}
				n := rapid.IntRange(1, b.open).Draw(t, "rows")
				b.open -= n
				settled += n
				b.ticket.Done(n)
			},
			"": func(t *rapid.T) {
				want := watermarkTarget{position: "start"}
				for _, b := range batches {
					if b.open > 0 {
						break
					}
					if b.place.position != "" {
						want = b.place
					}
				}
				got, n := tr.Watermark()
				if got.Position != want.position || got.Seq != want.seq || got.Origin != "o" {
					t.Fatalf("watermark %+v, want %+v", got, want)
				}
				if n != int64(settled) {
					t.Fatalf("%d rows settled, want %d", n, settled)
				}
				entries = 0
				for tk := tr.head; tk != nil; tk = tk.next {
					entries++
				}
				open := 0
				for _, b := range batches {
					if b.open > 0 {
						open++
					}
				}
				if entries != open {
					t.Fatalf("%d entries for %d open batches", entries, open)
				}
			},
		})
	})
}

func TestTrackerPanicsOnTooManyRows(t *testing.T) {
	tk := NewTracker(store.Checkpoint{}).Begin("p", 1, 2)
	tk.Done(1)
	defer func() {
		if recover() == nil {
			t.Fatal("Done accepted a third row of two")
		}
	}()
	tk.Done(2)
}

// TestTrackerLastRead: LastRead is the latest position, even if none of it is
// settled. A part of a transaction has no position.
func TestTrackerLastRead(t *testing.T) {
	tr := NewTracker(store.Checkpoint{Position: "start"})
	if position, at := tr.LastRead(); position != "start" || !at.IsZero() {
		t.Errorf("before the first batch: got %s at %s", position, at)
	}

	before := time.Now()
	tr.Begin("a", 1, 2)
	tr.Begin("", 2, 1)
	position, at := tr.LastRead()
	if position != "a" || at.Before(before) {
		t.Errorf("got last read %s at %s", position, at)
	}

	tr.Begin("c", 2, 0)
	if position, _ := tr.LastRead(); position != "c" {
		t.Errorf("got last read %s", position)
	}
	if cp, _ := tr.Watermark(); cp.Position != "start" {
		t.Errorf("got watermark %s", cp.Position)
	}
}
