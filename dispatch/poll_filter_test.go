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

// rowsOfGroup returns n rows of a group, "group 0" and so on.
func rowsOfGroup(group string, n int) []store.Item {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprint(group, " ", i)
	}
	return items(group, ids...)
}

func excludedGroups(d *Dispatcher, outbox string) []string {
	var groups []string
	for _, k := range d.ExcludedLanes(outbox) {
		groups = append(groups, k.Group.String())
	}
	slices.Sort(groups)
	return slices.Compact(groups)
}

func TestExcludedLanes(t *testing.T) {
	cfg := DefaultConfig()
	cfg.OnFailed, cfg.APIBatchSize, cfg.BufferRows = Block, 5, 100
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() {
			k.answer = func(ids []string) sink.Result {
				switch ids[0] {
				case "blocked 0":
					return always(sink.Rejected)(ids)
				case "away 0", "few 0":
					return always(sink.Unavailable)(ids)
				}
				return always(sink.Delivered)(ids)
			}
		})
		if err := d.Pause(context.Background(), nameOf("paused"), "test"); err != nil {
			t.Fatal(err)
		}
		for group, n := range map[string]int{"blocked": 12, "away": 12, "few": 4, "paused": 12, "well": 12} {
			add(t, d, nil, rowsOfGroup(group, n))
		}
		k.advance(5 * time.Second) // four tries
		k.expect(t, "excluded", excludedGroups(d, "events"), "[away blocked paused]")
		k.expect(t, "excluded of another outbox", excludedGroups(d, "other"), "[]")
		d.Unload("other")
		k.expect(t, "rows before", d.Stats().Rows, 12-1+12+4+12)
		d.Unload("events")
		d.Unload("events")
		k.expect(t, "excluded then", excludedGroups(d, "events"), "[away blocked paused]")
		k.advance(100 * time.Millisecond)
		held := d.Held("events")
		slices.Sort(held)
		k.expect(t, "rows after", held, "[away 0 away 1 away 2 away 3 away 4 few 0 few 1 few 2 few 3]")
		k.expect(t, "rows counted", d.Stats().Rows, 9)
		k.expect(t, "given back", k.settles[len(k.settles)-1], "[blocked 1 PENDING blocked 2 PENDING blocked 3 PENDING blocked 4 PENDING]")
		if err := d.Resume(context.Background(), nameOf("paused")); err != nil {
			t.Error(err)
		}
		k.expect(t, "excluded after the pause", excludedGroups(d, "events"), "[away blocked]")
		add(t, d, nil, rowsOfGroup("paused", 12)) // as if polled again
		k.advance(time.Second)
		if n := len(delivered(k, "paused")); n != 12 {
			t.Errorf("%d rows of the lane that was paused were delivered", n)
		}
	})
}

// delivered returns the COMPLETED rows of a group, in order.
func delivered(k *fakeBackend, group string) (ids []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, o := range k.outcomes {
		if o.Status == store.Completed && len(o.ID) > len(group) && o.ID[:len(group)+1] == group+" " {
			ids = append(ids, o.ID)
		}
	}
	return ids
}

// Large lanes leave room for others, however many there are.
func TestLargeLanesAreExcluded(t *testing.T) {
	cfg := DefaultConfig()
	cfg.BufferRows, cfg.APIBatchSize = 1000, 10
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		d.Freeze(true)
		for round := range 100 {
			for g := range 7 {
				group := fmt.Sprint("g", g)
				if !slices.Contains(excludedGroups(d, "events"), group) {
					add(t, d, nil, rowsOfGroup(group, 5))
				}
			}
			if room := d.Room(); room < 1000/8-7*5 {
				t.Fatalf("in round %d there is room for %d", round, room)
			}
		}
		if n := len(d.ExcludedLanes("events")); n != 7 {
			t.Errorf("%d lanes of 7 are large", n)
		}
		d.Unload("events") // they move
		if room := d.Room(); room > 1000/7 {
			t.Errorf("there is room for %d after lanes that move", room)
		}
	})
}

// The lane of a single ungrouped row says nothing about other ungrouped rows.
func TestSingleRowLanesAreNotExcluded(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Ungrouped, cfg.APIBatchSize = Parallel, 1
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.answer = always(sink.Unavailable) })
		rows := items("", "1", "2")
		for i := range rows {
			rows[i].Group = store.Group{}
		}
		add(t, d, nil, rows)
		k.advance(5 * time.Second) // four tries
		k.expect(t, "excluded", excludedGroups(d, "events"), "[]")
		d.Unload("events")
		k.expect(t, "rows", d.Stats().Rows, 2)
	})
}

// A row with a pending skip stays in memory.
func TestUnloadKeepsRowBeingSkipped(t *testing.T) {
	cfg := DefaultConfig()
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.latency = time.Second })
		if err := d.Pause(context.Background(), nameOf("a"), "test"); err != nil {
			t.Fatal(err)
		}
		add(t, d, nil, rowsOfGroup("a", 5))
		done := make(chan error, 1)
		go func() { done <- d.Skip(context.Background(), nameOf("a"), "known") }()
		k.advance(500 * time.Millisecond) // its outcome is being written
		d.Unload("events")
		k.expect(t, "rows", d.Stats().Rows, 5)
		k.advance(2 * time.Second)
		if err := <-done; err != nil {
			t.Error(err)
		}
		d.Unload("events")
		k.expect(t, "rows after", d.Stats().Rows, 0)
	})
}

// However many lanes fail, the rows they keep leave room for others.
func TestManyFailingLanesLeaveRoom(t *testing.T) {
	cfg := DefaultConfig()
	cfg.BufferRows, cfg.APIBatchSize, cfg.MaxConcurrentGroups = 200, 20, 50
	cfg.Backoff.Initial, cfg.Backoff.Max = time.Minute, time.Minute
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.answer = always(sink.Unavailable) })
		for g := range 60 {
			add(t, d, nil, rowsOfGroup(fmt.Sprint("g", g), 30))
		}
		k.advance(time.Second)
		d.Unload("events")
		k.advance(time.Second)
		if n := d.Stats().Rows; n != 60 {
			t.Errorf("60 lanes keep %d rows", n)
		}
		k.expect(t, "excluded", len(excludedGroups(d, "events")), 60)
		given := 0
		for _, o := range k.outcomes {
			if o.Status == store.Pending {
				given++
			}
		}
		if given < 19 {
			t.Errorf("%d rows were given back", given)
		}
		if first := d.Held("events")[0]; first[len(first)-2:] != " 0" {
			t.Errorf("row %s was kept", first)
		}
	})
}
