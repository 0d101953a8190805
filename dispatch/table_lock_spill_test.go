package dispatch

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/checkpoint"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// Reloaded rows of a locked table do not keep spilled rows of another outbox from being
// reloaded, whether the table was locked before the reload or after it.
func TestSpilledRowsOfLockedTableDelayNoOther(t *testing.T) {
	for _, after := range []time.Duration{0, 100 * time.Millisecond} {
		t.Run(after.String(), func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.BufferRows = 100
			var rows []store.Item
			for i := range 300 {
				rows = append(rows, items(fmt.Sprint("p", i), fmt.Sprint("p", i))...)
			}
			for i := range 400 {
				rows = append(rows, inOutbox("other", items(fmt.Sprint("w", i), fmt.Sprint("w", i)))...)
			}
			runRestarted(t, cfg, rowsWithSeq(1, rows), func(k *fakeBackend, d *Dispatcher) {
				k.set(func() {
					if after == 0 {
						k.lockedTables = map[string]bool{"events": true}
					}
					k.answer = func(ids []string) sink.Result {
						<-time.After(time.Second)
						return always(sink.Delivered)(ids)
					}
				})
				k.advance(after)
				k.set(func() { k.lockedTables = map[string]bool{"events": true} })
				k.advance(time.Minute)
				k.expect(t, "spilled rows of the free table", k.delivered('o'), 400)
				if n := d.Stats().Rows; n > 50 {
					t.Errorf("%d rows of the locked table are in memory", n)
				}
				k.set(func() { k.lockedTables = nil })
				k.advance(2 * time.Minute)
				k.expect(t, "rows of the locked table once it is free", k.delivered('p'), 300)
			})
		})
	}
}

// Rows of a locked table are spilled, and rows of another outbox of the same sink go on.
func TestLockedTableDoesNotFillBuffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.BufferRows = 50
		k := newFakeBackend()
		k.set(func() { k.lockedTables = map[string]bool{"events": true} })
		d := New(cfg, k, k, 1, k, time.Second)
		f := NewFeed(checkpoint.NewTracker(store.Checkpoint{}), 1, map[string]*Dispatcher{"events": d, "other": d}, func(string, int) {})
		f.SpillEnabled = true
		in := make(chan capture.Batch)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 2)
		for _, run := range []func(context.Context) error{d.Run, func(ctx context.Context) error { return f.Run(ctx, in) }} {
			go func() { done <- run(ctx) }()
		}
		taken := 0
		for full := false; taken < 500 && !full; {
			rows := append(items(fmt.Sprint("g", taken%100), fmt.Sprint("p", taken)), inOutbox("other", items("h", fmt.Sprint(taken)))...)
			select {
			case in <- capture.Batch{Position: store.Position(fmt.Sprint(taken)), Items: rows}:
				taken++
			case <-time.After(time.Minute):
				full = true
			}
		}
		advance(time.Minute)
		k.expect(t, "batches taken", taken, 500)
		k.expect(t, "rows of the free table", k.delivered('o'), 500)
		k.set(func() { k.lockedTables = nil })
		advance(time.Minute)
		k.expect(t, "rows of the locked table once it is free", k.delivered('p'), 500)
		cancel()
		for range 2 {
			if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
	})
}
