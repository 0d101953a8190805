package poll_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/poll"
	"github.com/sluicebox/sluicebox/store"
)

// memory implements tables, their views and the lanes in memory. The zero value has
// unlimited room.
type memory struct {
	mu    sync.Mutex
	rows  map[string][]store.Item // by outbox
	began time.Time
	reads map[string][]time.Duration // time since the first read, by outbox
	takes time.Duration              // duration of a read
	fail  error

	held     map[string][]string
	standing map[string][]store.LaneKey
	full     map[string]bool
	unloads  int
}

func newMemory() *memory {
	return &memory{
		began: time.Now(), rows: map[string][]store.Item{}, reads: map[string][]time.Duration{},
		held: map[string][]string{}, standing: map[string][]store.LaneKey{}, full: map[string]bool{},
	}
}

// insert adds n rows of a group.
func (m *memory) insert(outbox, group string, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for range n {
		id := fmt.Sprint(outbox, len(m.rows[outbox]))
		m.rows[outbox] = append(m.rows[outbox], store.Item{Ref: store.Ref{Outbox: outbox, ID: id}, Group: store.GroupOf(group)})
	}
}

func (m *memory) set(change func()) { m.mu.Lock(); defer m.mu.Unlock(); change() }

func (m *memory) View(context.Context, string) (store.View, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m, m.fail
}

func (m *memory) Position() store.Position { return "" }
func (m *memory) Close()                   {}

func (m *memory) Pages(context.Context, store.UnsettledQuery, int, func([]store.Item) error) error {
	return errors.New("polling reads no pages")
}

func (m *memory) Delivered(context.Context, store.DeliveredQuery, int, func([]store.Item) error) (int, error) {
	return 0, errors.New("polling reads no delivered rows")
}

func (m *memory) Unsettled(_ context.Context, q store.UnsettledQuery) ([]store.Item, error) {
	takes := time.Duration(0)
	m.set(func() {
		m.reads[q.Outbox] = append(m.reads[q.Outbox], time.Since(m.began))
		takes = m.takes
	})
	time.Sleep(takes) // fake time
	m.mu.Lock()
	defer m.mu.Unlock()
	var items []store.Item
	for _, it := range m.rows[q.Outbox] {
		if len(items) < q.Limit && !slices.Contains(q.ExcludeIDs, it.ID) && !slices.Contains(q.ExcludeLanes, it.Lane()) {
			items = append(items, it)
		}
	}
	return items, nil
}

func (m *memory) Held(outbox string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.held[outbox])
}

func (m *memory) ExcludedLanes(outbox string) []store.LaneKey {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.standing[outbox])
}

func (m *memory) Unload(string) { m.set(func() { m.unloads++ }) }

func (m *memory) Room(outbox string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.full[outbox] {
		return 0
	}
	return math.MaxInt32
}

// take puts the rows of a batch into their lanes.
func (m *memory) take(b capture.Batch) {
	m.set(func() {
		for _, it := range b.Items {
			m.held[it.Outbox] = append(m.held[it.Outbox], it.ID)
		}
	})
}

func config(size int, outbox ...string) poll.Config {
	cfg := poll.Config{Interval: time.Second, BatchSize: size, Backoff: poll.DefaultBackoff()}
	for _, name := range append([]string{"shop"}, outbox...) {
		cfg.Outboxes = append(cfg.Outboxes, outboxes(name)...)
	}
	return cfg
}

// polling runs a source in fake time during the test and puts the batches that it sends into
// their lanes at once. The test may receive batches too.
func polling(t *testing.T, cfg poll.Config, test func(m *memory, src *poll.Source, out <-chan capture.Batch)) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		src := poll.New(cfg, m, m)
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan error)
		in, out := make(chan capture.Batch), make(chan capture.Batch, 10_000)
		go func() {
			for {
				select {
				case b := <-in:
					m.take(b)
					out <- b
				case <-ctx.Done():
					return
				}
			}
		}()
		go func() { ran <- src.Run(ctx, capture.Span{}, in) }()
		synctest.Wait()
		test(m, src, out)
		cancel()
		if err := <-ran; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
	})
}

