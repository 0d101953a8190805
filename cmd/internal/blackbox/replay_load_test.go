package blackbox

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// aloneFor is the time of live rows alone before a replay, per replayed row. It is the baseline
// for live rows during the replay.
const aloneFor = 100 * time.Microsecond

// lively writes three live rows in a transaction each 10 ms until done is closed: 300 per
// second, a third of them in groups without replayed rows. It returns the time of each write,
// by id, and the last number.
func (s *scene) lively(from int, done <-chan struct{}) (apart map[string]time.Time, last int) {
	s.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	apart = map[string]time.Time{}
	for last = from - 1; ; last += 3 {
		select {
		case <-done:
			return apart, last
		case <-tick.C:
			began := time.Now()
			s.number(last+1, last+3, "CASE WHEN i % 3 = 0 THEN 900 + i % 90 ELSE i % 90 END")
			apart[numbered((last+3)/3*3)] = began
		}
	}
}

// times returns the sorted delays between write and receipt.
func times(taken []sinktest.Received, began map[string]time.Time) (list []time.Duration) {
	for _, got := range taken {
		if at, ok := began[got.ID]; ok {
			list = append(list, got.At.Sub(at))
		}
	}
	slices.Sort(list)
	return list
}

// Rows after a checkpoint are replayed while live rows arrive in the same groups and in
// others. Each replayed row is sent once, in order, and the live rows of its group wait. By
// hand, with the delays of live rows in other groups:
//
//	SLUICEBOX_TEST_ROWS=100000 go test -v -run 'TestReplayBesideLiveRows' ./cmd/internal/blackbox
func TestReplayBesideLiveRows(t *testing.T) {
	t.Parallel()
	aScene(t, "", func(s *scene) {
		rows, half := many(s.t, 3000), many(s.t, 3000)/2
		r := s.run()
		s.number(1, half, "i % 90")
		s.expectNumbered(half)
		r.checkpoint("half", "--keep-log")
		s.number(half+1, rows, "i % 90")
		s.expectNumbered(rows)

		live := func(lasts func(done chan<- struct{})) (map[string]time.Time, int) {
			done := make(chan struct{})
			go lasts(done)
			return s.lively(s.rows()+1, done)
		}
		alone, _ := live(func(done chan<- struct{}) { <-time.After(time.Duration(rows) * aloneFor); close(done) })
		var job replayed
		var groups []string
		for g := range 90 {
			groups = append(groups, fmt.Sprintf("--group=%d", g))
		}
		began := time.Now()
		beside, besideTo := live(func(done chan<- struct{}) {
			defer close(done)
			job = r.replay(append([]string{"--from=half"}, groups...)...)
		})
		took := time.Since(began)
		if job.State != "done" || job.Sent < rows-half || job.Skipped+job.Refused > besideTo-rows {
			s.t.Errorf("the replay is %+v", job)
		}
		arrive(s.t, s.to, besideTo)
		taken := s.to.Accepted()
		s.checkLively(taken, job.ID, half, rows)
		without, with := times(taken, alone), times(taken, beside)
		p := func(list []time.Duration, n int) time.Duration {
			if len(list) == 0 {
				return 0
			}
			return list[len(list)*n/100].Round(10 * time.Microsecond)
		}
		s.t.Logf("%d rows were replayed in %s; other groups' live rows took p50 %s, p99 %s alone (%d rows), p50 %s, p99 %s beside it (%d rows): p99 %.2f times as long",
			job.Sent, took.Round(time.Millisecond), p(without, 50), p(without, 99), len(without), p(with, 50), p(with, 99), len(with),
			float64(p(with, 99))/float64(p(without, 99)))
		expectStop(s.t, r)
	})
}

// checkLively expects that the replay sent every row from half+1 to rows once and in order,
// and of the live rows those that had been delivered before. It expects no live row of a
// group before the group's last replayed row.
func (s *scene) checkLively(taken []sinktest.Received, job string, half, rows int) {
	s.t.Helper()
	seen, last, left := map[string]bool{}, map[string]string{}, map[string]int{}
	for _, got := range taken {
		if got.Replay == job {
			left[groupOf(s.t, got.Payload)]++
		}
	}
	came := 0
	for _, got := range taken {
		g := groupOf(s.t, got.Payload)
		switch {
		case got.Replay == job && (seen[got.ID] || got.ID <= last[g] || got.ID <= numbered(half) || strings.HasPrefix(g, "9") && len(g) == 3):
			s.t.Errorf("row %s of group %s was replayed after row %q", got.ID, g, last[g])
		case got.Replay == job:
			seen[got.ID], last[g] = true, got.ID
			left[g]--
			if got.ID <= numbered(rows) {
				came++
			}
		case last[g] != "" && left[g] > 0:
			s.t.Errorf("group %s: live row %s arrived with %d rows to come", g, got.ID, left[g])
		}
	}
	if came != rows-half {
		s.t.Errorf("%d of %d rows were replayed", came, rows-half)
	}
}
