package blackbox

import (
	"slices"
	"testing"
	"time"
)

// scaleWindow is the time of a rebalance, or of calm before it.
type scaleWindow struct{ from, to time.Time }

func (w scaleWindow) has(at time.Time) bool { return !at.Before(w.from) && at.Before(w.to) }

// during runs a change and the time that its effects take.
func during(change func()) scaleWindow {
	w := scaleWindow{from: time.Now()}
	change()
	time.Sleep(3 * time.Second) // the time over which latencies are measured
	w.to = time.Now()
	return w
}

// owners returns the groups that arrive from a path in a window.
func (s *scaleFleet) owners(w scaleWindow, path string) map[int]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	groups := map[int]bool{}
	for _, a := range s.first {
		if w.has(a.at) && a.path == path {
			groups[a.group] = true
		}
	}
	return groups
}

// latency returns the 99th percentile of the time from commit to arrival, of rows of groups that committed
// in a window, and the longest.
func (s *scaleFleet) latency(w scaleWindow, groups map[int]bool) (p99, most time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var took []time.Duration
	for _, a := range s.first {
		if at := s.commits[a.n]; groups[a.group] && w.has(at) {
			took = append(took, max(0, a.at.Sub(at)))
		}
	}
	if len(took) == 0 {
		s.t.Fatal("no row arrived in the window")
	}
	slices.Sort(took)
	return took[len(took)*99/100], took[len(took)-1]
}

// A process that is killed, or joins, moves its share of the partitions. The groups of the others go on meanwhile.
// The log has the latencies: nothing but the order, and that every row arrives, is checked. SLUICEBOX_TEST_CRASHES
// replaces the number of kills; 5 is a full run.
func TestScaleRebalance(t *testing.T) {
	t.Parallel()
	onFleets(t, func(t *testing.T, s *scaleFleet) {
		paths := [2]string{"/a", "/b"}
		begin := func(i int) {
			s.relays[i] = start(t, s.variant(paths[i]))
			s.relays[i].waitFor("shards assigned")
		}
		begin(0)
		begin(1)
		s.captures()
		stop := s.write()
		var reports []func() // once all rows have arrived
		for range crashes(t, 1) {
			stays, victim := s.captures()
			s.arrive(paths[stays])
			s.arrive(paths[victim])
			calm := during(func() {})
			others, moved := s.owners(calm, paths[stays]), s.owners(calm, paths[victim])
			report := func(what string, w scaleWindow) {
				before, _ := s.latency(calm, others)
				meanwhile, _ := s.latency(w, others)
				_, longest := s.latency(w, moved)
				t.Logf("%s: p99 of the %d groups that stay %s, before %s: %.2f times; a row of the %d that move waits %s at most",
					what, len(others), meanwhile, before, float64(meanwhile)/float64(before), len(moved), longest.Round(time.Millisecond))
			}
			killed := during(func() { s.relays[victim].kill(); s.hasAll(stays) })
			joined := during(func() { begin(victim); s.captures() })
			reports = append(reports, func() {
				report("killed", killed)
				report("joined", joined)
			})
		}
		s.settled(stop())
		for _, report := range reports {
			report()
		}
		for _, r := range s.relays {
			expectStop(t, r)
		}
	})
}