// seconds converts times to whole seconds, which all times of these tests are.
func seconds(times []time.Duration) (list []int) {
	for _, at := range times {
		list = append(list, int(at/time.Second))
	}
	return list
}

func (m *memory) expect(t *testing.T, what, outbox string, want ...int) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if got := seconds(m.reads[outbox]); !slices.Equal(got, want) {
		t.Errorf("%s: %s was read at %v s, want %v", what, outbox, got, want)
	}
	m.reads[outbox] = nil
}

func TestIdleOutboxesAreReadLessOften(t *testing.T) {
	cfg := config(10, "other")
	cfg.Backoff = poll.Backoff{Threshold: 3, Multiplier: 2, Max: 20 * time.Second}
	polling(t, cfg, func(m *memory, src *poll.Source, _ <-chan capture.Batch) {
		time.Sleep(70 * time.Second)
		m.expect(t, "idle", "shop", 0, 1, 2, 3, 5, 9, 17, 33, 53)
		m.insert("shop", "a", 1)
		time.Sleep(10 * time.Second) // to 80 s
		m.expect(t, "a row", "shop", 73, 74, 75, 76, 77, 79)
		m.expect(t, "the other is by itself", "other", 0, 1, 2, 3, 5, 9, 17, 33, 53, 73)
		time.Sleep(20*time.Second + 500*time.Millisecond) // to 100.5 s
		m.expect(t, "idle again", "shop", 83, 91)
		src.Wake()
		time.Sleep(4 * time.Second)
		m.expect(t, "woken", "shop", 100, 101, 102, 103)
		m.expect(t, "woken too", "other", 93, 100, 101, 102, 103)
	})
}

// count returns the number of reads of an outbox.
func (m *memory) count(outbox string) (n int) {
	m.set(func() { n = len(m.reads[outbox]) })
	return n
}

func TestNoBackoff(t *testing.T) {
	cfg := config(10)
	cfg.Backoff.Multiplier, cfg.Backoff.Threshold = 1, 1
	polling(t, cfg, func(m *memory, _ *poll.Source, _ <-chan capture.Batch) {
		time.Sleep(300 * time.Second)
		if n := m.count("shop"); n != 300 && n != 301 {
			t.Errorf("%d reads in 300 s", n)
		}
	})
	cfg.Backoff, cfg.Interval = poll.DefaultBackoff(), time.Minute // longer than the longest backoff
	polling(t, cfg, func(m *memory, _ *poll.Source, _ <-chan capture.Batch) {
		time.Sleep(30 * time.Minute)
		if n := m.count("shop"); n != 30 && n != 31 {
			t.Errorf("%d reads in 30 minutes", n)
		}
	})
}

// TestMarkerWakesIdleOutbox: a marker does not wait until an idle outbox is due, and comes after the
// rows.
func TestMarkerWakesIdleOutbox(t *testing.T) {
	polling(t, config(10, "other"), func(m *memory, src *poll.Source, out <-chan capture.Batch) {
		time.Sleep(600*time.Second + time.Millisecond)
		m.insert("other", "a", 25)
		began := time.Now()
		if err := src.Mark(t.Context(), "m"); err != nil {
			t.Fatal(err)
		}
		rows := 0
		for b := range out {
			rows += len(b.Items)
			if len(b.Marks) > 0 {
				break
			}
		}
		if rows != 25 || time.Since(began) != 0 {
			t.Errorf("%d rows came before the marker, after %s", rows, time.Since(began))
		}
	})
}

