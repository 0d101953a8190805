package blackbox

import "testing"

// Many groups are ready at once. Their rows share requests, and groups of several rows keep
// their order. By hand:
//
//	SLUICEBOX_TEST_ROWS=100000 go test -v -run 'TestRequestsAreShared' ./cmd/internal/blackbox
func TestRequestsAreShared(t *testing.T) {
	t.Parallel()
	for name, group := range map[string]string{"a row each": "i", "several rows each": "i % 300"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			aScene(t, "", func(s *scene) {
				rows := many(s.t, 1000)
				r := s.run()
				s.number(1, rows, group)
				s.expectNumbered(rows)
				requests := s.to.Counts().Requests
				shared := r.metric(`sluicebox_multi_group_requests_total{sink="flowcatalyst"}`)
				s.t.Logf("%d rows in %d requests, %.1f rows each; %.0f with rows of several groups", rows, requests, float64(rows)/float64(requests), shared)
				// The first claim gets only the rows read by then, so its requests may have few rows.
				if requests > 10+rows/20 || shared == 0 {
					s.t.Errorf("%d requests for %d rows", requests, rows)
				}
				expectStop(s.t, r)
			})
		})
	}
}
