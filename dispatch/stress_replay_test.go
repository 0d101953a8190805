package dispatch

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// replayReceiver is a flaky receiver that knows which groups are held and which rows a job
// has yet to send.
type replayReceiver struct {
	flaky
	t     *testing.T
	mu    sync.Mutex
	held  map[string]bool
	left  map[string][]store.ReplayRow // of each group, by n, in the store
	taken map[string]bool              // ids of accepted rows
}

func (s *replayReceiver) Deliver(ctx context.Context, msgs []sink.Message) sink.Result {
	s.mu.Lock()
	sent := map[string]bool{}
	for _, m := range msgs {
		group := m.Group.Name
		switch {
		case m.Replay != msgs[0].Replay:
			s.t.Errorf("rows of %q and %q in a request", msgs[0].Replay, m.Replay)
		case m.Replay == "" && s.held[group]:
			s.t.Errorf("live row %s is sent while group %s is replayed", m.ID, group)
		case m.Replay == "":
		case s.taken[m.ID]:
			s.t.Errorf("row %s is sent again after it was taken", m.ID)
		default:
			for _, r := range s.left[group] {
				if r.ID == m.ID {
					break
				}
				if !sent[r.ID] && !s.taken[r.ID] {
					s.t.Errorf("row %s is sent before %s", m.ID, r.ID)
				}
			}
			sent[m.ID] = true
		}
	}
	s.mu.Unlock()
	res := s.flaky.Deliver(ctx, msgs)
	if res.Class == sink.Delivered {
		s.mu.Lock()
		maps.Copy(s.taken, sent)
		s.mu.Unlock()
	}
	return res
}

func (s *replayReceiver) FinishRows(_ context.Context, _ store.Epoch, _ string, done []store.FinishedRow) error {
	sleepBriefly()
	s.mu.Lock()
	for _, d := range done {
		group := d.Lane.Group.Name
		was := len(s.left[group])
		s.left[group] = slices.DeleteFunc(s.left[group], func(r store.ReplayRow) bool { return r.N == d.N })
		if len(s.left[group]) == was {
			s.t.Errorf("row %d of group %s is written down twice", d.N, group)
		}
	}
	s.mu.Unlock()
	sleepBriefly()
	return nil
}

// replayGroup replays a group like the owner of a job. Sometimes it withdraws the rows and
// continues later.
func (s *replayReceiver) replayGroup(ctx context.Context, d *Dispatcher, group string) {
	key := nameOf(group).LaneKey
	wait := func(until func() bool) {
		_, _, changed := d.ReplayLoad("job")
		for !until() {
			select {
			case <-changed:
			case <-ctx.Done():
				s.t.Errorf("group %s does not come to rest", group)
				return
			}
		}
	}
	empty := func() bool { _, byLane, _ := d.ReplayLoad("job"); return byLane[key] == 0 }
	for ctx.Err() == nil {
		s.mu.Lock()
		rows := slices.Clone(s.left[group])
		s.mu.Unlock()
		if len(rows) == 0 {
			return
		}
		d.HoldForReplay("job", key)
		wait(func() bool { return d.HeldLane(key).Quiescent })
		s.mu.Lock()
		s.held[group] = true
		d.Replay("job", rows[:len(rows)/2])
		d.Replay("job", rows) // nothing is delivered in between
		s.mu.Unlock()
		if rand.IntN(3) == 0 {
			sleepBriefly()
			d.WithdrawReplay("job")
		}
		wait(empty)
		s.mu.Lock()
		s.held[group] = false
		s.mu.Unlock()
		d.ReleaseReplayHold("job", key)
		sleepBriefly()
	}
}

// A job replays groups that are busy and that operators pause. Each of its rows is finished
// once, in order, and no live row is sent meanwhile.
func TestReplayBesideLiveRows(t *testing.T) {
	const groups, each = 20, 30
	s := &memStore{rows: map[string]store.Status{}, items: map[string]store.Item{}, holds: map[store.LaneKey]store.Hold{}, pause: map[store.LaneKey]bool{}}
	to := &replayReceiver{t: t, held: map[string]bool{}, left: map[string][]store.ReplayRow{}, taken: map[string]bool{}}
	for n := range groups * each {
		group := fmt.Sprint("g", n%groups)
		to.left[group] = append(to.left[group], replayOf(int64(n+1), items(group, fmt.Sprint("r", n)))...)
	}
	cfg := DefaultConfig()
	cfg.MaxRetries, cfg.Backoff.Initial, cfg.Backoff.Max = 0, time.Millisecond, 4*time.Millisecond
	d := New(cfg, Options{Store: s, Sink: to, Observer: newFakeBackend(), Epoch: 1, DrainTimeout: time.Second, Replays: to})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	run, end := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(run) }()
	played := make(chan struct{})
	var others sync.WaitGroup
	act := func(f func()) {
		others.Go(func() {
			for {
				select {
				case <-played:
					return
				default:
					f()
					sleepBriefly()
				}
			}
		})
	}
	n := 0
	act(func() {
		n++
		it := items(fmt.Sprint("g", n%groups), fmt.Sprint("l", n))
		s.do(func() { s.rows[it[0].ID], s.items[it[0].ID] = store.Pending, it[0] })
		d.Append(it, nil)
	})
	act(func() {
		l := nameOf(fmt.Sprint("g", rand.IntN(groups)))
		_ = d.Pause(ctx, l, "x")
		sleepBriefly()
		_ = d.Resume(ctx, l)
	})
	act(func() { d.Stats(); d.Lanes(LaneFilter{}, 10); d.SpillExcess(true); d.Held("events") })
	for _, group := range slices.Sorted(maps.Keys(to.left)) {
		to.replayGroup(ctx, d, group)
	}
	close(played)
	others.Wait()
	for d.Stats().Rows > 0 && ctx.Err() == nil {
		sleepBriefly()
	}
	end()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for id, status := range s.rows {
		if !status.Settled() {
			t.Errorf("live row %s is %s", id, status)
		}
	}
}
