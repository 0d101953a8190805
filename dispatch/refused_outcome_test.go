package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/checkpoint"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// refuseStatus makes the table refuse a status of a row.
func (d *fakeBackend) refuseStatus(id string, status store.Status) {
	d.set(func() {
		d.refusesOutcome = func(o *store.Outcome) bool { return o.ID == id && o.Status == status }
	})
}

// The checkpoint passes a row with a refused outcome within a second, and no other row is
// spilled for it. The row is reported until its outcome is written, and is not sent again.
func TestRefusedOutcomeRetainsNoLog(t *testing.T) {
	for _, tt := range []struct {
		refuses  store.Status
		answer   func([]string) sink.Result
		state    string // of the lane
		reported int
		then     string // written once the table accepts it
	}{
		{store.Completed, always(sink.Delivered), "writing", 20, "0 COMPLETED"},
		{store.Failed, poisoned("0"), "writing", 11, "0 FAILED"},
		{store.Pending, poisoned("0"), "writing", 11, "0 PENDING"},
	} {
		t.Run(tt.refuses.String(), func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.MaxRetries = 0
			if tt.refuses == store.Pending {
				cfg.MaxRetries = 1
			}
			drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
				d.enableSpill(true)
				k.set(func() { k.answer = tt.answer })
				k.refuseStatus("0", tt.refuses)
				var c counter
				add(t, d, &c, rowsWithSeq(1, numberedRows("a", 10)))
				for i := range 10 {
					add(t, d, &c, rowsWithSeq(100+i, items(fmt.Sprint("other ", i), fmt.Sprint("other ", i))))
				}
				k.advance(time.Second)
				k.expect(t, "rows that the checkpoint may pass, rows spilled", []int{c.n, k.rowsSpilled}, []int{tt.reported, 1})
				rows, byOutbox, stopped := d.RefusedRows(10)
				if len(rows) != 1 || rows[0].ID != "0" || !strings.Contains(rows[0].Error, "a trigger objects to 0") || byOutbox["events"] != 1 || stopped {
					t.Fatalf("refused: %v, by outbox %v, stopped %t", rows, byOutbox, stopped)
				}
				lanes, total := d.Lanes(LaneFilter{Troubled: true}, 10)
				if total != 1 || lanes[0].Group.Name != "a" || lanes[0].State != tt.state || lanes[0].Head != "0" || !strings.Contains(lanes[0].Error, "a trigger objects to 0") {
					t.Errorf("lanes on hold: %+v", lanes)
				}
				d.Spill(false)
				k.advance(time.Second)
				k.expect(t, "rows that it may pass under pressure", c.n, 20)
				k.advance(10 * time.Minute)
				k.expect(t, "rows written", slices.Contains(k.observed, tt.then), false)
				k.set(func() { k.refusesOutcome = nil })
				k.advance(2 * time.Minute)
				k.expect(t, "rows written", slices.Contains(k.observed, tt.then), true)
				k.expect(t, "rows in memory, spilled, in the spilled table, refused, reported", []int{
					d.Stats().Rows, d.Stats().Spilled, len(k.items), len(d.core.refusedRows()), c.n,
				}, "[0 0 0 0 20]")
				if tt.refuses == store.Completed {
					k.expect(t, "rows sent", len(k.messages), 20)
				}
			})
		})
	}
}

// A requeued row has no position in the log, so it is not spilled and holds no log.
func TestRefusedOutcomeOfRowWithoutSeq(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		d.enableSpill(true)
		k.refuseStatus("1", store.Completed)
		d.TrackSettled(true)
		d.InsertFound(items("a", "1"))
		k.advance(time.Minute)
		k.expect(t, "rows in memory, rows spilled, payloads", []any{d.Stats().Rows, k.rowsSpilled, d.Stats().Bytes}, "[1 0 0]")
		k.set(func() { k.refusesOutcome = nil })
		k.advance(time.Minute)
		k.expect(t, "observed", k.observed, "[1 COMPLETED]")
	})
}

// A graceful shutdown leaves a refused row spilled and does not wait for it.
func TestShutdownWithRefusedOutcome(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, end func(error) error) {
		d.enableSpill(true)
		k.refuseStatus("1", store.Completed)
		var c counter
		add(t, d, &c, rowsWithSeq(1, items("a", "1", "2")))
		k.advance(time.Minute)
		began := time.Now()
		if err := end(nil); err != nil || time.Since(began) > 0 {
			t.Errorf("the end took %s: %v", time.Since(began), err)
		}
		k.expect(t, "reported, spilled", []any{c.n, k.has("1"), len(k.items)}, "[2 true 1]")
	})
}

