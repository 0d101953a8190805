package dispatch

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// rowsWithSeq returns rows with consecutive seqs from first on.
func rowsWithSeq(first int, rows []store.Item) []store.Item {
	for i := range rows {
		rows[i].Seq = store.NewSeq(1, int64(first+i))
	}
	return rows
}

// A blocked lane leaves memory and completes its tickets. Once released, its rows are sent
// in order, before the rows that came meanwhile.
func TestBlockedLaneIsSpilledAndReloaded(t *testing.T) {
	cfg := DefaultConfig()
	cfg.OnFailed, cfg.BufferRows, cfg.APIBatchSize = Block, 10, 5
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.answer = poisoned("0") })
		var reported counter
		add(t, d, &reported, rowsWithSeq(1, numberedRows("a", 12)))
		k.advance(time.Minute) // the first is FAILED and blocks
		d.SpillExcess(false)
		k.advance(time.Second)
		k.expect(t, "rows reported, rows in memory, rows spilled", []int{reported.n, d.Stats().Rows, d.Stats().Spilled}, "[12 0 11]")
		add(t, d, &reported, rowsWithSeq(100, items("a", "x", "y")))
		add(t, d, &reported, rowsWithSeq(200, items("b", "z")))
		k.advance(time.Second)
		k.expect(t, "rows reported, rows spilled", []int{reported.n, d.Stats().Spilled}, "[15 13]")
		k.set(func() { k.requests, k.answer = nil, always(sink.Delivered) })
		lane := LaneName{LaneKey: store.LaneKey{Outbox: "events", Kind: "EVENT", Group: store.GroupOf("a")}}
		if err := d.Skip(context.Background(), lane, "known"); err != nil {
			t.Fatal(err)
		}
		k.advance(time.Second)
		k.expect(t, "sent", slices.Concat(k.requests...), "[1 2 3 4 5 6 7 8 9 10 11 x y]")
		k.expect(t, "rows in memory, rows spilled, rows in the store", []int{d.Stats().Rows, d.Stats().Spilled, len(k.items)}, "[0 0 0]")
	})
}

// Spilled lanes are retried a few at a time while their receiver is down, and all once it
// is back.
func TestSpilledLanesReturnWithReceiver(t *testing.T) {
	const lanes = 500
	cfg := DefaultConfig()
	cfg.BufferRows = 100
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.answer = always(sink.Unavailable) })
		var reported counter
		for i := range lanes {
			add(t, d, &reported, rowsWithSeq(2*i+1, items(fmt.Sprint("g", i), fmt.Sprint(i, " a"), fmt.Sprint(i, " b"))))
			if d.Room() <= 0 {
				advance(20 * time.Millisecond)
				d.SpillExcess(true)
				advance(20 * time.Millisecond)
			}
		}
		k.advance(10 * time.Minute)
		if s := d.Stats(); s.Rows > cfg.BufferRows*5/4 || s.Spilled < 2*lanes-cfg.BufferRows {
			t.Errorf("while the receiver is down: %+v", s)
		}
		k.set(func() { k.requests, k.answer = nil, always(sink.Delivered) })
		k.advance(10 * time.Minute)
		last := map[string]bool{}
		for _, id := range slices.Concat(k.requests...) {
			var n int
			var row string
			if _, err := fmt.Sscan(id, &n, &row); err != nil || row == "b" && !last[fmt.Sprint(n, " a")] || last[id] {
				t.Errorf("row %s is sent in front of its lane, or twice: %v", id, err)
			}
			last[id] = true
		}
		k.expect(t, "rows sent, rows reported", []int{len(last), reported.n}, []int{2 * lanes, 2 * lanes})
		if s := d.Stats(); s.Rows != 0 || s.Spilled != 0 || s.Lanes["spilled"] != 0 {
			t.Errorf("at rest: %+v", s)
		}
	})
}

// While the buffer has room, rows are spilled in small statements with a rest between them. A full
// buffer and a log at its limit wait for no rest.
func TestSpillsRestWhileTheBufferHasRoom(t *testing.T) {
	const rows = 8 * gentleRows
	for name, tt := range map[string]struct {
		buffer int
		begin  func(d *Dispatcher)
		gentle bool
	}{
		"room": {rows + 1, func(d *Dispatcher) { d.SpillExcess(true) }, true},
		"full": {rows, func(d *Dispatcher) { d.SpillExcess(true) }, false},
		"log":  {10 * rows, func(d *Dispatcher) { d.Spill(true) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.BufferRows = tt.buffer
			drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
				k.set(func() { k.answer = always(sink.Unavailable) })
				var reported counter
				add(t, d, &reported, rowsWithSeq(1, numberedRows("a", rows)))
				k.advance(time.Second)
				tt.begin(d)
				if !tt.gentle {
					k.advance(minSpillRest / 2)
					n, _ := k.spilled()
					k.expect(t, "rows spilled", n, rows)
					return
				}
				for n := gentleRows; n <= rows; n += gentleRows {
					k.advance(minSpillRest / 2)
					got, statements := k.spilled()
					k.expect(t, "rows spilled, statements", []int{got, statements}, []int{n, n / gentleRows})
					k.advance(minSpillRest / 2)
				}
			})
		})
	}
}

// The end spills the rows that only the log has without a rest.
func TestEndSpillsWithoutARest(t *testing.T) {
	const rows = 4 * gentleRows
	cfg := DefaultConfig()
	cfg.BufferRows = rows + 1
	logOnly := func(k *fakeBackend, opt *Options) {
		k.keepsContent, opt.LogOnly = true, map[string]bool{"events": true}
	}
	driveWith(t, cfg, logOnly, func(k *fakeBackend, d *Dispatcher, end func(error) error) {
		k.set(func() { k.answer = always(sink.Unavailable) })
		var reported counter
		add(t, d, &reported, rowsWithSeq(1, numberedRows("a", rows)))
		k.advance(time.Second)
		d.SpillExcess(true)
		began := time.Now()
		if err := end(nil); err != nil {
			t.Error(err)
		}
		took := time.Since(began)
		if n, _ := k.spilled(); n != rows || took >= minSpillRest {
			t.Errorf("%d rows are spilled after %s", n, took)
		}
	})
}
