package blackbox

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

const (
	// scaleOutDelay is how long the receiver takes for each request: the 64 senders of a process send 320
	// rows/s at most, so that the requests limit the processes rather than the processors of one machine.
	scaleOutDelay  = 200 * time.Millisecond
	scaleOutGroups = 1000
)

// pace inserts rows of all groups at once and returns how many arrive in a second, from the first tenth to
// the eighth: until then every sender has a group that waits. Their ids are in order, because a snapshot
// sends them by their id.
func (s *scaleFleet) pace(rows int) float64 {
	s.t.Helper()
	s.mu.Lock()
	before := len(s.seen)
	s.mu.Unlock()
	all := make([]scaleKey, rows)
	for i := range all {
		n := before + 1 + i
		all[i] = scaleKey{n % scaleOutGroups, n}
	}
	if err := s.table.insert(all); err != nil {
		s.t.Fatal(err)
	}
	passed := func(n int) time.Time {
		within(s.t, testTimeout, func() string {
			s.mu.Lock()
			defer s.mu.Unlock()
			if len(s.seen) < before+n {
				return fmt.Sprintf("%d rows of %d have arrived", len(s.seen)-before, n)
			}
			return ""
		})
		return time.Now()
	}
	began := passed(rows / 10)
	rate := float64(rows*8/10-rows/10) / passed(rows*8/10).Sub(began).Seconds()
	passed(rows)
	return rate
}

// Each further process that shares an outbox adds its senders. The rate is in the log of the test: nothing
// but the order, and that every row arrives, is checked. SLUICEBOX_TEST_ROWS is a full run: 6000 rows with
// 1, 2 and 4 processes, three times.
//
//	SLUICEBOX_TEST_ROWS=6000 go test -v -run TestScaleOut ./cmd/internal/blackbox
func TestScaleOut(t *testing.T) {
	t.Parallel()
	rows, steps, turns := many(t, 2000), []int{1, 2}, 1
	if os.Getenv(rowsVariable) != "" {
		steps, turns = []int{1, 2, 4}, 3
	}
	s := aPostgresFleet(t)
	s.delay = scaleOutDelay
	var all []*relay
	written := 0
	for range turns {
		var rates []string
		first := 0.0
		for _, n := range steps {
			for len(all) < n {
				r := start(t, s.config)
				r.waitFor("shards assigned")
				all = append(all, r)
			}
			for len(all) > n {
				expectStop(t, all[len(all)-1])
				all = all[:len(all)-1]
			}
			within(t, testTimeout, func() string { return unequal(all...) })
			rate := s.pace(rows)
			written += rows
			if n == 1 {
				first = rate
			}
			rates = append(rates, fmt.Sprintf("%d: %.0f rows/s (%.2f)", n, rate, rate/first/float64(n)))
		}
		t.Logf("processes: rate (its share of the first, times the processes): %s", strings.Join(rates, ", "))
	}
	s.settled(written)
	for _, r := range all {
		expectStop(t, r)
	}
}
