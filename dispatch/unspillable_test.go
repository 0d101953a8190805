package dispatch

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// An unspillable row costs no other group anything. Other rows are spilled and reloaded,
// and healthy groups are delivered. Once the receiver is back its own group is delivered
// too, in order. An unspillable row behind spilled rows keeps its place.
func TestUnspillableRowDelaysNoOther(t *testing.T) {
	cfg := DefaultConfig()
	cfg.BufferRows, cfg.APIBatchSize, cfg.MaxRetries = 8, 3, math.MaxInt32
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.refusedSpills = map[string]bool{"1": true, "5": true, "8": true}
		k.set(func() {
			k.answer = func(ids []string) sink.Result {
				if ids[0][0] != 'w' {
					return always(sink.Refused)(ids)
				}
				return always(sink.Delivered)(ids)
			}
		})
		var reported counter
		add(t, d, &reported, rowsWithSeq(1, numberedRows("bad", 4)))
		add(t, d, &reported, rowsWithSeq(100, items("other bad", "o1", "o2")))
		k.advance(time.Minute)
		d.SpillExcess(true)
		d.Spill(true)
		k.advance(time.Second)
		for i := 4; i < 10; i++ { // behind spilled rows
			add(t, d, &reported, rowsWithSeq(200+i, items("bad", fmt.Sprint(i))))
			k.advance(time.Second)
		}
		for i := range 100 {
			add(t, d, &reported, rowsWithSeq(300+i, items(fmt.Sprint("well", i), fmt.Sprint("w", i))))
			d.SpillExcess(true)
			k.advance(100 * time.Millisecond)
		}
		k.expect(t, "well rows delivered", k.delivered('w'), 100)
		s := d.Stats()
		k.expect(t, "rows that cannot be spilled", s.Unspillable, 3)
		k.expect(t, "rows reported", reported.n, 100+12-3)
		statements := k.statements
		for range 100 { // it is not retried all the time
			d.SpillExcess(true)
			d.Spill(false)
			k.advance(100 * time.Millisecond)
		}
		if again := k.statements - statements; again > 20 {
			t.Errorf("%d statements try to spill in 10 s", again)
		}
		k.set(func() { k.requests, k.answer = nil, always(sink.Delivered) })
		k.advance(10 * time.Minute)
		var sent []string
		for _, id := range slices.Concat(k.requests...) {
			if id[0] != 'o' {
				sent = append(sent, id)
			}
		}
		k.expect(t, "sent", sent, "[0 1 2 3 4 5 6 7 8 9]")
		s = d.Stats()
		k.expect(t, "rows reported, in memory, spilled, unspillable", []int{reported.n, s.Rows, s.Spilled, s.Unspillable}, "[112 0 0 0]")
		names := slices.Compact(slices.Sorted(slices.Values(k.rowsUnspillable)))
		k.expect(t, "the observer got", names, "[1 5 8 none]")
		if last := k.rowsUnspillable[len(k.rowsUnspillable)-1]; last != "none" {
			t.Errorf("the last report was %s", last)
		}
	})
}

// Unspillable rows are spilled once the store accepts them, even behind spilled rows of a
// held group. Then they hold neither log nor buffer.
func TestUnspillableTailIsRetried(t *testing.T) {
	cfg := DefaultConfig()
	cfg.BufferRows, cfg.APIBatchSize = 8, 3
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		rows := rowsWithSeq(1, numberedRows("paused", 40))
		lane := LaneName{LaneKey: rows[0].Lane()}
		if err := d.Pause(context.Background(), lane, "a test"); err != nil {
			t.Fatal(err)
		}
		var reported counter
		add(t, d, &reported, rows[:8])
		d.SpillExcess(true)
		k.advance(time.Second)
		k.refusedSpills = map[string]bool{}
		for _, it := range rows[8:] {
			k.refusedSpills[it.ID] = true
		}
		add(t, d, &reported, rows[8:])
		k.advance(2 * time.Minute)
		k.expect(t, "rows reported, unspillable", []int{reported.n, d.Stats().Unspillable}, "[8 32]")
		k.refusedSpills = nil
		for range 3 { // like a feed whose buffer is full
			d.SpillExcess(true)
			k.advance(time.Minute)
		}
		s := d.Stats()
		k.expect(t, "rows reported, unspillable, in memory, room", []int{reported.n, s.Unspillable, s.Rows, d.Room()}, "[40 0 0 8]")
		if err := d.Resume(context.Background(), lane); err != nil {
			t.Fatal(err)
		}
		k.advance(time.Minute)
		var ids []string
		for i := range rows {
			ids = append(ids, rows[i].ID)
		}
		k.expect(t, "sent", slices.Concat(k.requests...), ids)
		s = d.Stats()
		k.expect(t, "rows in memory, spilled", []int{s.Rows, s.Spilled}, "[0 0]")
	})
}
