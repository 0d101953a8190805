package blackbox

import (
	"testing"
	"time"
)

// All rows in groups of their own, and all rows in one group: both are delivered once and in
// order, and memory stays flat. By hand, where the memory limit is that of the program without
// the race detector:
//
//	SLUICEBOX_TEST_ROWS=100000 go test -v -run 'TestManyGroupsAndOne' ./cmd/internal/blackbox
func TestManyGroupsAndOne(t *testing.T) {
	t.Parallel()
	for name, group := range map[string]string{"a group each": "i", "one group": "1"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			aScene(t, "", func(s *scene) {
				rows := many(s.t, 5000)
				r := s.run()
				s.number(1, rows, group)
				began := time.Now()
				arrive(s.t, s.to, rows)
				took := time.Since(began)
				s.expectNumbered(rows)
				requests := s.to.Counts().Requests
				s.t.Logf("%d rows in %s (%.0f/s), in %d requests", rows, took.Round(time.Millisecond), float64(rows)/took.Seconds(), requests)
				if requests > rows/20 {
					s.t.Errorf("%d requests for %d rows", requests, rows)
				}
				r.expectSmall()
				expectStop(s.t, r)
			})
		})
	}
}