// TestStalledLanesAreExcluded: rows of a lane that does not move are excluded for as long as
// it stands. They are read as soon as it moves, also by an idle source.
func TestStalledLanesAreExcluded(t *testing.T) {
	polling(t, config(10), func(m *memory, _ *poll.Source, _ <-chan capture.Batch) {
		m.set(func() { m.standing["shop"] = []store.LaneKey{{Outbox: "shop", Group: store.GroupOf("blocked")}} })
		m.insert("shop", "blocked", 1000)
		m.insert("shop", "well", 25)
		time.Sleep(time.Hour)
		if n := len(m.Held("shop")); n != 25 {
			t.Errorf("%d rows came, want the 25 of the other lane", n)
		}
		m.set(func() { m.standing["shop"] = nil; m.reads["shop"] = nil })
		moved := time.Since(m.began)
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if n := len(m.Held("shop")); n != 1025 {
			t.Errorf("%d rows came once the lane moved, want all", n)
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if first := m.reads["shop"][0] - moved; first > 50*time.Millisecond {
			t.Errorf("the first read came %s later", first)
		}
	})
}

// TestFullBufferIsNotRead: an outbox with a full buffer causes no reads and does not delay
// other outboxes.
func TestFullBufferIsNotRead(t *testing.T) {
	polling(t, config(10, "other"), func(m *memory, _ *poll.Source, _ <-chan capture.Batch) {
		m.set(func() { m.full["shop"] = true; m.reads["shop"], m.reads["other"] = nil, nil })
		m.insert("shop", "a", 1000)
		m.insert("other", "a", 1000)
		time.Sleep(time.Minute)
		if n := len(m.Held("other")); n != 1000 {
			t.Errorf("%d rows of the other outbox came", n)
		}
		m.expect(t, "full", "shop")
		m.set(func() {
			if m.unloads == 0 {
				t.Error("no rows were unloaded")
			}
			m.full["shop"] = false
		})
		time.Sleep(60 * time.Millisecond)
		synctest.Wait()
		if n := len(m.Held("shop")); n != 1000 {
			t.Errorf("%d rows came once there was room", n)
		}
	})
}

// small is a set of lanes with one buffer for all outboxes, which each read fills.
type small struct {
	*memory
	room int
}

func (s *small) Room(string) int { s.mu.Lock(); defer s.mu.Unlock(); return s.room }

// TestOutboxesAreReadInTurn: outboxes that share a buffer smaller than a batch are read in
// turn.
func TestOutboxesAreReadInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &small{memory: newMemory(), room: 1}
		names := []string{"shop", "b", "c"}
		for _, name := range names {
			s.insert(name, "a", 1000)
		}
		out := make(chan capture.Batch)
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan error)
		go func() { ran <- poll.New(config(10, "b", "c"), s, s).Run(ctx, capture.Span{}, out) }()
		came := map[string]int{}
		for i := 0; i < 60; {
			b := <-out
			if len(b.Items) == 0 {
				continue
			}
			i++
			came[b.Items[0].Outbox]++
			s.set(func() { s.room = 0 })
			s.take(b)
			synctest.Wait()
			time.Sleep(time.Second)
			s.set(func() { s.room = 1 })
		}
		cancel()
		if err := <-ran; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
		for _, name := range names {
			if came[name] < 19 || came[name] > 21 {
				t.Errorf("of 60 batches, %v came", came)
			}
		}
	})
}

// TestRowsDeliveredBeforeTheCheck: rows that fill the buffer and are delivered before the
// next check do not end the reading.
func TestRowsDeliveredBeforeTheCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config(10)
		s := &small{memory: newMemory(), room: cfg.BatchSize}
		rows := 5*cfg.BatchSize + 1
		s.insert("shop", "a", rows)
		out := make(chan capture.Batch)
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan error)
		go func() { ran <- poll.New(cfg, s, s).Run(ctx, capture.Span{}, out) }()
		for came, late := 0, time.After(time.Hour); came < rows; {
			select {
			case b := <-out:
				came += len(b.Items)
				s.set(func() { s.rows["shop"] = s.rows["shop"][len(b.Items):] })
			case <-late:
				t.Fatalf("%d of %d rows came", came, rows)
			}
		}
		cancel()
		if err := <-ran; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
	})
}

// TestPauseIsAsLongAsRead: a slow read is followed by a pause of the same length.
func TestPauseIsAsLongAsRead(t *testing.T) {
	polling(t, config(10), func(m *memory, _ *poll.Source, _ <-chan capture.Batch) {
		m.set(func() { m.takes = 5 * time.Second })
		m.insert("shop", "a", 1)
		time.Sleep(50 * time.Second)
		m.mu.Lock()
		defer m.mu.Unlock()
		if n := len(m.reads["shop"]); n > 7 {
			t.Errorf("%d reads of 5 s in 50 s: %v", n, seconds(m.reads["shop"]))
		}
	})
}
