package dispatch

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

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
				enableSpill(d)
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
		enableSpill(d)
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
		enableSpill(d)
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