// A refused claim is an error of the lane until the table accepts it.
func TestRefusedClaimIsReported(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.refusedIDs = map[string]bool{"1": true} })
		add(t, d, nil, rowsWithSeq(1, items("a", "1", "2")))
		k.advance(time.Minute)
		rows, _, _ := d.RefusedRows(1)
		lanes, _ := d.Lanes(LaneFilter{Troubled: true}, 1)
		if len(rows) != 1 || rows[0].ID != "1" || len(lanes) != 1 || lanes[0].Error != rows[0].Error || !strings.Contains(rows[0].Error, "a trigger objects to 1") || rows[0].Since.Sub(k.began) > time.Second {
			t.Errorf("refused: %v, lanes: %+v", rows, lanes)
		}
		k.set(func() { k.refusedIDs = nil })
		k.advance(2 * time.Second)
		rows, _, _ = d.RefusedRows(1)
		k.expect(t, "refused, in trouble", []any{len(rows), len(first(d.Lanes(LaneFilter{Troubled: true}, 1)))}, "[0 0]")
	})
}

func first[A, B any](a A, _ B) A { return a }

// A table that refuses every outcome must not fill memory, however long the log is. Sends
// stop at half a buffer of refused outcomes, held without their payloads, plus the rows in
// the buffer at that time. If spilling is allowed and the log is at its limit, the whole
// log is still read. Otherwise the source waits.
func TestTableRefusesEveryOutcome(t *testing.T) {
	const rows, buffer = 20_000, 200
	for _, spills := range []bool{true, false} {
		t.Run(fmt.Sprint("spills ", spills), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := DefaultConfig()
				cfg.BufferRows, cfg.APIBatchSize, cfg.MaxConcurrentGroups = buffer, 10, 4
				k := newFakeBackend()
				k.refusesOutcome = func(*store.Outcome) bool { return true }
				d := New(cfg, k, k, 1, k, time.Second)
				tracker := checkpoint.NewTracker(store.Checkpoint{})
				f := NewFeed(tracker, 1, map[string]*Dispatcher{"events": d}, func(string, int) {})
				f.SpillEnabled = spills
				in := make(chan capture.Batch)
				ctx, cancel := context.WithCancel(context.Background())
				done := make(chan error, 2)
				go func() { done <- d.Run(ctx) }()
				go func() { done <- f.Run(ctx, in) }()
				go func() {
					for i := range rows {
						batch := capture.Batch{Position: store.Position(fmt.Sprintf("%06d", i)), Items: items(fmt.Sprint(i%1000), fmt.Sprint(i))}
						select {
						case in <- batch:
						case <-ctx.Done():
							return
						}
					}
				}()
				most, now := 0, time.Now()
				for range 300 {
					f.SetLogPressure(spills)
					if spills {
						d.Spill(time.Since(now) > 2*time.Second)
					}
					k.advance(200 * time.Millisecond)
					most = max(most, d.Stats().Rows)
				}
				inFlight := (cfg.MaxConcurrentGroups + cfg.claimAhead()) * cfg.APIBatchSize
				k.mu.Lock()
				sent := len(k.messages)
				k.mu.Unlock()
				t.Logf("%d rows in memory at the most, %d sent, %d spilled", most, sent, d.Stats().Spilled)
				// The buffer, the rows in it when the first outcome was refused, half a
				// buffer of refused outcomes and half a buffer of reloaded rows. Requests
				// in flight come on top.
				held := maxBufferFactor*buffer + 2*inFlight
				if most > 2*held+buffer || sent > held+buffer/2 {
					t.Errorf("%d rows in memory, at most %d wanted; %d were sent, at most %d wanted", most, 2*held+buffer, sent, held+buffer/2)
				}
				if n := d.Stats().Bytes; n > int64(2*held) { // two per row
					t.Errorf("%d bytes of payload are held", n)
				}
				read, _ := tracker.LastRead()
				if spills {
					k.expect(t, "read", read, fmt.Sprintf("%06d", rows-1))
					k.expect(t, "checkpoint", first(tracker.Watermark()).Position, read)
				} else if k.rowsSpilled > 0 || d.Stats().Rows > buffer+inFlight {
					t.Errorf("%d rows were spilled, %d are in memory", k.rowsSpilled, d.Stats().Rows)
				}
				k.set(func() { k.refusesOutcome = nil })
				k.advance(10 * time.Minute)
				k.expect(t, "rows in memory, spilled", []int{d.Stats().Rows, d.Stats().Spilled}, "[0 0]")
				k.expect(t, "rows sent", len(k.messages), rows)
				cancel()
				for range 2 {
					if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
						t.Error(err)
					}
				}
			})
		})
	}
}
