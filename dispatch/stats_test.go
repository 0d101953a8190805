package dispatch

import (
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// Each waiting row counts once, in memory, spilled or both. Oldest is the earliest commit,
// and an open breaker has the time of its opening.
func TestStatsOfDeadSink(t *testing.T) {
	cfg := DefaultConfig()
	cfg.BufferRows, cfg.APIBatchSize = 10, 5
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.answer = always(sink.Unavailable) })
		began := time.Now()
		rows := rowsWithSeq(1, numberedRows("a", 12))
		for i := range rows {
			rows[i].Committed = began.Add(time.Duration(-i) * time.Second)
		}
		other := rowsWithSeq(20, items("b", "x"))
		other[0].Captured = began.Add(-time.Hour)
		add(t, d, nil, rows)
		add(t, d, nil, other)
		k.advance(time.Minute)
		before := d.Stats()
		k.expect(t, "waiting, in memory, spilled", []int{before.Waiting, before.Rows, before.Spilled}, "[13 13 0]")
		k.expect(t, "oldest", before.Oldest, other[0].Captured)
		d.SpillExcess(true)
		k.advance(time.Second)
		s := d.Stats()
		if s.Waiting != 13 || s.Spilled == 0 || s.Rows+s.Spilled < 13 {
			t.Errorf("while rows are spilled: %+v", s)
		}
		if len(s.OpenBreakers) != 1 || s.OpenBreakers[0].LastFailure.Class != sink.Unavailable || s.OpenBreakers[0].Since.Before(began) || s.OpenBreakers[0].Since.After(began.Add(time.Minute)) {
			t.Errorf("open breakers: %+v", s.OpenBreakers)
		}
		k.set(func() { k.answer = always(sink.Delivered) })
		k.advance(time.Minute)
		if s := d.Stats(); s.Waiting != 0 || !s.Oldest.IsZero() || len(s.OpenBreakers) != 0 {
			t.Errorf("at rest: %+v", s)
		}
	})
}

// Troubled lanes are lanes that are on hold or failing.
func TestTroubledLanes(t *testing.T) {
	cfg := DefaultConfig()
	cfg.OnFailed, cfg.MaxRetries = Block, 0
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.answer = poisoned("0"); k.hang = false })
		add(t, d, nil, numberedRows("bad", 3))
		k.advance(time.Minute)
		k.set(func() { k.latency = time.Hour })
		add(t, d, nil, items("good", "x"))
		k.advance(time.Second)
		lanes, total := d.Lanes(LaneFilter{Troubled: true}, 10)
		if all, _ := d.Lanes(LaneFilter{}, 10); len(all) != 2 {
			t.Errorf("%d lanes", len(all))
		}
		if total != 1 || len(lanes) != 1 || lanes[0].Group.Name != "bad" || lanes[0].State != "blocked" {
			t.Errorf("in trouble: %+v", lanes)
		}
	})
}
