package dispatch

import (
	"fmt"
	"testing"
	"time"

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
