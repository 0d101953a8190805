package lane

import (
	"testing"
	"time"
)

// Requests that are answered before their rows are due leave memory while no claim looks at them,
// although one request before them hangs.
func TestAnsweredRequestsLeave(t *testing.T) {
	var f Fresh
	now := time.Unix(1, 0)
	f.watch(&Request{}, now)
	for range 100 * minCompact {
		req := &Request{}
		f.watch(req, now)
		req.answered = true
	}
	if n := f.sent.Len(); n > minCompact {
		t.Errorf("%d requests are remembered, want at most %d", n, minCompact)
	}
}
